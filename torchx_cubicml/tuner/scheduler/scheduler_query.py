"""Interface to a scheduler besides TorchX: marks of launches on jobs, and queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchx_cubicml.tuner.scheduler.job_state import JobPhase, JobState


class SchedulerQuery(ABC):
    """Direct query of a scheduler, for job states that TorchX cannot report and for jobs of a dead process.

    No method but ``mark`` may raise. All but the three abstract ones suit a scheduler where nothing special holds.

    Attributes:
        is_local: whether only the process that started a job can query TorchX for it.
        believed: phases in which the job state that TorchX reports is believed without a query. If there is none,
            TorchX is not asked.
        keeps_image: whether the image that TorchX builds of a workspace serves further launches.
    """

    is_local: ClassVar[bool] = False
    believed: ClassVar[frozenset[JobPhase]] = frozenset()
    keeps_image: ClassVar[bool] = True

    @abstractmethod
    def look(self, app_id: str) -> JobState | None:
        """Return the state of a job; ``None`` if the scheduler does not know it.

        A scheduler that does not answer gives ``UNKNOWN``, and ``is_answer`` is false.
        """

    @abstractmethod
    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        """Return launch id -> app id of the launches that have a job, ended ones included.

        ``None`` if the scheduler is known not to answer.
        """

    @abstractmethod
    def cancel(self, app_id: str) -> bool:
        """Request the end of a job, and return whether the scheduler accepted the request."""

    @property
    def can_find(self) -> bool:
        """Return whether ``find`` can establish that a launch has no job."""
        return True

    @property
    def can_look(self) -> bool:
        """Return whether ``look`` can establish the state of a job."""
        return True

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return whether a process of this machine is still submitting one of the launches."""
        del launch_ids
        return False  # a killed process usually leaves no submission behind

    def marked_name(self, name: str, launch_id: str) -> str:
        """Return the name of the app of a launch; by default ``name``."""
        del launch_id
        return name

    def marked_options(self, options: Mapping[str, object], launch_id: str) -> Mapping[str, object]:
        """Return the scheduler's options for a launch; by default ``options``."""
        del launch_id
        return options

    def mark(self, request: Any, launch_id: str) -> None:
        """Write the launch id into TorchX's request; by default nothing.

        Raises:
            LaunchError: the request has no place for it, so that its job could not be found again.
        """
        del request, launch_id

    def lines(self, app_id: str, role: str, *, count: int) -> tuple[str, ...] | None:
        """Return the last lines of a role's first replica; ``None`` where TorchX's own reader serves."""
        del app_id, role, count
        return None

    def scheduler_lines(self, app_id: str) -> tuple[str, ...]:
        """Return the lines that the scheduler itself wrote into a job's logs."""
        del app_id
        return ()
