"""A partition whose nodes differ: the facts of a launch are those of the node that ran it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.slurm import batch_jobs
from torchx_cubicml import State, TrialStore

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parent.parent
SMALL = "n2"
CONSTRAINTS = """
objective = "samples_per_second"
[parameters.constraint]
choices = ["small", "large"]
scheduler = "constraint"
"""
WAY = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec taskset -c 0 slurmd -N "$0"', SMALL]


@pytest.fixture
def unequal(slurm: Path, workspace: Path) -> Iterator[Path]:
    """Return the working directory, with node ``n2`` as a machine of one processor and a name of its own."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a node of fewer processors takes a machine of two")
    restart(slurm, WAY)
    for node, feature in (("n1", "large"), (SMALL, "small")):
        control("update", f"nodename={node}", f"availablefeatures={feature}", f"activefeatures={feature}")
    yield workspace
    restart(slurm, ["slurmd", "-N", SMALL])
    for node in ("n1", SMALL):
        control("update", f"nodename={node}", "availablefeatures=", "activefeatures=")


def restart(slurm: Path, way: list[str]) -> None:
    """Start the daemon of the small node in another way."""
    file = slurm / f"slurmd-{SMALL}.pid"
    before = int(file.read_text())
    os.kill(before, 15)
    batch_jobs.until(lambda: not Path(f"/proc/{before}").exists(), "the daemon does not end")
    path = f"{os.environ['PATH']}:/usr/sbin"
    subprocess.run(way, check=True, timeout=60, env={**os.environ, "PATH": path})
    batch_jobs.until(lambda: file.exists() and file.read_text().strip() not in {"", str(before)}, "it does not start")
    time.sleep(1)  # it registers
    subprocess.run(["scontrol", "update", f"nodename={SMALL}", "state=resume"], check=False, timeout=30)
    batch_jobs.until(lambda: batch_jobs.state_of_node(SMALL) == "idle", "the node stays away")


def control(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True, timeout=30)


def test_facts_are_of_the_node_that_ran(unequal: Path) -> None:
    script = TESTS / "jobs" / "train_alone.py"
    for feature in ("small", "large"):
        number = batch_jobs.submit(f"srun cubicrun -- {sys.executable} {script}", "-C", feature, "--mem=4000")
        batch_jobs.until_over(number)
    small, large = sorted(TrialStore(str(unequal / "store")), key=lambda trial: trial.observed["n_cpus"])
    assert small.state is large.state is State.COMPLETED, batch_jobs.logs()
    assert (small.observed["host"], small.observed["n_cpus"]) == (SMALL, 1)
    assert (large.observed["host"], large.observed["n_cpus"]) == (os.uname().nodename, len(os.sched_getaffinity(0)))


def test_a_tune_over_the_features_of_nodes_records_the_node_of_each_launch(unequal: Path) -> None:
    Path("space.toml").write_text(CONSTRAINTS)
    component = (f"{TESTS / 'tune' / 'components.py'}:quick", "--script", str(TESTS / "tune" / "quick.py"))
    options = ("--space", "space.toml", "--store", "store", "--scratch", str(unequal / "scratch"), "--yes")
    options = (*options, "--budget", "3 launches", "-s", "slurm", "-cfg", "constraint=large")
    words = ("torchx", "cubicml", "tune", *options, "--", *component)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    names = {"small": SMALL, "large": os.uname().nodename}
    found = list(TrialStore(str(unequal / "store")))
    assert {trial.state for trial in found} == {State.COMPLETED}, found
    assert {trial.config["constraint"] for trial in found} == set(names)
    assert all(trial.observed["host"] == names[str(trial.config["constraint"])] for trial in found)
