"""Real launchers with two processes: the run is as without us, and one trial holds what both ranks did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.recorded_launch import JOBS, TIMEOUT_S, facts, needs
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.launch

SCRIPT = "train_launched.py"
HERE = Path(sys.executable).parent
ACCELERATE = (str(HERE / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
DEEPSPEED = (str(HERE / "deepspeed"), "--num_gpus", "2", "--master_port", "PORT")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
has_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")
LAUNCHERS = [
    pytest.param(ACCELERATE, marks=needs("accelerate"), id="accelerate"),
    pytest.param(DEEPSPEED, marks=needs("deepspeed", target="test-releases"), id="deepspeed"),
    pytest.param(MPIRUN, marks=has_mpirun, id="mpirun"),
    pytest.param(TORCHRUN, id="torch.distributed.run"),
]
SPACE = """
[parameters.micro_batch_size]
choices = [2, 4]
flag = "--batch-size"
changes_training = true
"""


def ran(folder: Path, command: list[str], port: int) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a command and return it with what the job says of itself."""
    report = folder / "report.json"
    shutil.copy(JOBS / SCRIPT, folder)  # out of this project
    report.unlink(missing_ok=True)
    variables = {"OMP_NUM_THREADS": "1", "TORCHX_CUBICML_STORE": str(folder / "store"), "HF_HOME": str(folder)}
    words = [word.replace("PORT", str(port)) for word in command]
    done = subprocess.run(
        [*words, "--port", str(port), "--outcome", str(report)],
        cwd=folder,
        env={**os.environ, **variables, "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done, json.loads(report.read_text()) if report.exists() else {}


def cubicrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torchx_cubicml.cubicrun", *options, "--"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_are_one_trial(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    command = [*launcher, SCRIPT, "--batch-size", "4"]
    typed, own = ran(tmp_path, command, free_port)
    assert typed.returncode == 0, typed.stderr[-3000:]
    recorded, report = ran(tmp_path, [*cubicrun(), *command], free_port)
    assert recorded.returncode == 0, recorded.stderr[-3000:]
    assert report == own
    assert report["world_size"] == 2
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert (trial.state, trial.workload) == (State.COMPLETED, {"program": SCRIPT, "world_size": 2})
    names = ("world_size", "nnodes", "dp_degree", "micro_batch_size", "global_batch_size", "sharding_strategy")
    assert facts(trial, *names) == (2, 1, 2, 4, 8, "DDP")
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 20
    assert measured.samples_per_second == pytest.approx(8 / measured.mean_step_time_s)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_fails_is_told_and_the_exit_code_stays(
    launcher: tuple[str, ...], tmp_path: Path, free_port: int
) -> None:
    command = [*launcher, SCRIPT, "--fail"]
    typed, _ = ran(tmp_path, command, free_port)
    recorded, _ = ran(tmp_path, [*cubicrun(), *command], free_port)
    assert recorded.returncode == typed.returncode != 0
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert (trial.state, trial.reason) == (State.USER_ERROR, "exit status 7")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_arguments_of_the_script_are_rewritten(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    store = TrialStore(str(tmp_path / "store"))
    for batch, rate in ((2, 100.0), (2, 100.0), (4, 900.0), (4, 900.0)):
        workload = {"program": SCRIPT, "world_size": 2}
        store.add(Trial.completed(workload=workload, config={"micro_batch_size": batch}, samples_per_second=rate))
    command = [*cubicrun("--cubicml-space", "space.toml"), *launcher, SCRIPT, "--batch-size", "2"]
    done, report = ran(tmp_path, command, free_port)
    assert done.returncode == 0, done.stderr[-3000:]
    assert report["argv"][report["argv"].index("--batch-size") + 1] == "4", done.stderr
    (trial,) = (trial for trial in store if trial.observed)
    assert (trial.origin, trial.config) == (Origin.REWRITE, {"micro_batch_size": 4})
    assert facts(trial, "micro_batch_size", "global_batch_size") == (4, 8)


@needs("accelerate")
def test_one_process_is_one_process_whatever_its_option_says(tmp_path: Path, free_port: int) -> None:
    launcher = [str(HERE / "accelerate"), "launch", "--cpu", "--num_processes", "2"]
    done, report = ran(tmp_path, [*cubicrun(), *launcher, SCRIPT], free_port)
    assert done.returncode == 0, done.stderr[-3000:]
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert (report["world_size"], trial.workload["world_size"], trial.observed["world_size"]) == (1, 1, 1)
