"""How a launch stands or ended, where the scheduler, the training and the tuner each know a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.flight import Flight

_BY_THE_MACHINES = {
    JobEnd.NODE_FAILED,
    JobEnd.PREEMPTED,
    JobEnd.LOST,
    JobEnd.CANCELLED,
}


def verdict_of(flight: Flight, state: JobState, trial: Trial, *, out_of_memory: bool) -> tuple[State, str] | None:
    """Return what the tuner tells of the end of a trial; ``None`` where the training has told it all."""
    cut_off = not trial.state.ended or trial.state in {State.UNKNOWN, State.INFRASTRUCTURE}
    why = f" ({state.why})" if state.why else ""
    if flight.doom is not None:
        done = trial.state is State.COMPLETED or trial.state is State.OUT_OF_MEMORY
        return None if done else (flight.doom.state, flight.doom.reason)
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
