"""The launches in flight: submitted once each, watched with patience, cancelled past deadlines, recorded to the end."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.tuner.launch_state import Cancellation, FinishedLaunch, PendingLaunch, end_state_of, state_by_trial
from torchx_cubicml.tuner.patience import pause_s
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import is_out_of_memory
from torchx_cubicml.tuner.state import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner
    from torchx_cubicml.tuner.state import TuneState

_LOST_AFTER = timedelta(seconds=120)  # that a scheduler knows nothing of a job
_ASK_AGAIN = timedelta(seconds=30)  # to cancel
_GIVE_UP = timedelta(seconds=300)  # on a job that does not end when cancelled
_CONFIRMED = timedelta(seconds=2)  # that a job which was cut off stays so, and is not requeued
_LAST_WORDS = timedelta(seconds=15)  # for the end that a training tells, after its job has ended
_NO_WORDS = timedelta(seconds=5)  # the same, where it never told that it began


class PendingLaunches:
    """What a tune has in flight.

    Args:
        prepared: the request.
        books: of the tune.
        jobs: the scheduler.
        clock: of the tune.
    """

    def __init__(self, prepared: Prepared, books: TuneState, jobs: JobRunner, clock: Clock) -> None:
        self._prepared = prepared
        self._books = books
        self._jobs = jobs
        self._clock = clock
        self.under_way: list[PendingLaunch] = []

    def launch(self, suggestion: Suggestion, purpose: str) -> PendingLaunch | FinishedLaunch:
        """Plan one launch, then submit it.

        Returns:
            The flight; or what became of it where the scheduler refuses it.

        Raises:
            KeyboardInterrupt: the user interrupts; ``end_all`` closes what was begun.
        """
        launch_id = self._books.next_launch_id()
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
        )
        app = self._prepared.component.build(placed.launch, placed.contract)
        flight = PendingLaunch(
            launch_id=launch_id,
            number=self._books.number(launch_id),
            purpose=purpose,
            config=suggestion.config,
            submitted_at=self._clock.now(),
            suggestion=suggestion,
        )
        self._books.plan(launch_id, suggestion, self._prepared.workload)
        self.under_way.append(flight)
        try:
            flight.handle = self._jobs.submit(app, launch_id=launch_id)
        except LaunchError as error:
            # A scheduler that answers late may have taken the job all the same.
            flight.handle = self._jobs.find([launch_id]).get(launch_id, "")
            if not flight.handle:
                return self._refused(flight, str(error))
        self._books.submitted(launch_id, flight.handle, purpose, self._jobs.image)
        return flight

    def adopt(self, flight: PendingLaunch) -> None:
        """Watch a launch that another process began."""
        if flight.handle:
            self._books.submitted(flight.launch_id, flight.handle, flight.purpose, self._jobs.image)
        self.under_way.append(flight)

    def drop(self, launch_id: str, reason: str) -> None:
        """Close a launch that was planned, and of which it is sure that there never was a job."""
        self._books.end(launch_id, State.STOPPED_EARLY, reason)
        self._books.settled(launch_id, Cost(run_s=0.0, queue_s=0.0, launched=False), "never submitted")

    def watch(self) -> Iterator[FinishedLaunch]:
        """Look at each flight once, and yield those that are over."""
        due = [flight for flight in self.under_way if self._is_due(flight)]
        for flight in due:
            if not flight.given_up:
                self._look(flight)
        if any(flight.ended is not None for flight in due):
            self._books.ledger.refresh()
        for flight in due:
            if flight.ended is not None and self._is_told(flight, *flight.ended):
                yield self._land(flight, flight.ended[0])

    def next_look_s(self) -> float:
        """Return the seconds until a job is to be looked at again."""
        now = self._clock.now()
        return min(((flight.look_at - now).total_seconds() for flight in self.under_way), default=0.0)

    def running_s(self) -> list[float]:
        """Return how long each flight has run that runs, or ran before it was requeued."""
        now = self._clock.now()
        return [ran_s for flight in self.under_way if (ran_s := flight.ran_s(now)) is not None]

    def doom(self, flight: PendingLaunch, state: State, reason: str) -> None:
        """Cancel a flight; when its job is gone it is recorded so."""
        if flight.doom is None and flight.ended is None:
            flight.doom = Cancellation(state=state, reason=reason, since=self._clock.now())
            flight.look_at = self._clock.now()
        self._ask_to_end(flight)

    def end_all(self, reason: str) -> None:
        """Cancel all flights and close their trials at once."""
        for flight in list(self.under_way):
            if flight.handle and flight.ended is None:
                self._jobs.cancel(flight.handle)
        for flight in list(self.under_way):
            flight.doom = flight.doom or Cancellation(state=State.STOPPED_EARLY, reason=reason, since=self._clock.now())
            self._land(flight, JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED))

    def _look(self, flight: PendingLaunch) -> None:
        now = self._clock.now()
        trial = self._books.ledger.of_launch(flight.launch_id)
        state = self._jobs.look(flight.handle) if flight.handle else state_by_trial(trial)
        flight.state = state
        if state.phase is JobPhase.ENDED:
            flight.ended = flight.ended or (state, now)
            return
        if flight.ended is not None and state.phase in {JobPhase.QUEUED, JobPhase.RUNNING}:
            flight.ended = None  # a job that is requeued looks for a moment as if it had ended
        if flight.ended is not None:
            return
        self._mind_phase(flight, state, trial)
        flight.unknown_since = (flight.unknown_since or now) if state.phase is JobPhase.UNKNOWN else None
        if flight.unknown_since is not None and now - flight.unknown_since > _LOST_AFTER:
            self._jobs.cancel(flight.handle)
            self._give_up(flight, state.why)
        elif flight.doom is None:
            self._mind_deadlines(flight, now)
        elif now - flight.doom.since > _GIVE_UP:
            self._give_up(flight, "it does not end when cancelled")
        else:
            self._ask_to_end(flight)

    def _mind_phase(self, flight: PendingLaunch, state: JobState, trial: Trial | None) -> None:
        now = self._clock.now()
        if state.phase is JobPhase.RUNNING and flight.running_since is None:
            flight.running_since = now
        elif state.phase is JobPhase.QUEUED and flight.running_since is not None:
            told = self._books.ledger.last_event_at(flight.launch_id) if trial and trial.state.ended else None
            flight.ran_before_s += max(0.0, (min(told or now, now) - flight.running_since).total_seconds())
            flight.running_since, flight.requeued_at = None, now

    def _is_due(self, flight: PendingLaunch) -> bool:
        """Whether it is time to look at a job."""
        now = self._clock.now()
        if now < flight.look_at:
            return False
        age_s = (now - flight.since).total_seconds()
        eager = self._jobs.is_local or flight.ended is not None or flight.doom is not None
        usual_s = self._books.usual_run_s() if flight.running_since is not None else None
        flight.look_at = now + timedelta(seconds=pause_s(age_s, eager=eager, usual_s=usual_s))
        return True

    def _give_up(self, flight: PendingLaunch, why: str) -> None:
        flight.given_up = True
        flight.ended = JobState(phase=JobPhase.ENDED, end=JobEnd.LOST, why=why), self._clock.now()

    def _mind_deadlines(self, flight: PendingLaunch, now: datetime) -> None:
        request = self._prepared.request
        if flight.running_since is not None:
            if (flight.ran_s(now) or 0.0) > request.trial_timeout_s:
                self.doom(flight, State.TIMEOUT, f"cancelled after it ran for {request.trial_timeout_s:g} s")
        elif (now - flight.since).total_seconds() > request.queue_timeout_s:
            why = f" ({flight.state.why})" if flight.state is not None and flight.state.why else ""
            reason = f"cancelled after it waited in the queue for {request.queue_timeout_s:g} s{why}"
            self.doom(flight, State.INFRASTRUCTURE, reason)

    def _ask_to_end(self, flight: PendingLaunch) -> None:
        now = self._clock.now()
        if flight.handle and (flight.asked_at is None or now - flight.asked_at >= _ASK_AGAIN):
            flight.asked_at = now
            self._jobs.cancel(flight.handle)

    def _is_told(self, flight: PendingLaunch, state: JobState, since: datetime) -> bool:
        """Whether the trial has its end, or has had time enough to tell it."""
        trial = self._books.ledger.of_launch(flight.launch_id)
        begun = trial is not None and trial.state is not State.PLANNED
        if trial is not None and trial.state.ended:
            cut_off = trial.state in {State.UNKNOWN, State.INFRASTRUCTURE} and flight.doom is None
            return not cut_off or self._clock.now() - since >= _CONFIRMED
        return self._clock.now() - since >= (_LAST_WORDS if begun else _NO_WORDS)

    def _land(self, flight: PendingLaunch, state: JobState) -> FinishedLaunch:
        books = self._books
        books.ledger.refresh()
        trial = self._trial(flight)
        lines = self._jobs.last_lines(flight.handle, self._role()) if flight.handle else ()
        verdict = end_state_of(flight, state, trial, out_of_memory=self._is_out_of_memory(flight, state, lines))
        if verdict is not None:
            books.end(flight.launch_id, *verdict)
            trial = self._trial(flight)
        books.settled(flight.launch_id, self._cost(flight), str(state.end))
        self.under_way.remove(flight)
        if not self._prepared.request.scratch:
            shutil.rmtree(Path(self._prepared.scratch) / flight.launch_id, ignore_errors=True)
        return FinishedLaunch(flight=flight, trial=trial, last_lines=lines)

    def _refused(self, flight: PendingLaunch, why: str) -> FinishedLaunch:
        self._books.end(flight.launch_id, State.INFRASTRUCTURE, why)
        self._books.settled(flight.launch_id, Cost(run_s=0.0, queue_s=0.0, launched=False), "refused")
        self.under_way.remove(flight)
        return FinishedLaunch(flight=flight, trial=self._trial(flight), refused=True)

    def _is_out_of_memory(self, flight: PendingLaunch, state: JobState, lines: tuple[str, ...]) -> bool:
        if state.end is JobEnd.OUT_OF_MEMORY:
            return True
        if state.end not in {JobEnd.FAILED, JobEnd.CANCELLED} or flight.doom is not None:
            return False
        return is_out_of_memory(lines) or is_out_of_memory(self._jobs.scheduler_lines(flight.handle))

    def _cost(self, flight: PendingLaunch) -> Cost:
        """Return run time and queue time; of a launch that ended unwatched, as its own clock told."""
        ledger, now = self._books.ledger, self._clock.now()
        run_s, end = flight.ran_s(now), now
        if run_s is None:
            attempts = ledger.attempts(flight.launch_id)
            end = ledger.last_event_at(flight.launch_id) or now
            run_s = sum((last - first).total_seconds() for first, last in attempts)
        return Cost(run_s=run_s, queue_s=max(0.0, (end - flight.submitted_at).total_seconds() - run_s))

    def _trial(self, flight: PendingLaunch) -> Trial:
        trial = self._books.ledger.of_launch(flight.launch_id)
        if trial is None:
            raise LaunchError(f"the launch {flight.launch_id} is missing from the store")
        return trial

    def _role(self) -> str:
        component = self._prepared.component
        return str(component.source.app.roles[component.role].name)
