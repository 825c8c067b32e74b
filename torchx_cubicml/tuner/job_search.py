"""Search for the jobs of launches whose submission did not return a handle; only an answer tells that there is none."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.launch_state import Doubt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.tuner.launch_state import PendingLaunch
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner
    from torchx_cubicml.tuner.state import TuneState

_CUT_OFF = re.compile(  # such a request may yet be served
    r"time[d ]?[ -]?out|connection (?:reset|aborted)|remote end closed|bad gateway", re.IGNORECASE
)
_MADE_WITHIN = timedelta(seconds=60)  # of a doubt; a job that its scheduler does not have by then was never made
_SUBMITS_WITHIN = timedelta(seconds=10)  # of an interruption


class JobSearch:
    """Search for jobs on the scheduler of a tune.

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

    def find_rejected(self, pending: PendingLaunch, error: LaunchError) -> bool:
        """Find the job of a launch whose submission failed; return whether there is one, or may be one.

        The scheduler may have accepted the job although its answer came too late.
        """
        pending.handle = self._find(pending)
        if pending.handle:
            return True
        why = str(error.__cause__ or error)
        pending.doubt = Doubt(state=State.INFRASTRUCTURE, reason=str(error), since=self._clock.now(), why=why)
        return self._jobs.is_silent or (self._jobs.finds and _CUT_OFF.search(str(error)) is not None)

    def is_unmade(self, pending: PendingLaunch) -> bool:
        """Look for the job of a launch without one; return whether its scheduler tells that there is none.

        Raises:
            LaunchError: the scheduler never accepted a job of the tune, and does not answer.
        """
        if pending.handle:
            return False
        is_submitting = self._jobs.submitting([pending.launch_id])  # asked first: a job made meanwhile is then found
        pending.handle = self._find(pending)
        if pending.handle:
            self._tune_state.submitted(pending.launch_id, pending.handle, pending.purpose, self._jobs.image)
        trial = self._tune_state.trial_log.of_launch(pending.launch_id)
        if pending.handle or (trial is not None and trial.state is not State.PLANNED):
            pending.doubt = None
        doubt = pending.doubt
        if doubt is None or self._may_be_served(doubt):
            return False
        if self._jobs.is_silent and pending.suggestion is not None and not self._tune_state.has_submitted:
            scheduler = self._prepared.request.scheduler
            raise LaunchError(
                f"{scheduler} does not answer, and may have the job of launch {pending.number}: {doubt.why}"
            )
        return self._jobs.finds and not is_submitting

    def find_all(self, launches: Iterable[PendingLaunch]) -> set[str]:
        """Find the jobs of the launches without one, and return the ids of those that may have one all the same."""
        lost = {pending.launch_id: pending for pending in launches if not pending.handle}
        end = self._clock.now() + _SUBMITS_WITHIN
        while lost:
            is_submitting = self._jobs.submitting(lost)
            for launch_id, handle in self._jobs.find(lost).items():
                lost.pop(launch_id).handle = handle
            if not is_submitting and not self._jobs.is_silent:
                return {name for name, pending in lost.items() if pending.doubt and self._may_be_served(pending.doubt)}
            if not is_submitting or self._clock.now() >= end:
                break
            self._clock.sleep(1.0)
        return set(lost)

    def _may_be_served(self, doubt: Doubt) -> bool:
        return self._clock.now() - doubt.since < _MADE_WITHIN

    def _find(self, pending: PendingLaunch) -> str:
        return self._jobs.find([pending.launch_id]).get(pending.launch_id, "")
