"""State of a job on its scheduler, in terms that all schedulers share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MAX_WHY = 300


class JobPhase(StrEnum):
    """Phase of a job."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class JobEnd(StrEnum):
    """End of a job as reported by its scheduler; the end of the training itself is in its trial."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "ran out of memory"
    NODE_FAILED = "lost a node"
    PREEMPTED = "was preempted"
    NO_ROOM = "found no room on the cluster"
    EVICTED = "was evicted"
    REJECTED = "was rejected by its node"
    UNWATCHED = "ended while nobody watched"
    LOST = "is unknown to its scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """State of one job as reported by its scheduler.

    Args:
        phase: phase of the job.
        end: kind of its end; ``None`` before its end.
        why: the scheduler's own explanation; empty if there is none.
        is_answer: whether the scheduler, and the node of the job, answered; silence proves nothing.
    """

    phase: JobPhase
    end: JobEnd | None = None
    why: str = ""
    is_answer: bool = True


def no_answer(why: str) -> JobState:
    """Return the state of a job whose scheduler, or node, does not answer."""
    return JobState(phase=JobPhase.UNKNOWN, why=why, is_answer=False)


def one_line(text: str) -> str:
    r"""Return a scheduler's explanation on one line of at most 300 characters.

    >>> one_line("no room\n  on node 1\n")
    'no room on node 1'
    """
    return " ".join(text.split())[:_MAX_WHY]
