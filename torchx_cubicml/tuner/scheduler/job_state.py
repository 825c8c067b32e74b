"""State of a job on its scheduler, in terms that all schedulers share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


class SchedulerQuery(Protocol):
    """Direct query of a scheduler, for job states that TorchX cannot report and for jobs of a dead process.

    No method may raise.
    """

    def look(self, app_id: str) -> JobState | None:
        """Return the state of a job; ``None`` if the scheduler does not know it.

        A scheduler that does not answer gives ``UNKNOWN``, and ``is_answer`` is false.
        """

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        """Return launch id -> app id of the launches that have a job, ended ones included.

        ``None`` if the scheduler is known not to answer.
        """

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return whether a process of this machine is still submitting one of the launches."""

    def cancel(self, app_id: str) -> bool:
        """Request the end of a job, and return whether the scheduler accepted the request."""


def no_answer(why: str) -> JobState:
    """Return the state of a job whose scheduler, or node, does not answer."""
    return JobState(phase=JobPhase.UNKNOWN, why=why, is_answer=False)


def one_line(text: str) -> str:
    r"""Return a scheduler's explanation on one line of at most 300 characters.

    >>> one_line("no room\n  on node 1\n")
    'no room on node 1'
    """
    return " ".join(text.split())[:_MAX_WHY]
