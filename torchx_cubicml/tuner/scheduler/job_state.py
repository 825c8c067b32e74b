"""How a job stands on its scheduler, in words that all schedulers share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class JobPhase(StrEnum):
    """Where a job stands."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class JobEnd(StrEnum):
    """How a job ended, as its scheduler tells; what the training itself did is in its trial."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "ran out of memory"
    NODE_FAILED = "lost a node"
    PREEMPTED = "was preempted"
    UNWATCHED = "ended while nobody watched"
    LOST = "is unknown to its scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What a scheduler tells of one job.

    Args:
        phase: where it stands.
        end: how it ended; ``None`` before its end.
        why: the scheduler's own words; empty where it has none.
    """

    phase: JobPhase
    end: JobEnd | None = None
    why: str = ""


class SchedulerQuery(Protocol):
    """Asks a scheduler itself, past TorchX: what TorchX cannot say of a job, and which jobs a dead process left.

    No method raises: a scheduler that does not answer knows nothing for now.
    """

    def look(self, app_id: str) -> JobState | None:
        """Return how a job stands; ``None`` where the scheduler does not answer or does not know it."""

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        """Return launch id -> app id of those launches that have a job, ended ones included."""

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Whether a submission of one of the launches is still under way in a process of this machine."""

    def cancel(self, app_id: str) -> bool:
        """Ask the scheduler to end a job, and return whether it took the order."""
