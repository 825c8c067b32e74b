"""Launches of one training by a whole command, with ``cubicrun --`` in front and without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Sequence

JOBS = Path(__file__).resolve().parent.parent / "jobs"
SCRIPT = "train_launched.py"
TIMEOUT_S = 900  # a hang; a busy machine takes minutes
FACTS = ("world_size", "nnodes", "dp_degree", "micro_batch_size", "global_batch_size", "sharding_strategy")
SPACE = """
[parameters.micro_batch_size]
choices = [2, 4]
flag = "--batch-size"
changes_training = true
"""


def ran(
    folder: Path, command: Sequence[str], port: int, **changes: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a command in which ``PORT`` stands for the port, and return it with what the job says of itself."""
    report = folder / "report.json"
    shutil.copy(JOBS / SCRIPT, folder)  # out of this project
    report.unlink(missing_ok=True)
    variables = {"OMP_NUM_THREADS": "1", "TORCHX_CUBICML_STORE": str(folder / "store"), "HF_HOME": str(folder)}
    words = [word.replace("PORT", str(port)) for word in command]
    done = subprocess.run(
        [*words, "--port", str(port), "--outcome", str(report)],
        cwd=folder,
        env={**os.environ, **variables, "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2", **changes},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done, json.loads(report.read_text()) if report.exists() else {}


def cubicrun(*options: str) -> list[str]:
    """Return the words in front of a whole command."""
    return [sys.executable, "-m", "torchx_cubicml.cubicrun", *options, "--"]


def only_trial(folder: Path) -> Trial:
    (trial,) = TrialStore(str(folder / "store"))
    return trial


def assert_recorded_as_under_torchrun(
    folder: Path, launcher: Sequence[str], port: int, *options: str, in_workload: int = 2
) -> None:
    """Assert that the run is as without us, and that one trial holds what both ranks did.

    Args:
        folder: working directory of the job, and of its store.
        launcher: words in front of the script.
        port: for the rendezvous.
        options: of the script.
        in_workload: processes that the command itself states.
    """
    command = [*launcher, SCRIPT, "--batch-size", "4", *options]
    typed, own = ran(folder, command, port)
    assert typed.returncode == 0, typed.stderr[-3000:]
    recorded, report = ran(folder, [*cubicrun(), *command], port)
    assert recorded.returncode == 0, recorded.stderr[-3000:]
    assert "warning" not in "".join(line for line in recorded.stderr.splitlines() if "torchx-cubicml" in line)
    assert report == own
    assert report["world_size"] == 2
    trial = only_trial(folder)
    assert (trial.state, trial.workload) == (State.COMPLETED, {"program": SCRIPT, "world_size": in_workload})
    assert tuple(trial.observed.get(name) for name in FACTS) == (2, 1, 2, 4, 8, "DDP")
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 20
    assert measured.samples_per_second == pytest.approx(8 / measured.mean_step_time_s)


def assert_fails_as_typed(
    folder: Path, launcher: Sequence[str], port: int, *options: str, fail: str = "exit"
) -> tuple[subprocess.CompletedProcess[str], Trial]:
    """Assert that a failure of the last rank ends the recorded command as the typed one; return it and its trial."""
    command = [*launcher, SCRIPT, *options, "--fail", fail]
    typed, _ = ran(folder, command, port)
    recorded, _ = ran(folder, [*cubicrun(), *command], port)
    assert recorded.returncode == typed.returncode != 0, recorded.stderr[-3000:]
    return recorded, only_trial(folder)


def assert_rewritten(folder: Path, launcher: Sequence[str], port: int, *options: str, world_size: int = 2) -> None:
    """Assert that the arguments of the script are those of a faster config, and are recorded so."""
    (folder / "space.toml").write_text(SPACE)
    store = TrialStore(str(folder / "store"))
    workload = {"program": SCRIPT, "world_size": world_size}
    for batch, rate in ((2, 100.0), (2, 100.0), (4, 900.0), (4, 900.0)):
        store.add(Trial.completed(workload=workload, config={"micro_batch_size": batch}, samples_per_second=rate))
    command = [*cubicrun("--cubicml-space", "space.toml"), *launcher, SCRIPT, "--batch-size", "2", *options]
    done, report = ran(folder, command, port)
    assert done.returncode == 0, done.stderr[-3000:]
    assert report["argv"][report["argv"].index("--batch-size") + 1] == "4", done.stderr
    (trial,) = (trial for trial in store if trial.observed)
    assert (trial.origin, trial.config) == (Origin.REWRITE, {"micro_batch_size": 4})
    assert tuple(trial.observed.get(name) for name in ("micro_batch_size", "global_batch_size")) == (4, 8)
