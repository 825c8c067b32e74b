"""Launches of a job on several processes for tests: the recorded trial, and what the job itself says that it did."""

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
    from torchx_cubicml.records.trial import Trial

JOBS = Path(__file__).parent / "jobs"
TIMEOUT_S = 240


def needs(*packages: str, target: str = "test-integrations") -> pytest.MarkDecorator:
    absent = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not installed: make {target}")


def launched(
    folder: Path, job: str, *words: str, options: tuple[str, ...] = (), processes: int = 2
) -> tuple[Trial, dict[str, Any]]:
    """Return the trial of a launch, and what the job itself says that it did."""
    store, report = folder / "store", folder / "report.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHX_CUBICML_STORE": str(store), "HF_HUB_OFFLINE": "1"}
    size = ("--standalone", "--nproc_per_node", str(processes))
    command = [sys.executable, "-m", "torchx_cubicml.cubicrun", *options, *size, str(JOBS / job), *words]
    done = subprocess.run(
        [*command, "--outcome", str(report)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "warning" not in "".join(line for line in done.stderr.splitlines() if "torchx-cubicml" in line)
    assert "torchx_cubicml" not in done.stderr  # no warning that comes from this package's code
    (trial,) = TrialStore(str(store))
    return trial, json.loads(report.read_text())


def facts(trial: Trial, *names: str) -> tuple[object, ...]:
    return tuple(trial.observed.get(name) for name in names)
