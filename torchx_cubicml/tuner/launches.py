"""Launches in flight: each is submitted once, polled, cancelled past its deadline, and recorded when it ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launch import changed_scheduler_options
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.tuner.job_search import JobSearch
from torchx_cubicml.tuner.launch_ends import LaunchEnds, devices_of_launch
from torchx_cubicml.tuner.launch_state import Cancellation, FinishedLaunch, PendingLaunch, state_by_trial
from torchx_cubicml.tuner.poll_interval import poll_interval_s
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState, no_answer
from torchx_cubicml.tuner.sharing import VISIBLE_DEVICES, Sharing, devices_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner
    from torchx_cubicml.tuner.state import TuneState

_LOST_AFTER = timedelta(seconds=120)  # a job is lost if its scheduler does not know it for so long
_CANCEL_AGAIN_AFTER = timedelta(seconds=30)
_GIVE_UP = timedelta(seconds=300)  # on a job that does not end when cancelled


class PendingLaunches:
    """Launches of one tune that are in flight.

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
        self._ends = LaunchEnds(prepared, tune_state, jobs, clock)
        self._search = JobSearch(prepared, tune_state, jobs, clock)
        self.under_way: list[PendingLaunch] = []
        self.sharing = Sharing(at_a_time=1)

    @property
    def has_room(self) -> bool:
        """Return whether one more launch may be in flight; none may while one is in doubt."""
        return not self.in_doubt and self.sharing.has_room(pending.devices for pending in self.under_way)

    @property
    def in_doubt(self) -> list[PendingLaunch]:
        """Return the launches of which it is unknown whether they have a job."""
        return [pending for pending in self.under_way if pending.doubt is not None]

    def launch(self, suggestion: Suggestion, purpose: str) -> PendingLaunch | FinishedLaunch:
        """Record the plan of one launch, then submit it.

        Returns:
            The pending launch, in doubt if the scheduler does not tell whether it has the job, or the finished one if
            the scheduler refuses it.

        Raises:
            KeyboardInterrupt: the user interrupts; ``cancel_all`` then closes the launch.
        """
        launch_id = self._tune_state.next_launch_id()
        placed = place_config(
            self._prepared.component.launch,
            self._prepared.space,
            suggestion.config,
            store=self._prepared.store_url,
            origin=Origin.TUNE,
            launch_id=launch_id,
            suggestion=suggestion,
            step_limit=self._prepared.request.step_limit,
            scratch=self._prepared.scratch,
            keeps_command=self._prepared.request.keeps_command,
        )
        app = self._prepared.component.build(placed.launch, placed.contract)
        devices = self._free_devices(placed.launch.nproc_per_node)
        for role in app.roles if devices else ():
            role.env[VISIBLE_DEVICES] = ",".join(devices)
        pending = PendingLaunch(
            launch_id=launch_id,
            number=self._tune_state.number(launch_id),
            purpose=purpose,
            config=suggestion.config,
            submitted_at=self._clock.now(),
            suggestion=suggestion,
            devices=devices,
        )
        self._tune_state.plan(launch_id, suggestion, self._prepared.workload, devices)
        self.under_way.append(pending)
        try:
            options = changed_scheduler_options(placed.launch, self._prepared.component.launch)
            pending.handle = self._jobs.submit(app, launch_id=launch_id, options=options)
        except LaunchError as error:
            if not self._search.find_rejected(pending, error):
                return self._finish_unmade(pending)
            if not pending.handle:
                return pending
        self._tune_state.submitted(launch_id, pending.handle, purpose, self._jobs.image)
        return pending

    def _free_devices(self, nproc_per_node: int | None) -> tuple[str, ...]:
        if not self.sharing.devices:
            return ()
        return self.sharing.free(pending.devices for pending in self.under_way)[
            : devices_of(self._prepared, nproc_per_node)
        ]

    def adopt(self, pending: PendingLaunch) -> None:
        """Take over a launch that another process began."""
        if pending.handle:
            self._tune_state.submitted(pending.launch_id, pending.handle, pending.purpose, self._jobs.image)
        self.under_way.append(pending)

    def drop(self, launch_id: str, reason: str) -> None:
        """Close a planned launch that certainly never had a job."""
        self._ends.drop(launch_id, reason)

    def watch(self) -> Iterator[FinishedLaunch]:
        """Poll each launch that is due, and yield those that are over.

        Raises:
            LaunchError: the scheduler never accepted a job of the tune, and does not answer.
        """
        due = [pending for pending in self.under_way if self._is_due(pending)]
        unmade = [pending for pending in due if pending.ended is None and self._search.is_unmade(pending)]
        for pending in due:
            if not pending.given_up and pending not in unmade:
                self._poll(pending)
        if any(pending.ended is not None for pending in due):
            self._tune_state.trial_log.refresh()
        yield from map(self._finish_unmade, unmade)
        for pending in due:
            if pending.ended is not None and self._ends.is_final(pending, pending.ended[1]):
                yield self._finish(pending, pending.ended[0])

    def _finish(self, pending: PendingLaunch, state: JobState) -> FinishedLaunch:
        finished = self._ends.finish(pending, state)
        self.under_way.remove(pending)
        return finished

    def _finish_unmade(self, pending: PendingLaunch) -> FinishedLaunch:
        finished = self._ends.finish_unmade(pending)
        self.under_way.remove(pending)
        return finished

    def next_poll_s(self) -> float:
        """Return the seconds until the next poll of a job is due."""
        now = self._clock.now()
        return min(((pending.look_at - now).total_seconds() for pending in self.under_way), default=0.0)

    def running_s(self) -> list[float]:
        """Return the run time in seconds of each launch that was observed to run, requeued ones included."""
        now = self._clock.now()
        return [ran_s for pending in self.under_way if (ran_s := pending.ran_s(now)) is not None]

    def running_on(self) -> list[int]:
        """Return the world size of each launch of ``running_s``, 0 where unknown."""
        now = self._clock.now()
        return [devices_of_launch(pending) for pending in self.under_way if pending.ran_s(now) is not None]

    def cancel(self, pending: PendingLaunch, state: State, reason: str) -> None:
        """Cancel a launch; ``state`` and ``reason`` are recorded when its job is gone."""
        if pending.cancellation is None and pending.ended is None:
            pending.cancellation = Cancellation(state=state, reason=reason, since=self._clock.now())
            pending.look_at = self._clock.now()
        self._request_cancel(pending)

    def cancel_all(self, reason: str) -> list[PendingLaunch]:
        """Cancel all launches, close their trials at once, and return those that stay open.

        A launch whose submission did not return has its job looked for. A launch stays open if the scheduler does not
        tell whether it has a job, or does not accept the cancel request: a resumed tune looks again.
        """
        running = [pending for pending in self.under_way if pending.handle and pending.ended is None]
        lost = [pending for pending in self.under_way if not pending.handle and pending.ended is None]
        accepted = [self._jobs.cancel(pending.handle) for pending in running]  # before a search, which takes its time
        may_run = {pending.launch_id for pending, ends in zip(running, accepted, strict=True) if not ends}
        may_run |= self._search.find_all(lost)
        may_run |= {pending.launch_id for pending in lost if pending.handle and not self._jobs.cancel(pending.handle)}
        for pending in [each for each in self.under_way if each.launch_id not in may_run]:
            pending.cancellation = pending.cancellation or Cancellation(
                state=State.STOPPED_EARLY, reason=reason, since=self._clock.now()
            )
            self._finish(pending, JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED))
        return list(self.under_way)

    def _poll(self, pending: PendingLaunch) -> None:
        now = self._clock.now()
        trial = self._tune_state.trial_log.of_launch(pending.launch_id)
        state = self._state_of(pending, trial)
        pending.state = state
        if state.phase is JobPhase.ENDED:
            pending.ended = pending.ended or (state, now)
            return
        if pending.ended is not None and state.phase in {JobPhase.QUEUED, JobPhase.RUNNING}:
            pending.ended = None  # a job that is being requeued is briefly reported as ended
        if pending.ended is not None:
            return
        self._update_phase(pending, state, trial)
        is_unknown = state.phase is JobPhase.UNKNOWN and state.is_answer
        pending.unknown_since = (pending.unknown_since or now) if is_unknown else None
        if pending.unknown_since is not None and now - pending.unknown_since > _LOST_AFTER:
            self._jobs.cancel(pending.handle)
            self._give_up(pending, f"its scheduler does not know it{f': {state.why}' if state.why else ''}")
        elif pending.cancellation is None:
            self._enforce_deadlines(pending, now)
        elif now - pending.cancellation.since > _GIVE_UP:
            self._give_up(pending, "it may have a job" if pending.doubt else "it does not end when cancelled")
        else:
            self._request_cancel(pending)

    def _state_of(self, pending: PendingLaunch, trial: Trial | None) -> JobState:
        if self._jobs.can_look(pending.handle):
            return self._jobs.look(pending.handle)
        if pending.doubt is not None:
            return no_answer(pending.doubt.why)
        return state_by_trial(trial, can_wait=not pending.handle)  # a local job, which no queue holds

    def _update_phase(self, pending: PendingLaunch, state: JobState, trial: Trial | None) -> None:
        now = self._clock.now()
        if state.phase is JobPhase.RUNNING and pending.running_since is None:
            pending.running_since = now
        elif state.phase is JobPhase.QUEUED and pending.running_since is not None:
            ended_at = (
                self._tune_state.trial_log.last_event_at(pending.launch_id) if trial and trial.state.ended else None
            )
            pending.ran_before_s += max(0.0, (min(ended_at or now, now) - pending.running_since).total_seconds())
            pending.running_since, pending.requeued_at = None, now

    def _is_due(self, pending: PendingLaunch) -> bool:
        """Return whether a job is due to be polled, and schedule its next poll if so."""
        now = self._clock.now()
        if now < pending.look_at:
            return False
        age_s = (now - pending.since).total_seconds()
        eager = self._jobs.is_local or pending.ended is not None or pending.cancellation is not None
        usual_run_s = self._tune_state.usual_run_s() if pending.running_since is not None else None
        pending.look_at = now + timedelta(seconds=poll_interval_s(age_s, eager=eager, usual_s=usual_run_s))
        return True

    def _give_up(self, pending: PendingLaunch, why: str) -> None:
        pending.given_up = True
        pending.ended = JobState(phase=JobPhase.ENDED, end=JobEnd.LOST, why=why), self._clock.now()

    def _enforce_deadlines(self, pending: PendingLaunch, now: datetime) -> None:
        request = self._prepared.request
        if pending.running_since is not None:
            if (pending.ran_s(now) or 0.0) > request.trial_timeout_s:
                self.cancel(
                    pending,
                    State.TIMEOUT,
                    f"cancelled after running for {request.trial_timeout_s:g} s (--trial-timeout)",
                )
        elif (now - pending.since).total_seconds() > request.queue_timeout_s:
            why = f" ({pending.state.why})" if pending.state is not None and pending.state.why else ""
            reason = f"cancelled after {request.queue_timeout_s:g} s in the queue (--queue-timeout){why}"
            self.cancel(pending, State.INFRASTRUCTURE, reason)

    def _request_cancel(self, pending: PendingLaunch) -> None:
        now = self._clock.now()
        if pending.handle and (pending.asked_at is None or now - pending.asked_at >= _CANCEL_AGAIN_AFTER):
            pending.asked_at = now
            self._jobs.cancel(pending.handle)
