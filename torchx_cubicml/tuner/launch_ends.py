"""Ends of launches: when an end is final, what is recorded of it, and what the launch cost."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.trial import State
from torchx_cubicml.space.constraints import is_count
from torchx_cubicml.tuner.launch_state import FinishedLaunch, end_state_of, explained_exit
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobState
from torchx_cubicml.tuner.scheduler.jobs import is_out_of_memory
from torchx_cubicml.tuner.state import Cost

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.launch_state import PendingLaunch
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner
    from torchx_cubicml.tuner.state import TuneState

_REQUEUE_WAIT = timedelta(seconds=2)  # after which an interrupted job is taken not to be requeued
_END_EVENT_WAIT = timedelta(seconds=15)  # for the training's own end event, after its job has ended
_START_EVENT_WAIT = timedelta(seconds=5)  # the same, if the training never recorded its start


class LaunchEnds:
    """Records of the ends of one tune's launches.

    Args:
        prepared: the checked request.
        tune_state: state of the tune.
        jobs: the scheduler.
        clock: the tune's clock.
    """

    def __init__(self, prepared: Prepared, tune_state: TuneState, jobs: JobRunner, clock: Clock) -> None:
        self._prepared = prepared
        self._tune_state = tune_state
        self._jobs = jobs
        self._clock = clock

    def is_final(self, pending: PendingLaunch, since: datetime) -> bool:
        """Return whether the trial's end is recorded, or the time to record it since ``since`` is over."""
        trial = self._tune_state.trial_log.of_launch(pending.launch_id)
        started = trial is not None and trial.state is not State.PLANNED
        if trial is not None and trial.state.ended:
            cut_off = trial.state in {State.UNKNOWN, State.INFRASTRUCTURE} and pending.cancellation is None
            return not cut_off or self._clock.now() - since >= _REQUEUE_WAIT
        return self._clock.now() - since >= (_END_EVENT_WAIT if started else _START_EVENT_WAIT)

    def finish(self, pending: PendingLaunch, state: JobState) -> FinishedLaunch:
        """Record the end and the cost of a launch whose job is over."""
        tune_state = self._tune_state
        tune_state.trial_log.refresh()
        trial = self._trial(pending)
        lines = self._jobs.last_lines(pending.handle, self._role()) if pending.handle else ()
        if state.end is JobEnd.NODE_FAILED and pending.handle:
            self._jobs.cancel(pending.handle)  # its scheduler may start it again on another node
        end_state = end_state_of(pending, state, trial, out_of_memory=self._is_out_of_memory(pending, state, lines))
        if end_state is None and pending.cancellation is None and (reason := explained_exit(trial, lines)):
            end_state = trial.state, reason
        if end_state is not None:
            tune_state.end(pending.launch_id, *end_state)
            trial = self._trial(pending)
        tune_state.settled(pending.launch_id, self._cost(pending), str(state.end))
        if not self._prepared.request.scratch:
            shutil.rmtree(Path(self._prepared.scratch) / pending.launch_id, ignore_errors=True)
        return FinishedLaunch(pending=pending, trial=trial, last_lines=lines)

    def finish_unmade(self, pending: PendingLaunch) -> FinishedLaunch:
        """Close a launch in doubt that has no job."""
        if pending.doubt is None:
            raise LaunchError(f"the launch {pending.launch_id} is not in doubt")
        self._tune_state.end(pending.launch_id, pending.doubt.state, pending.doubt.reason)
        self._tune_state.settled(pending.launch_id, Cost(run_s=0.0, queue_s=0.0, launched=False), "refused")
        return FinishedLaunch(pending=pending, trial=self._trial(pending), refused=True)

    def drop(self, launch_id: str, reason: str) -> None:
        """Close a planned launch that certainly never had a job."""
        self._tune_state.end(launch_id, State.STOPPED_EARLY, reason)
        self._tune_state.settled(launch_id, Cost(run_s=0.0, queue_s=0.0, launched=False), "never submitted")

    def _is_out_of_memory(self, pending: PendingLaunch, state: JobState, lines: tuple[str, ...]) -> bool:
        if state.end is JobEnd.OUT_OF_MEMORY:
            return True
        if state.end not in {JobEnd.FAILED, JobEnd.CANCELLED} or pending.cancellation is not None:
            return False
        return is_out_of_memory(lines) or is_out_of_memory(self._jobs.scheduler_lines(pending.handle))

    def _cost(self, pending: PendingLaunch) -> Cost:
        """Return run time and queue time; for a launch that ended unobserved, by the job's own clock."""
        trial_log, now = self._tune_state.trial_log, self._clock.now()
        run_s, end = pending.ran_s(now), now
        if run_s is None:
            attempts = trial_log.attempts(pending.launch_id)
            end = trial_log.last_event_at(pending.launch_id) or now
            run_s = sum((last - first).total_seconds() for first, last in attempts)
        queue_s = max(0.0, (end - pending.submitted_at).total_seconds() - run_s)
        return Cost(run_s=run_s, queue_s=queue_s, devices=devices_of_launch(pending))

    def _trial(self, pending: PendingLaunch) -> Trial:
        trial = self._tune_state.trial_log.of_launch(pending.launch_id)
        if trial is None:
            raise LaunchError(f"the launch {pending.launch_id} is missing from the store")
        return trial

    def _role(self) -> str:
        component = self._prepared.component
        return str(component.source.app.roles[component.role].name)


def devices_of_launch(pending: PendingLaunch) -> int:
    """Return the world size that a launch's config states; 0 where it states none."""
    devices = pending.config.get("world_size")
    return devices if is_count(devices) else 0
