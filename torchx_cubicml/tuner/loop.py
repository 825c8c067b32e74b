"""The loop: the truth is in the store and on the scheduler, and what to launch next is worked out anew each time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import CubicMLError, StoreError
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.records.workload import matches
from torchx_cubicml.tuner.foresight import Prefetch
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.launch_state import FinishedLaunch
from torchx_cubicml.tuner.launches import PendingLaunches
from torchx_cubicml.tuner.lease import ALIVE_EVERY_S, Lease
from torchx_cubicml.tuner.plan import next_launch, snapshot_of, winner_of
from torchx_cubicml.tuner.polling import StoreRetry, SystemClock
from torchx_cubicml.tuner.progress import Begun, Ended, Launching, Step, TuneResult, glance, throughput_of
from torchx_cubicml.tuner.proposer import FinalReport, StudyProposer
from torchx_cubicml.tuner.resume import adopt_all
from torchx_cubicml.tuner.scheduler.jobs import JobRunner, interruptions
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.stopping import early_stop_reason, refuse_to_go_on
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from datetime import datetime

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.budget import Spent
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.proposer import Proposer
    from torchx_cubicml.tuner.request import Prepared

_POLL_S = 0.2
_AFTER_REFUSAL_S = 10.0
_STORE_EVERY_S = 5.0  # that running launches are asked for what they measured


def tune(
    prepared: Prepared, *, jobs: JobRunner | None = None, clock: Clock | None = None, advisor: Proposer | None = None
) -> Generator[Step, None, None]:
    """Launch within the budget, yielding each step, and the result at last.

    A tune of the same request that a dead process left unfinished is gone on with. It is finished when the generator is
    asked on after the result.

    Args:
        prepared: the request.
        jobs: the scheduler, in place of the request's own.
        clock: in place of this machine's.
        advisor: says what to launch, in place of the advisor.

    Raises:
        LaunchError: the first launch fails by the user's own error or measures nothing, or one failure repeats.
        StoreError: the store cannot be read or written for minutes; the tune is left as it is, to be gone on with.
        KeyboardInterrupt: the user ends the tune; what is in flight is cancelled and recorded first.
    """
    request, clock = prepared.request, clock or SystemClock()
    patience = StoreRetry(clock)
    journal = Journal(prepared.store_url, patience)
    runner = jobs or JobRunner(
        request.scheduler,
        scheduler_args=request.scheduler_args,
        log_dir=str(Path(prepared.scratch) / "logs"),
        workspace=request.workspace,
    )
    lease = Lease.take(journal, request, clock, space_text=Path(request.space).read_text(encoding="utf-8"))
    try:
        with runner:
            ledger = TrialLog(prepared.store_url, patience, statistic=prepared.space.statistic)
            tune_state = TuneState(lease.tune_id, ledger, journal, clock)
            yield from _Loop(prepared, tune_state, runner, clock, advisor or StudyProposer.serving(prepared)).run(
                resumed=lease.resumed
            )
    finally:
        lease.close()


class _Loop:
    """One process's lead of a tune."""

    def __init__(
        self, prepared: Prepared, tune_state: TuneState, jobs: JobRunner, clock: Clock, advisor: Proposer
    ) -> None:
        self._prepared = prepared
        self._books = tune_state
        self._jobs = jobs
        self._clock = clock
        self._advisor = advisor
        self._flights = PendingLaunches(prepared, tune_state, jobs, clock)
        self._world_size = prepared.component.launch.world_size or 1
        self._foresight = Prefetch(request=prepared.request)
        self._best: Trial | None = None  # of this tune
        self._idle = False  # nothing is to be launched before something lands
        self._told_alive: datetime = clock.now()
        self._read_store: datetime = clock.now()

    def run(self, *, resumed: bool) -> Iterator[Step]:
        try:
            yield from self._lead(resumed=resumed)
        except StoreError as error:
            left = "" if self._jobs.is_local else "its jobs are left to run, and "
            raise StoreError(f"{error}; the tune is not over: {left}the same command goes on with it") from error

    def _lead(self, *, resumed: bool) -> Iterator[Step]:
        try:
            self._jobs.image = self._books.image()
            watched = adopt_all(self._flights, self._books, self._jobs, self._clock) if resumed else 0
            for trial in self._books.settled_trials():
                self._note_best(trial)
            made = self._spent().launches
            yield Begun(tune_id=self._books.tune_id, resumed=resumed, launches=made, in_flight=watched)
            yield from self._rounds()
        except interruptions():
            self._books.hurry()
            with suppress(StoreError):  # the jobs are cancelled first, and are looked at when the tune is gone on with
                self._flights.end_all("interrupted by the user")
            raise
        except StoreError:
            raise
        except CubicMLError as error:
            with suppress(StoreError):  # why the tune ended is told in any case
                self._flights.end_all("the tune ended")
                self._books.finished({"error": str(error)})
            raise
        result = self._result()
        yield result
        # Asked on, it was told: a tune that ends before, in whatever way, is gone on with, and tells it again.
        self._books.finished({"result": _as_json(result)})

    def _rounds(self) -> Iterator[Step]:
        while True:
            for finished in self._flights.watch():
                self._idle = False
                self._foresight.hear(finished)
                yield self._ended(finished)
                self._refuse(finished)
            self._end_with_budget()
            yield from self._refill()
            if not self._flights.under_way:
                return
            self._end_hopeless()
            self._think_ahead()
            if self._flights.under_way:
                yield glance(self._prepared, self._books, self._flights, spent=self._spent(), best=self._best)
            self._sleep()

    def _refill(self) -> Iterator[Step]:
        request = self._prepared.request
        if self._idle or (request.rounds and self._flights.under_way):
            return
        while len(self._flights.under_way) < request.parallel:
            left = request.budget.launches_left(self._spent(), parallel=request.parallel)
            ahead = self._foresight.take(launches_left=left)
            planned = ("search", ahead) if ahead is not None else self._next(left) if left > 0 else None
            if planned is None:
                self._idle = True
                return
            purpose, suggestion = planned
            number = self._books.number(self._books.next_launch_id())
            yield Launching(number=number, purpose=purpose, suggestion=suggestion)
            finished = self._flights.launch(suggestion, purpose)
            if isinstance(finished, FinishedLaunch):
                yield self._ended(finished)
                self._refuse(finished)
                self._clock.sleep(_AFTER_REFUSAL_S)

    def _next(self, left: int) -> tuple[str, Suggestion] | None:
        began = self._clock.now()
        self._books.ledger.refresh()
        planned = next_launch(
            self._prepared,
            self._trials(),
            launches_left=left,
            known=self._books.others(),
            advisor=self._advisor,
        )
        self._foresight.thought_s = (self._clock.now() - began).total_seconds()
        return planned

    def _trials(self) -> list[Trial]:
        """Return all trials; what is in flight starts now: here it is known not to be lost, however long it queues.

        The ranks of a job that is requeued tell an end, and the job goes on: while it is in flight it is not over.
        """
        found = [self._books.ledger.of_launch(pending.launch_id) for pending in self._flights.under_way]
        now = self._books.now().isoformat()
        waiting = {trial.trial_id: replace(trial, started_at=now) for trial in found if trial and not trial.state.ended}
        waiting |= {
            trial.trial_id: replace(trial, state=State.RUNNING, started_at=now, ended_at="", reason="")
            for trial in found
            if trial is not None and trial.state in {State.INFRASTRUCTURE, State.UNKNOWN}
        }
        return [waiting.get(trial.trial_id, trial) for trial in self._books.ledger.trials()]

    def _think_ahead(self) -> None:
        spent, parallel = self._spent(), self._prepared.request.parallel
        left = self._prepared.request.budget.launches_left(spent, parallel=parallel)
        is_full = len(self._flights.under_way) >= parallel
        if is_full and self._foresight.pays(launches_left=left, usual_run_s=spent.launch_hours * 3600):
            planned = self._next(left)
            self._foresight.keep(planned[1] if planned is not None and planned[0] == "search" else None)

    def _refuse(self, finished: FinishedLaunch) -> None:
        measured = (
            trial.measurement is not None
            and trial.measurement.throughput(self._prepared.space.objective) is not None
            and trial.trial_id != finished.trial.trial_id
            and matches(trial, self._prepared.workload)
            for trial in self._books.ledger.trials()
        )
        own = config_key(self._prepared.current)
        refuse_to_go_on(
            self._prepared,
            finished,
            self._books.settled_trials(),
            measured_before=any(measured),
            awaits_own=any(config_key(pending.config) == own for pending in self._flights.under_way),
        )

    def _spent(self) -> Spent:
        return self._books.spent(self._world_size, self._flights.running_s())

    def _end_with_budget(self) -> None:
        budget = self._prepared.request.budget
        if budget.is_used_up(self._spent()):
            for pending in self._flights.under_way:
                self._flights.cancellation(pending, State.STOPPED_EARLY, f"the budget of {budget} was spent")

    def _end_hopeless(self) -> None:
        now = self._clock.now()
        if (now - self._read_store).total_seconds() < _STORE_EVERY_S:
            return
        self._read_store = now
        self._books.ledger.refresh()
        candidates = [
            pending for pending in self._flights.under_way if pending.purpose == "search" and not pending.cancellation
        ]
        for pending in candidates:
            trial = self._books.ledger.of_launch(pending.launch_id)
            if trial is None or trial.state is not State.RUNNING or trial.measurement is None:
                continue
            others = [other for other in self._books.own_trials() if other.launch_id != pending.launch_id]
            why = early_stop_reason(trial, others, objective=self._prepared.space.objective)
            if why:
                self._flights.cancellation(pending, State.STOPPED_EARLY, why)

    def _sleep(self) -> None:
        self._clock.sleep(max(_POLL_S, self._flights.next_look_s()))
        if (self._clock.now() - self._told_alive).total_seconds() >= ALIVE_EVERY_S:
            self._told_alive = self._clock.now()
            self._books.alive()

    def _ended(self, finished: FinishedLaunch) -> Ended:
        pending, trial = finished.pending, finished.trial
        expected = pending.suggestion.throughput if pending.suggestion is not None else None
        self._note_best(trial)
        return Ended(number=pending.number, trial=trial, throughput=self._throughput(trial), expected=expected)

    def _note_best(self, trial: Trial) -> None:
        best, value = self._throughput(self._best), self._throughput(trial)
        if value is not None and (best is None or value > best):
            self._best = trial

    def _throughput(self, trial: Trial | None) -> float | None:
        return throughput_of(trial, self._prepared.space.objective)

    def _result(self) -> TuneResult:
        self._books.ledger.refresh()
        trials = self._books.ledger.trials()
        best, comparison = winner_of(self._prepared, trials, known=self._books.others(), advisor=self._advisor)
        account = FinalReport()
        if best is not None:
            snapshot = snapshot_of(self._prepared, trials, seed=self._prepared.request.seed)
            account = self._advisor.account(snapshot, best.config)
        return TuneResult(
            comparison=comparison,
            best=best,
            launches=self._spent().launches,
            device_hours=self._books.device_hours(self._world_size),
            command=_command(self._prepared, best) if best is not None else (),
            tune_id=self._books.tune_id,
            confidence=account.confidence,
            worths=account.worths,
        )


def _as_json(result: TuneResult) -> dict[str, object]:
    return {**asdict(result), "claims_gain": bool(result.comparison and result.comparison.claims_gain)}


def _command(prepared: Prepared, best: Suggestion) -> tuple[str, ...]:
    placed = place_config(
        prepared.component.launch, prepared.space, best.config, store=prepared.store_url, origin=Origin.USER
    )
    return prepared.request.component, *prepared.component.arguments(placed.launch)
