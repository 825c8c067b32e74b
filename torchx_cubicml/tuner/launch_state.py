"""State of one launch of a tune, from request to end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.trial import Config, Trial


_BY_THE_MACHINES = {
    JobEnd.NODE_FAILED,
    JobEnd.PREEMPTED,
    JobEnd.LOST,
    JobEnd.CANCELLED,
}


def end_state_of(
    pending: PendingLaunch, state: JobState, trial: Trial, *, out_of_memory: bool
) -> tuple[State, str] | None:
    """Return what the tuner tells of the end of a trial; ``None`` where the training has told it all."""
    cut_off = not trial.state.ended or trial.state in {State.UNKNOWN, State.INFRASTRUCTURE}
    why = f" ({state.why})" if state.why else ""
    if pending.cancellation is not None:
        done = trial.state is State.COMPLETED or trial.state is State.OUT_OF_MEMORY
        return None if done else (pending.cancellation.state, pending.cancellation.reason)
    if out_of_memory and cut_off:
        return State.OUT_OF_MEMORY, f"the scheduler ended the job for want of memory{why}"
    if state.end is JobEnd.TIMED_OUT and cut_off:
        return State.TIMEOUT, f"the scheduler's own time limit ended the job{why}"
    if trial.state.ended and trial.state is not State.UNKNOWN:
        return None
    # A local job that its tuner was starting when it was killed has logs, and may never have had a process.
    never_began = state.end is JobEnd.UNWATCHED and trial.state is State.PLANNED
    if state.end in _BY_THE_MACHINES or never_began:
        return State.INFRASTRUCTURE, f"the job {_as_verb(state.end)}{why}"
    return (
        None if trial.state.ended else (State.UNKNOWN, f"the job {_as_verb(state.end)}, and its training said no more")
    )


def _as_verb(end: JobEnd | None) -> str:
    return f"was {end}" if end is JobEnd.CANCELLED else str(end)


def state_by_trial(trial: Trial | None) -> JobState:
    """Return how a launch stands whose job cannot be asked."""
    if trial is not None and trial.state.ended:
        return JobState(phase=JobPhase.ENDED, end=JobEnd.UNWATCHED)
    running = trial is not None and trial.state is State.RUNNING
    return JobState(phase=JobPhase.RUNNING if running else JobPhase.QUEUED)


_AT_ONCE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """Why a launch is being cancelled, and since when."""

    state: State
    reason: str
    since: datetime


@dataclass(slots=True, kw_only=True)
class PendingLaunch:
    """A launch under way.

    Args:
        launch_id: of its plan.
        number: in its tune, from 1.
        purpose: why it was made.
        config: requested.
        submitted_at: when the scheduler took it.
        handle: of its job; empty where it is known by its trial alone.
        suggestion: what was hoped; ``None`` where another process launched it.
        state: as last seen.
        running_since: when it began to run; ``None`` while it waits.
        requeued_at: when it was last put back into the queue; ``None`` where it never was.
        ran_before_s: seconds that it ran before.
        unknown_since: since when its scheduler knows nothing of it.
        ended: how its job ended, and when that was seen, while its trial is waited for.
        given_up: whether its job is not asked any more.
        doom: why it is being cancelled.
        asked_at: when its cancelling was asked for last.
        look_at: when its job is to be looked at again.
    """

    launch_id: str
    number: int
    purpose: str
    config: Config
    submitted_at: datetime
    handle: str = ""
    suggestion: Suggestion | None = None
    state: JobState | None = None
    running_since: datetime | None = None
    requeued_at: datetime | None = None
    ran_before_s: float = 0.0
    unknown_since: datetime | None = None
    ended: tuple[JobState, datetime] | None = None
    given_up: bool = False
    cancellation: Cancellation | None = None
    asked_at: datetime | None = None
    look_at: datetime = _AT_ONCE

    @property
    def since(self) -> datetime:
        """When it began to run, or to wait."""
        return self.running_since or self.requeued_at or self.submitted_at

    def ran_s(self, now: datetime) -> float | None:
        """Return seconds that it has run, as far as it was watched; ``None`` where it was not seen to run."""
        if self.running_since is None and self.requeued_at is None:
            return None
        return self.ran_before_s + ((now - self.running_since).total_seconds() if self.running_since else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLaunch:
    """A launch that is over.

    Args:
        flight: as it was.
        trial: what is recorded of it.
        last_lines: of its stderr.
        refused: whether the scheduler refused the job.
    """

    pending: PendingLaunch
    trial: Trial
    last_lines: tuple[str, ...] = field(default=())
    refused: bool = False
