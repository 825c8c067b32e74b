"""Launches of scripts by other libraries' trainers under the recorder: the recorded trial, and the script's account."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.trial import Trial

JOBS = Path(__file__).parent / "jobs"
TIMEOUT_S = 900  # a hang; a busy machine takes minutes


def needs(*packages: str, target: str = "test-integrations") -> pytest.MarkDecorator:
    absent = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not installed: make {target}")


def launched(
    folder: Path,
    job: str,
    *words: str,
    options: tuple[str, ...] = (),
    processes: int = 2,
    variables: Mapping[str, str] | None = None,
) -> tuple[Trial, dict[str, Any]]:
    """Return the trial of a launch on processes of this machine, and what the job itself says that it did."""
    store, report = folder / "store", folder / "report.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHX_CUBICML_STORE": str(store), "HF_HUB_OFFLINE": "1"}
    cubicrun = (sys.executable, "-m", "torchx_cubicml.cubicrun", *options, "--standalone")
    command = [*cubicrun, "--nproc_per_node", str(processes), str(JOBS / job), *words, "--outcome", str(report)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "warning" not in "".join(line for line in done.stderr.splitlines() if "torchx-cubicml" in line)
    (trial,) = TrialStore(str(store))
    return trial, json.loads(report.read_text())


def facts(trial: Trial, *names: str) -> tuple[object, ...]:
    return tuple(trial.observed.get(name) for name in names)
