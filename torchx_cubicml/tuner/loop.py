"""Main loop of a tune: poll launches, stop hopeless ones, and refill free slots within the budget.

All state is in the store and on the scheduler; the next launch is computed anew from it each time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.pareto_front import frontier_of, measured_points
from torchx_cubicml.errors import CubicMLError, LaunchError, StoreError
from torchx_cubicml.history.objective import measured_objective
from torchx_cubicml.history.passes import OF_TUNE, passed
from torchx_cubicml.history.same_training import (
    batch_contradiction,
    batch_parameters,
    is_same_training,
    kept_batch,
    observed_batch_line,
)
from torchx_cubicml.launch.launch import changed_scheduler_options
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.launch.scheduler import store_doubt, with_option_texts
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import FEWEST_TO_CLAIM
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.records.workload import collapsed, without_refused_values
from torchx_cubicml.tuner.certain_failures import last_line
from torchx_cubicml.tuner.duration import duration_text
from torchx_cubicml.tuner.hook_notices import hook_notices
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.kept_training import with_kept_batch
from torchx_cubicml.tuner.launch_state import FinishedLaunch
from torchx_cubicml.tuner.launches import PendingLaunches
from torchx_cubicml.tuner.lease import ALIVE_EVERY_S, Lease
from torchx_cubicml.tuner.plan import Evidence, lacking_for_claim, plan_launch, snapshot_of, winner_of, with_set_aside
from torchx_cubicml.tuner.polling import StoreRetry, SystemClock
from torchx_cubicml.tuner.prefetch import Prefetch
from torchx_cubicml.tuner.progress import (
    Begun,
    Ended,
    Launching,
    Notice,
    Step,
    TuneResult,
    progress_of,
    throughput_of,
)
from torchx_cubicml.tuner.proposer import FinalReport, StudyProposer
from torchx_cubicml.tuner.request import FEWEST_LAUNCHES
from torchx_cubicml.tuner.resume import adopt_all
from torchx_cubicml.tuner.round_proposer import RoundProposer
from torchx_cubicml.tuner.scheduler.jobs import JobRunner
from torchx_cubicml.tuner.scheduler.torchx_state import interruptions
from torchx_cubicml.tuner.sharing import Sharing, share_host
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.stopping import check_abort, check_repeated, stop_reason, with_last_lines
from torchx_cubicml.tuner.trials import TrialLog
from torchx_cubicml.tuner.unconfirmed import crowding_forecast, unconfirmed_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from datetime import datetime

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.advisor.pareto_front import Frontier
    from torchx_cubicml.history.history import History
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.budget import Spent
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.proposer import Proposer
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.unconfirmed import Unconfirmed

_POLL_S = 0.2
_AFTER_REFUSAL_S = 10.0
_STORE_EVERY_S = 5.0  # between readings of the measurements of running launches


def tune(
    prepared: Prepared, *, jobs: JobRunner | None = None, clock: Clock | None = None, advisor: Proposer | None = None
) -> Generator[Step, None, None]:
    """Run a tune within its budget; yield each step and finally the result.

    An unfinished tune of the same request whose process died is resumed. The tune counts as finished when the generator
    is advanced past the result.

    Args:
        prepared: the checked request.
        jobs: scheduler that replaces the request's own.
        clock: clock that replaces this machine's.
        advisor: proposer that replaces the advisor.

    Raises:
        LaunchError: TorchX can make no request of the command, the first launch fails by the user's own error or
            measures nothing, or one failure repeats.
        StoreError: the store cannot be read or written for minutes; the tune can be resumed.
        KeyboardInterrupt: the user ends the tune; launches in flight are cancelled and recorded first.
            As with the errors above, a note of the error names those that may run on.
    """
    request, clock = prepared.request, clock or SystemClock()
    retry = StoreRetry(clock)
    journal = Journal(prepared.store_url, retry)
    runner = jobs or JobRunner(
        request.scheduler,
        scheduler_args=request.scheduler_args,
        log_dir=str(Path(prepared.scratch) / "logs"),
        workspace=request.workspace,
    )
    if options := prepared.space.scheduler_options:
        runner.check_options(options.values())
    runner.check_request(prepared.component.build())
    lease = Lease.take(journal, request, clock, space_text=Path(request.space).read_text(encoding="utf-8"))
    try:
        with runner:
            trial_log = TrialLog(
                prepared.store_url,
                retry,
                statistic=prepared.space.statistic,
                prices=prepared.space.prices,
                job=prepared.space.job,
                workload=prepared.workload,
            )
            tune_state = TuneState(lease.tune_id, trial_log, journal, clock)
            yield from _Loop(prepared, tune_state, runner, clock, advisor or _proposer(prepared)).run(
                resumed=lease.resumed
            )
    finally:
        lease.close()


def _proposer(prepared: Prepared) -> Proposer:
    kind = RoundProposer if prepared.request.method.predictor is not None else StudyProposer
    return kind.serving(prepared)


class _Loop:
    """Main loop of the process that leads a tune."""

    def __init__(
        self, prepared: Prepared, tune_state: TuneState, jobs: JobRunner, clock: Clock, advisor: Proposer
    ) -> None:
        self._prepared = prepared
        self._tune_state = tune_state
        self._jobs = jobs
        self._clock = clock
        self._advisor = advisor
        self._pending = PendingLaunches(prepared, tune_state, jobs, clock)
        self._wanted = prepared.request.parallel
        self._world_size = prepared.component.launch.world_size or 1
        self._prefetch = Prefetch(request=prepared.request)
        self._best: Trial | None = None  # of this tune
        self._why = ""  # no launch is planned
        self._set_aside: frozenset[str] = frozenset()  # parameters and values, as the user was told
        self._is_budget_checked = False
        self._doubted: set[str] = set()  # launches in doubt, as the user was told
        self._idle = False  # no launch is planned before another one ends
        self._heartbeat_at: datetime = clock.now()
        self._store_read_at: datetime = clock.now()

    def run(self, *, resumed: bool) -> Iterator[Step]:
        try:
            yield from self._lead(resumed=resumed)
        except StoreError as error:
            jobs = "" if self._jobs.is_local else "its jobs keep running; "
            raise StoreError(f"{error}; the tune is unfinished: {jobs}run the same command to resume") from error

    def _lead(self, *, resumed: bool) -> Iterator[Step]:
        try:
            yield from self._begin(resumed=resumed)
            yield from self._rounds()
        except interruptions() as error:
            self._tune_state.hurry()
            with suppress(StoreError):  # the jobs are cancelled first; a resumed tune polls them
                self._cancel_all("interrupted by the user", error)
            raise
        except StoreError:
            raise
        except CubicMLError as error:
            with suppress(StoreError):  # the error itself is raised in any case
                self._cancel_all("the tune ended", error)
                self._tune_state.finished({"error": str(error)})
            raise
        result = self._result()
        yield result
        # The caller has advanced the generator, so it has the result. A tune that ends before is resumed and yields it.
        self._tune_state.finished({"result": result.to_record()})

    def _begin(self, *, resumed: bool) -> Iterator[Step]:
        """Take over the launches of a dead process, and yield what is known before the first round."""
        self._jobs.image = self._tune_state.image()
        in_flight = adopt_all(self._pending, self._tune_state, self._jobs, self._clock) if resumed else 0
        self._infer_objective()
        for trial in self._tune_state.settled_trials():
            self._note_best(trial)
        made = self._spent().launches
        notices = self._notices(made)
        self._share_host()
        yield Begun(
            tune_id=self._tune_state.tune_id,
            resumed=resumed,
            launches=made,
            in_flight=in_flight,
            at_a_time=self._sharing.at_a_time,
        )
        before, objective = () if made else self._evidence().before, self._prepared.space.objective
        forecast = crowding_forecast(before, self._prepared.request.repeats_made, objective=objective)
        texts = filter(None, [self._sharing.text, *notices, duration_text(self._prepared, before), forecast])
        yield from (Notice(text=text) for text in texts)
        yield from self._budget_notice()
        yield from self._doubt_notices()

    def _cancel_all(self, reason: str, error: BaseException) -> None:
        """Cancel all launches; a note of the error names those that may run on."""
        if left := self._pending.cancel_all(reason):
            numbers = f"launch{'es' if len(left) > 1 else ''} {', '.join(str(pending.number) for pending in left)}"
            error.add_note(f"{self._prepared.request.scheduler} did not end {numbers}, which may run on")

    def _notices(self, made: int) -> list[str]:
        """Return notices on what stays as typed, on hooks and the store; ``made`` is the number of launches."""
        doubt = "" if made else store_doubt(self._prepared.store_url, self._prepared.component.launch)
        of_store = [f"{doubt}; use a shared store (--store URL)"] if doubt else []
        return [*self._prepared.notices, *self._hook_notices(made), *self._keep_batch(), *of_store]

    def _hook_notices(self, made: int) -> list[str]:
        """Return notices on the hooks of the space before the first launch; ``made`` is the number of launches."""
        evidence = self._evidence()
        refusals = evidence.certain_failures(self._prepared).refusals
        self._set_aside = frozenset(refusals.texts())
        check = None if made else self._tune_state.trial_log.trials()
        return hook_notices(self._prepared, refusals, recorded=check, own=evidence.before)

    def _rounds(self) -> Iterator[Step]:
        while True:
            for finished in self._pending.watch():
                self._idle = False
                self._prefetch.hear(finished)
                yield self._ended(finished)
                self._abort_if_hopeless(finished)
                yield from self._set_aside_notice(finished)
                yield from (Notice(text=text) for text in self._keep_batch())
                yield from self._budget_notice()
            self._enforce_budget()
            yield from self._refill()
            if not self._pending.under_way:
                yield from (Notice(text=text) for text in self._keep_batch(suspected=True))
                return
            self._stop_early()
            self._prefetch_next()
            if self._pending.under_way:
                yield progress_of(self._prepared, self._tune_state, self._pending, spent=self._spent(), best=self._best)
            self._sleep()

    def _refill(self) -> Iterator[Step]:
        if self._sharing.is_open and self._share_host():
            yield Notice(text=self._sharing.text)
        request = self._prepared.request
        if self._idle or (request.rounds and self._pending.under_way):
            return
        while self._pending.has_room:
            left = request.budget.launches_left(self._spent(), parallel=request.parallel)
            prefetched = self._prefetch.take(launches_left=left)
            if left == 0:
                self._why = request.budget.why_spent(self._spent())
            planned = ("search", prefetched) if prefetched is not None else self._next(left) if left > 0 else None
            if planned is None:
                self._idle = True
                return
            purpose, suggestion = planned
            number = self._tune_state.number(self._tune_state.next_launch_id())
            yield Launching(number=number, purpose=purpose, suggestion=suggestion)
            finished = self._pending.launch(suggestion, purpose)
            if isinstance(finished, FinishedLaunch):
                yield self._ended(finished)
                self._abort_if_hopeless(finished)
                self._clock.sleep(_AFTER_REFUSAL_S)
            yield from self._doubt_notices()

    def _doubt_notices(self) -> Iterator[Notice]:
        """Yield a notice on each launch in doubt that the user was not told of."""
        for pending in self._pending.in_doubt:
            if pending.launch_id not in self._doubted:
                self._doubted.add(pending.launch_id)
                why = f" ({pending.doubt.why})" if pending.doubt and pending.doubt.why else ""
                scheduler = self._prepared.request.scheduler
                text = f"launch {pending.number} may have a job: {scheduler} does not tell{why}"
                yield Notice(text=f"{text}; no launch follows until it does")

    @property
    def _sharing(self) -> Sharing:
        return self._pending.sharing

    def _share_host(self) -> bool:
        """Decide the shares of the host for launches in flight; return whether they differ from those before."""
        before = self._pending.sharing
        own = self._tune_state.own_trials()
        self._pending.sharing = share_host(self._prepared, self._jobs, own, wanted=self._wanted)
        request = replace(self._prepared.request, parallel=self._pending.sharing.at_a_time)
        self._prepared = replace(self._prepared, request=request)
        self._prefetch.request = request
        return self._pending.sharing != before

    def _next(self, left: int) -> tuple[str, Suggestion] | None:
        started = self._clock.now()
        self._tune_state.trial_log.refresh()
        planned = plan_launch(
            self._prepared,
            self._history(),
            launches_left=left,
            known=self._tune_state.others(),
            advisor=self._advisor,
        )
        self._prefetch.compute_s = (self._clock.now() - started).total_seconds()
        if isinstance(planned, str):
            self._why = planned
            return None
        return planned

    def _history(self) -> History:
        """Return the history; trials in flight get the present time as their start.

        They are known not to be lost, however long they queue. A requeued job whose ranks have recorded an end is set
        back to running.
        """
        found = [self._tune_state.trial_log.of_launch(pending.launch_id) for pending in self._pending.under_way]
        now = self._tune_state.now().isoformat()
        replaced = {
            trial.trial_id: replace(trial, started_at=now) for trial in found if trial and not trial.state.ended
        }
        replaced |= {
            trial.trial_id: replace(trial, state=State.RUNNING, started_at=now, ended_at="", reason="")
            for trial in found
            if trial is not None and trial.state in {State.INFRASTRUCTURE, State.UNKNOWN}
        }
        return self._migrated(replaced.get(trial.trial_id, trial) for trial in self._tune_state.trial_log.trials())

    def _migrated(self, trials: Iterable[Trial]) -> History:
        """Return trials in the terms of the space file; those from before this tune only if they did the same work."""
        prepared, before = self._prepared, self._tune_state.others()
        first, *of_earlier = OF_TUNE
        history = first(prepared.history([*trials], self._tune_state.trial_log.digest_keys))
        same = set(map(id, passed(history, *of_earlier).trials))
        return history.where(lambda trial: id(trial) in same or trial.trial_id not in before)

    def _recorded(self) -> History:
        return self._migrated(self._tune_state.trial_log.trials())

    def _infer_objective(self) -> None:
        """Take the objective that the launches so far were measured in, if the space file states none."""
        space, _ = measured_objective(self._recorded())
        self._prepared = replace(self._prepared, space=space)

    def _keep_batch(self, *, suspected: bool = False) -> list[str]:
        """Hold the parameters that launches show to change the global batch; return a notice on each that is new.

        Raises:
            LaunchError: no config is left, or launches of the user's own config contradict the space file.
        """
        prepared = self._prepared
        free = {item.name for item in prepared.space.parameters if len(item.choices) > 1}
        own = self._history().own
        if why := batch_contradiction(prepared.space, own, current=prepared.current):
            raise LaunchError(why)
        single = {name for name, value in prepared.current.items() if not isinstance(collapsed(value), tuple)}
        names = batch_parameters(prepared.space, own, suspected=suspected)
        found = [name for name in names if name in free & single]
        if found:
            where, facts = prepared.request.space, {"workload": prepared.workload, "current": prepared.current}
            space = with_kept_batch(prepared.space, found, where=where, **facts)
            self._prepared = replace(prepared, space=space)
            self._prefetch.keep(None)
        return [observed_batch_line(name) for name in found]

    def _prefetch_next(self) -> None:
        spent, parallel = self._spent(), self._prepared.request.parallel
        left = self._prepared.request.budget.launches_left(spent, parallel=parallel)
        is_full = len(self._pending.under_way) >= parallel
        if is_full and self._prefetch.pays(launches_left=left, usual_run_s=spent.launch_hours * 3600):
            planned = self._next(left)
            self._prefetch.keep(planned[1] if planned is not None and planned[0] == "search" else None)

    def _abort_if_hopeless(self, finished: FinishedLaunch) -> None:
        known, objective = self._recorded(), self._prepared.space.objective
        measured = (
            trial.throughput(objective) is not None and trial.trial_id != finished.trial.trial_id for trial in known.own
        )
        baseline = config_key(self._prepared.current)
        if not self._pending.under_way:
            check_repeated(self._evidence().certain_failures(self._prepared), finished)
        check_abort(
            self._prepared,
            finished,
            self._tune_state.settled_trials(),
            known=known.trials,
            measured_before=any(measured),
            awaits_own=any(config_key(pending.config) == baseline for pending in self._pending.under_way),
        )

    def _evidence(self) -> Evidence:
        return Evidence.of(self._history(), self._tune_state.others())

    def _set_aside_notice(self, finished: FinishedLaunch) -> Iterator[Notice]:
        """Yield a notice if the launch that has just ended shows that a value fails, or each value but the own one."""
        certain = self._evidence().certain_failures(self._prepared)
        values = certain.value_texts()
        new = [name for name in certain.set_aside if name not in self._set_aside]
        new_values = [text for text in values if text not in self._set_aside]
        refused = [text for text in certain.refusals.texts() if text not in self._set_aside]
        self._set_aside = frozenset({*certain.set_aside, *values, *certain.refusals.texts()})
        yield from (Notice(text=text) for text in refused)
        if new:
            names = " and ".join(new)
            stay, them = ("stays", "it") if len(new) == 1 else ("stay", "them")
            sentence = f"{names} {stay} as in your command: each launch that changed {them} failed"
            yield Notice(text=with_last_lines(sentence, finished.last_lines))
        for text in new_values:
            sentence = f"{text} is not tried again: each launch with it failed"
            yield Notice(text=with_last_lines(sentence, finished.last_lines))

    def _budget_notice(self) -> Iterator[Notice]:
        """Yield a notice once if no gain can be claimed within the budget; for hours, once the run time is known."""
        request, spent = self._prepared.request, self._spent()
        if self._is_budget_checked or (request.budget.launches is None and not spent.launch_hours):
            return
        self._is_budget_checked = True
        launches = spent.launches + request.budget.launches_left(spent, parallel=request.parallel)
        if launches < FEWEST_LAUNCHES:
            fits = "" if request.budget.launches is not None else f" fits {launches} launches and"
            yield Notice(
                text=f"the budget of {request.budget}{fits} is too small to claim a gain: that takes at least "
                f"{FEWEST_LAUNCHES} launches, one to find a faster config and two of each to compare"
            )
        elif not request.can_claim:
            yield Notice(
                text=f"with --repeats {request.repeats} no gain can be claimed: that takes --repeats {FEWEST_TO_CLAIM}"
            )

    def _spent(self) -> Spent:
        return self._tune_state.spent(self._world_size, self._pending.running_s(), self._pending.running_on())

    def _enforce_budget(self) -> None:
        budget = self._prepared.request.budget
        if budget.is_exhausted(self._spent()):
            for pending in self._pending.under_way:
                self._pending.cancel(pending, State.STOPPED_EARLY, f"the budget of {budget} was spent")

    def _stop_early(self) -> None:
        now = self._clock.now()
        if (now - self._store_read_at).total_seconds() < _STORE_EVERY_S:
            return
        self._store_read_at = now
        self._tune_state.trial_log.refresh()
        candidates = [
            pending for pending in self._pending.under_way if pending.purpose == "search" and not pending.cancellation
        ]
        for pending in candidates:
            trial = self._tune_state.trial_log.of_launch(pending.launch_id)
            if trial is None or trial.state is not State.RUNNING or trial.measurement is None:
                continue
            others = [other for other in self._tune_state.own_trials() if other.launch_id != pending.launch_id]
            if why := stop_reason(self._prepared, trial, others):
                self._pending.cancel(pending, State.STOPPED_EARLY, why)

    def _sleep(self) -> None:
        self._clock.sleep(max(_POLL_S, self._pending.next_poll_s()))
        if (self._clock.now() - self._heartbeat_at).total_seconds() >= ALIVE_EVERY_S:
            self._heartbeat_at = self._clock.now()
            self._tune_state.alive()

    def _ended(self, finished: FinishedLaunch) -> Ended:
        self._infer_objective()
        pending, trial = finished.pending, without_refused_values(finished.trial)
        expected = pending.suggestion.throughput if pending.suggestion is not None else None
        self._note_best(trial)
        return Ended(
            number=pending.number,
            trial=trial,
            objective=self._prepared.space.objective,
            throughput=self._throughput(trial),
            expected=expected,
            own=self._own_throughput(),
            purpose=pending.purpose,
        )

    def _own_throughput(self) -> float | None:
        """Return the median throughput of the user's own config in this tune; ``None`` if none was measured."""
        own = config_key(self._prepared.current)
        found = [self._throughput(trial) for trial in self._tune_state.own_trials() if config_key(trial.config) == own]
        measured = [value for value in found if value is not None]
        return median(measured) if measured else None

    def _note_best(self, trial: Trial) -> None:
        best, value = self._throughput(self._best), self._throughput(trial)
        if value is not None and (best is None or value > best):
            self._best = trial

    def _throughput(self, trial: Trial | None) -> float | None:
        return throughput_of(trial, self._prepared.space.objective)

    def _result(self) -> TuneResult:
        self._tune_state.trial_log.refresh()
        history = self._recorded()
        best, comparison = winner_of(self._prepared, history, known=self._tune_state.others(), advisor=self._advisor)
        evidence = Evidence.of(history, self._tune_state.others())
        certain = evidence.certain_failures(self._prepared)
        report = FinalReport()
        if best is not None:
            prepared = with_set_aside(self._prepared, certain) or self._prepared
            snapshot = snapshot_of(prepared, history.trials, seed=prepared.request.seed)
            report = self._advisor.account(snapshot, best.config)
        return TuneResult(
            comparison=comparison,
            best=best,
            launches=self._spent().launches,
            device_hours=self._tune_state.device_hours(self._world_size),
            command=_command(self._prepared, best) if best is not None else (),
            scheduler_args=_scheduler_args(self._prepared, best),
            tune_id=self._tune_state.tune_id,
            confidence=report.confidence,
            sensitivities=report.sensitivities,
            launches_lacking=lacking_for_claim(self._prepared, evidence, best) if best is not None else 0,
            others_measured=evidence.others_measured(self._prepared),
            set_aside={name: last_line(trial.reason) for name, trial in certain.set_aside.items()},
            refused=tuple(certain.refusals.texts()),
            values_set_aside={text: last_line(trial.reason) for text, trial in certain.value_texts().items()},
            ending=f"{self._prepared.request.budget.describe_used(self._spent())}: {self._why}",
            frontier=_frontier(self._prepared, evidence),
            unconfirmed=None if comparison and comparison.claims_gain else _unconfirmed(self._prepared, evidence),
        )


def _frontier(prepared: Prepared, evidence: Evidence) -> Frontier | None:
    """Return the frontier of this tune's own launches; ``None`` without a second objective."""
    space = prepared.space
    if not space.second_objective:
        return None
    objectives = (space.objective, space.second_objective)
    trials = _of_same_training(prepared, evidence, evidence.own)
    points = measured_points(trials, objectives, noise=evidence.noise(space.objective))
    return frontier_of(points, objectives, current=prepared.current)


def _unconfirmed(prepared: Prepared, evidence: Evidence) -> Unconfirmed | None:
    own, before = (_of_same_training(prepared, evidence, trials) for trials in (evidence.own, evidence.before))
    return unconfirmed_of(
        prepared.current, own, objective=prepared.space.objective, earlier=before, elsewhere=evidence.elsewhere
    )


def _of_same_training(prepared: Prepared, evidence: Evidence, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials whose config trains as the user's own does, or in another way that the space file permits."""
    space, current, known = prepared.space, prepared.current, [*evidence.own, *evidence.before]
    facts = {"workload": {**prepared.workload, **kept_batch(known, current=current)}, "current": current}
    held = batch_parameters(space, known, suspected=True)
    return [each for each in trials if is_same_training(space, config=each.config, held=held, **facts)]


def _command(prepared: Prepared, best: Suggestion) -> tuple[str, ...]:
    return prepared.component.source.component, *prepared.component.arguments(_placed(prepared, best))


def _scheduler_args(prepared: Prepared, best: Suggestion | None) -> str:
    """Return the ``-cfg`` of the winner; that of the request without one."""
    if best is None:
        return prepared.request.scheduler_args
    changed = changed_scheduler_options(_placed(prepared, best), prepared.component.launch)
    return with_option_texts(prepared.request.scheduler_args, changed) if changed else prepared.request.scheduler_args


def _placed(prepared: Prepared, best: Suggestion) -> Launch:
    typed, store = prepared.component.launch, prepared.store_url
    return place_config(typed, prepared.space, best.config, store=store, origin=Origin.USER).launch
