"""Job states and last lines as TorchX's own schedulers report them.

TorchX's status calls raise while a job is pending or after a cancel, forget jobs, and lag behind. This module hides
these defects from the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

if TYPE_CHECKING:
    from torchx.schedulers import Scheduler


def interruptions() -> tuple[type[BaseException], ...]:
    """Return the exceptions that Ctrl-C raises: TorchX's local scheduler replaces Python's by its own."""
    from torchx.schedulers.local_scheduler import SignalException

    return KeyboardInterrupt, SignalException


def torchx_state(scheduler: Scheduler[Any], app_id: str) -> JobState:
    """Return the state of a job; ``UNKNOWN`` with the cause if TorchX does not know it or fails."""
    from torchx.specs import AppState

    try:
        status = scheduler.describe(app_id)  # the runner would log an event for each query
    except interruptions():
        raise
    except Exception as error:  # noqa: BLE001 - TorchX 0.7 raises AssertionError, KeyError... for states it does not know
        return JobState(phase=JobPhase.UNKNOWN, why=f"{type(error).__name__}: {error}")
    if status is None:
        return JobState(phase=JobPhase.UNKNOWN)
    ends = {
        AppState.SUCCEEDED: JobEnd.SUCCEEDED,
        AppState.FAILED: JobEnd.FAILED,
        AppState.CANCELLED: JobEnd.CANCELLED,
    }
    if status.state in ends:
        return JobState(phase=JobPhase.ENDED, end=ends[status.state], why=str(status.msg or ""))
    if status.state is AppState.RUNNING:
        return JobState(phase=JobPhase.RUNNING)
    waiting = {AppState.UNSUBMITTED, AppState.SUBMITTED, AppState.PENDING}
    return JobState(phase=JobPhase.QUEUED if status.state in waiting else JobPhase.UNKNOWN)


def torchx_lines(scheduler: Scheduler[Any], app_id: str, role: str, *, count: int) -> tuple[str, ...] | None:
    """Return the last lines that a role's first replica wrote to stderr, empty if they cannot be read.

    TorchX's readers wait for the end of a job, and a job that cannot be cancelled never ends. So the result is ``None``
    for a job that TorchX does not report as ended.
    """
    from torchx.schedulers.api import Stream
    from torchx.specs import is_terminal

    try:
        status = scheduler.describe(app_id)
        if status is not None and not is_terminal(status.state):
            return None
        # The runner would query the state first.
        lines = list(scheduler.log_iter(app_id, role, k=0, streams=Stream.STDERR))
    except interruptions():
        raise
    except Exception:  # noqa: BLE001 - logs are a courtesy; a scheduler without them must not end a tune
        return ()
    return tuple(line.rstrip("\n") for line in lines[-count:])
