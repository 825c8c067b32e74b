"""Cause of a Slurm job's restart, from Slurm's accounting: the state in which its run before was closed.

The writer process asks, so that the training waits for nothing.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RESTART_CAUSE = "restart_cause"  # fact
_TIMEOUT_S = 3.0
_QUERY = ("sacct", "-n", "-P", "-X", "-D", "-o", "State", "-j")
_CAUSES = {"NODE_FAIL": "node failed", "BOOT_FAIL": "node failed", "PREEMPTED": "preempted", "REQUEUED": "requeued"}


def restart_cause(job: str) -> str:
    """Return the cause of a restarted Slurm job's last restart; empty where Slurm does not answer.

    Args:
        job: number of the job.
    """
    try:
        done = subprocess.run([*_QUERY, job], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return cause_of_states(done.stdout.splitlines())


def cause_of_states(states: Sequence[str]) -> str:
    """Return the cause of the last restart from the states of a job's runs, oldest first; empty for a single run.

    >>> cause_of_states(["NODE_FAIL", "RUNNING"]), cause_of_states(["RUNNING"])
    ('node failed', '')
    """
    earlier = [state.split(" ")[0] for state in states if state.strip()][:-1]
    return _CAUSES.get(earlier[-1], earlier[-1].lower().replace("_", " ")) if earlier else ""
