"""Resumption of a tune whose process died: its launches are taken over, or closed if they never had a job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.launch_state import Doubt, PendingLaunch
from torchx_cubicml.tuner.sharing import ASSIGNED

if TYPE_CHECKING:
    from torchx_cubicml.tuner.launches import PendingLaunches
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner
    from torchx_cubicml.tuner.state import TuneState

_POLL_S = 1.0
_FIND_FOR = timedelta(seconds=3)  # a process between fork and exec does not show its environment yet
_AWAIT_START_FOR = timedelta(seconds=120)  # for a job to record its start, if the scheduler cannot be searched
NEVER_MADE = "the tuner ended before it submitted this launch"


def adopt_all(pending_launches: PendingLaunches, tune_state: TuneState, jobs: JobRunner, clock: Clock) -> int:
    """Take over each launch of the tune that has a job, and close those that never had one.

    Only an answer closes a launch: while the scheduler does not answer, it is taken over in doubt.

    Returns:
        The number of launches in flight.
    """
    lost = _adopt_submitted(pending_launches, tune_state, jobs)
    started = clock.now()
    while lost:
        is_submitting = jobs.submitting(lost)  # asked first: a job made meanwhile is then found
        found = jobs.find(lost)
        for launch_id in lost:
            if launch_id in found or _has_started(tune_state, launch_id):
                pending_launches.adopt(_pending_launch(tune_state, launch_id, found.get(launch_id, "")))
        lost = [launch_id for launch_id in lost if launch_id not in found and not _has_started(tune_state, launch_id)]
        wait = _FIND_FOR if jobs.finds or jobs.is_silent else _AWAIT_START_FOR
        if not lost or (clock.now() - started >= wait and not is_submitting):
            break
        clock.sleep(_POLL_S)
        tune_state.trial_log.refresh()
    for launch_id in lost:
        if jobs.is_silent:
            doubted = _pending_launch(tune_state, launch_id, "")
            doubted.doubt = Doubt(state=State.STOPPED_EARLY, reason=NEVER_MADE, since=clock.now())
            pending_launches.adopt(doubted)
        else:
            pending_launches.drop(launch_id, NEVER_MADE)
    return len(pending_launches.under_way)


def _adopt_submitted(pending_launches: PendingLaunches, tune_state: TuneState, jobs: JobRunner) -> list[str]:
    """Take over the launches whose job is in the journal, and return the ids of the others."""
    handles = {launch_id: tune_state.handle(launch_id) for launch_id in tune_state.open_launches()}
    local = jobs.find([launch_id for launch_id, handle in handles.items() if handle]) if jobs.is_local else {}
    for launch_id, handle in handles.items():
        if handle:
            # Only the process that started a local job can query TorchX for it.
            usable = local.get(launch_id, f"local_cwd://adopted/{launch_id}") if jobs.is_local else handle
            pending_launches.under_way.append(_pending_launch(tune_state, launch_id, usable))
    return [launch_id for launch_id, handle in handles.items() if not handle]


def _pending_launch(tune_state: TuneState, launch_id: str, handle: str) -> PendingLaunch:
    plan = tune_state.trial_log.planned(launch_id)
    planned_at = parse_time(plan.time) if plan is not None else None
    submitted_at = planned_at or tune_state.now()
    attempts = tune_state.trial_log.attempts(launch_id)
    assigned = plan.observed.get(ASSIGNED) if plan is not None else None
    return PendingLaunch(
        launch_id=launch_id,
        number=tune_state.number(launch_id),
        purpose=tune_state.purpose(launch_id) or "search",
        config=plan.config if plan is not None else {},
        submitted_at=submitted_at,
        handle=handle,
        running_since=attempts[-1][0] if attempts else None,
        ran_before_s=sum((last - first).total_seconds() for first, last in attempts[:-1]),
        devices=tuple(assigned.split(",")) if isinstance(assigned, str) else None,
    )


def _has_started(tune_state: TuneState, launch_id: str) -> bool:
    trial = tune_state.trial_log.of_launch(launch_id)
    return trial is not None and trial.state is not State.PLANNED
