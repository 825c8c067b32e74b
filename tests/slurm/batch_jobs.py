"""Batch scripts of a user, without TorchX: submitted, awaited, and what their launches recorded."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.records.trial import Trial

PATIENCE_S = 180.0


def submit(line: str, *options: str) -> str:
    """Submit a batch script of one line in the working directory, and return the number of its job."""
    script = Path("job.sbatch")
    script.write_text(f"#!/bin/bash\nexport TORCHX_CUBICML_STORE=$PWD/store OMP_NUM_THREADS=1\n{line}\n")
    words = ["sbatch", "--parsable", "--output", "job-%j.log", *options, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition(";")[0]


def state_of(number: str) -> str:
    """Return the state of a job, or of the tasks of an array that have not ended; empty once all have."""
    words = ["squeue", "-h", "-j", number, "-o", "%T"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


def node_of(number: str) -> str:
    """Return the node on which a job runs."""
    words = ["squeue", "-h", "-j", number, "-o", "%N"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def is_on_a_node(number: str) -> bool:
    """Return whether a daemon of Slurm on this machine still looks after a step of a job."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if file.read_bytes().startswith(f"slurmstepd: [{number}.".encode()):
                return True
    return False


def state_of_node(node: str) -> str:
    """Return the state of a node in the default partition, such as ``idle``."""
    words = ["sinfo", "-h", "-n", node, "-p", "debug", "-o", "%t"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def until(is_true: Callable[[], bool], what: str) -> None:
    """Wait until something is true; else show the logs of the jobs.

    Raises:
        AssertionError: it stays false.
    """
    end = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < end, f"{what}: {logs()}"
        time.sleep(0.1)


def until_over(number: str) -> None:
    """Wait for the end of a job."""
    until(lambda: not state_of(number), f"job {number} does not end")


def logs() -> str:
    """Return what Slurm tells of the jobs, and the ends of their logs."""
    shown = subprocess.run(["scontrol", "show", "job"], capture_output=True, text=True, check=False, timeout=60).stdout
    return shown + "\n".join(
        f"{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in Path().glob("job-*.log")
    )


def trials() -> list[Trial]:
    """Return the trials that the launches recorded."""
    return list(TrialStore(str(Path("store").absolute())))
