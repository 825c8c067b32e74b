"""State of one launch of a tune, from request to end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.events.printed_trials import PRINTED_MARK
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config


NO_RESULT = "no result: "
_RANK_PREFIX = re.compile(r"\[[^\]]*\d\]:")  # torchrun's prefix for the lines of its workers
_OUR_LINES = (PRINTED_MARK, "[torchx-cubicml]")
NO_REPORT = " without reporting"
_BARE_EXIT = re.compile(r"exit status -?\d+")
_MAX_LINE = 500
_END_TEXTS = {
    JobEnd.SUCCEEDED: "exited 0",
    JobEnd.CANCELLED: "was cancelled",
    JobEnd.UNWATCHED: "ended while no tuner was running",
    JobEnd.LOST: "was lost",
}
_INFRASTRUCTURE_ENDS = {
    JobEnd.NODE_FAILED,
    JobEnd.PREEMPTED,
    JobEnd.NO_ROOM,
    JobEnd.EVICTED,
    JobEnd.REJECTED,
    JobEnd.LOST,
    JobEnd.CANCELLED,
}


def program_lines(last_lines: Sequence[str]) -> list[str]:
    """Return the lines of stderr that the training itself wrote; all lines if none bears the prefix of a worker."""
    of_ranks = [line for line in last_lines if _RANK_PREFIX.search(line)]
    theirs = [line for line in of_ranks or last_lines if not any(mark in line for mark in _OUR_LINES)]
    return [line for line in theirs if _RANK_PREFIX.sub("", line, count=1).strip()]


def explained_exit(trial: Trial, last_lines: Sequence[str]) -> str:
    """Return the reason of a bare exit status with the last line of stderr that a worker wrote; empty if there is none.

    A program that prints its error and exits tells the recorder no more than its status.
    """
    if trial.state is not State.USER_ERROR or not _BARE_EXIT.fullmatch(trial.reason):
        return ""
    lines = [line for line in program_lines(last_lines) if _RANK_PREFIX.match(line)]
    if not lines:
        return ""
    return f"{trial.reason}: {mask(_RANK_PREFIX.sub('', lines[-1], count=1).strip())[:_MAX_LINE]}"


def end_state_of(
    pending: PendingLaunch, state: JobState, trial: Trial, *, out_of_memory: bool
) -> tuple[State, str] | None:
    """Return the end state and reason that the tuner records for a trial.

    ``None`` if the training recorded its end itself.
    """
    cut_off = not trial.state.ended or trial.state in {State.UNKNOWN, State.INFRASTRUCTURE}
    why = f" ({state.why})" if state.why else ""
    if pending.cancellation is not None:
        ended_by_itself = trial.state is State.COMPLETED or trial.state is State.OUT_OF_MEMORY
        but = f"; {state.why}" if state.end is JobEnd.LOST else ""
        return None if ended_by_itself else (pending.cancellation.state, f"{pending.cancellation.reason}{but}")
    if out_of_memory and cut_off:
        return State.OUT_OF_MEMORY, f"the scheduler ended the job: out of memory{why}"
    if state.end is JobEnd.TIMED_OUT and cut_off:
        return State.TIMEOUT, f"the scheduler's time limit ended the job{why}"
    if trial.state.ended and trial.state is not State.UNKNOWN:
        return None
    # If the tuner is killed while it starts a local job, the job has logs but may never have had a process.
    never_started = state.end is JobEnd.UNWATCHED and trial.state is State.PLANNED
    if state.end in _INFRASTRUCTURE_ENDS or never_started:
        return State.INFRASTRUCTURE, f"the job {_end_text(state.end)}{why}"
    detail = why if state.end is JobEnd.FAILED and not state.why.isupper() else ""  # Slurm tells a bare "FAILED"
    no_result = State.UNKNOWN, f"{NO_RESULT}the job {_end_text(state.end)}{NO_REPORT}{detail}"
    return None if trial.state.ended else no_result


def _end_text(end: JobEnd | None) -> str:
    return "ended" if end is None else _END_TEXTS.get(end, str(end))


def state_by_trial(trial: Trial | None, *, can_wait: bool = True) -> JobState:
    """Return the job state implied by a trial, for a launch whose job cannot be queried.

    Args:
        trial: trial of the launch; ``None`` where it has no event.
        can_wait: whether its scheduler has a queue.
    """
    if trial is not None and trial.state.ended:
        return JobState(phase=JobPhase.ENDED, end=JobEnd.UNWATCHED)
    running = not can_wait or (trial is not None and trial.state is State.RUNNING)
    return JobState(phase=JobPhase.RUNNING if running else JobPhase.QUEUED)


_IMMEDIATELY = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """Cancellation of a launch: the state and reason to record, and the time of the first request."""

    state: State
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Doubt whether a launch has a job.

    Args:
        state: state to record if it has none.
        reason: reason to record then.
        since: time of the doubt.
        why: error with which the submission ended; empty if unknown.
    """

    state: State
    reason: str
    since: datetime
    why: str = ""


@dataclass(slots=True, kw_only=True)
class PendingLaunch:
    """State of a launch in flight.

    Args:
        launch_id: id of the launch.
        number: number of the launch in its tune, from 1.
        purpose: purpose of the launch, such as ``search``.
        config: requested config.
        submitted_at: time of submission to the scheduler.
        handle: handle of the job; empty if the launch is known from its trial only.
        suggestion: suggestion with the prediction; ``None`` if another process launched it.
        state: job state as last observed.
        running_since: time at which the job began to run; ``None`` while it waits.
        requeued_at: time at which the job was last requeued; ``None`` if never.
        ran_before_s: seconds that the job ran before it was requeued.
        unknown_since: time since which the scheduler does not know the job.
        ended: end of the job and the time it was observed, while the trial's own end is awaited.
        given_up: true if the job is no longer polled.
        doubt: doubt whether there is a job; ``None`` if there is one.
        cancellation: the pending cancellation; ``None`` if there is none.
        asked_at: time of the last cancel request.
        look_at: time of the next poll.
        devices: devices of this host that it was given; empty if they are not divided, ``None`` if unknown.
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
    doubt: Doubt | None = None
    cancellation: Cancellation | None = None
    asked_at: datetime | None = None
    look_at: datetime = _IMMEDIATELY
    devices: tuple[str, ...] | None = ()

    @property
    def since(self) -> datetime:
        """Time at which the job began to run or, while it waits, to wait."""
        return self.running_since or self.requeued_at or self.submitted_at

    def ran_s(self, now: datetime) -> float | None:
        """Return the seconds that the job was observed to run; ``None`` if it never was."""
        if self.running_since is None and self.requeued_at is None:
            return None
        return self.ran_before_s + ((now - self.running_since).total_seconds() if self.running_since else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLaunch:
    """Outcome of a launch that is over.

    Args:
        pending: its last state in flight.
        trial: the recorded trial.
        last_lines: last lines of its stderr.
        refused: true if the scheduler refused the job.
    """

    pending: PendingLaunch
    trial: Trial
    last_lines: tuple[str, ...] = field(default=())
    refused: bool = False
