"""Plan of a tune: the next launch (baseline, initial design, search, repeats that confirm the winner) and the winner.

Both are computed from the trials alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.comparison import Comparison, compared, launches_lacking
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history.passes import comparable
from torchx_cubicml.launch.messages import best_word, better_word
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import FEWEST_TO_CLAIM, repeat_noise
from torchx_cubicml.records.suggestion import Suggestion
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.certain_failures import (
    CertainFailures,
    certain_failures,
    is_early_failure,
    repeated_failure,
)
from torchx_cubicml.tuner.proposer import Snapshot, StudyProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.proposer import Proposer
    from torchx_cubicml.tuner.request import Prepared

_MOST_RIVALS = 2  # configs measured again beside the winner before a gain is claimed
_NOTHING_LEARNED = {State.PLANNED, State.RUNNING, State.STOPPED_EARLY, State.INFRASTRUCTURE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Trials of the workload from before this tune and from this tune, and comparable trials of other workloads.

    A winner is confirmed by this tune's own launches. The measurement that made a config the winner does not count,
    because it was selected for being high.
    """

    before: tuple[Trial, ...]
    own: tuple[Trial, ...]
    elsewhere: tuple[Trial, ...] = ()

    @classmethod
    def of(cls, history: History, known: frozenset[str]) -> Evidence:
        """Sort the trials into groups; ``known`` holds the ids of the trials from before this tune."""
        found = comparable(history)
        return cls(
            before=tuple(trial for trial in found.own if trial.trial_id in known),
            own=tuple(sorted((t for t in found.own if t.trial_id not in known), key=lambda t: t.started_at)),
            elsewhere=tuple(found.others),
        )

    def measured(self, config: Config, objective: str, *, chosen: bool) -> tuple[Trial, ...]:
        """Return this tune's trials that measured ``config``.

        If the config was ``chosen`` by this tune's first measurement of it, that measurement is left out.
        """
        measured = _measurements(self.own, config, objective)
        first_selected_it = chosen and not _measurements(self.before, config, objective)
        return measured[1:] if first_selected_it else measured

    def certain_failures(self, prepared: Prepared) -> CertainFailures:
        """Return the failures of this tune that another launch would repeat."""
        return certain_failures(prepared.space, prepared.current, self.own, self.before)

    def others_measured(self, prepared: Prepared) -> int:
        """Return the number of configs besides the user's own that were measured."""
        objective = prepared.space.objective
        measured = {
            config_key(trial.config) for trial in (*self.before, *self.own) if trial.throughput(objective) is not None
        }
        return len(measured - {config_key(prepared.current)})

    def noise(self, objective: str) -> float:
        """Return the run-to-run noise by this tune's repeats; those of other tunes and workloads serve as a hint."""
        return repeat_noise(self.own, objective=objective, elsewhere=(*self.before, *self.elsewhere))


def plan_launch(
    prepared: Prepared,
    history: History,
    *,
    launches_left: int,
    known: frozenset[str] = frozenset(),
    advisor: Proposer | None = None,
) -> tuple[str, Suggestion] | str:
    """Return the purpose and the suggestion of the next launch, or the reason why there is none, in words.

    The reason ends the tune if no launch is in flight.

    The user's own config comes first. A launch lost to an infrastructure failure is retried once. The last launches
    repeat the own config and the winner in turn, so that a gain can be distinguished from noise. Rivals of the winner
    are repeated once before them, if launches are left for it.

    Args:
        prepared: the checked request.
        history: in the terms of its space.
        launches_left: within the budget.
        known: ids of the trials from before this tune.
        advisor: proposer that replaces the advisor.
    """
    current = prepared.current
    advisor = advisor or StudyProposer.serving(prepared)
    evidence = Evidence.of(history, known)
    own = _own_config(current)
    if not any(
        _is_decisive(trial, current) or _in_flight(trial, current) for trial in (*evidence.before, *evidence.own)
    ):
        return "baseline", own
    retry = _infrastructure_retry(prepared, evidence)
    if retry is not None:
        return "again", retry
    certain = evidence.certain_failures(prepared)
    if certain.repeated is not None:
        return repeated_failure(certain.repeated)
    narrowed = with_set_aside(_with_fewer_repeats(prepared, evidence, launches_left), certain)
    if narrowed is None:
        return _nothing_to_try(certain)
    seed = prepared.request.seed + len(history.trials)
    snapshot = snapshot_of(narrowed, _with_lost_as_failed(history.trials, evidence), seed=seed, known=known)
    return _search_or_confirm(narrowed, evidence, certain, advisor, snapshot, launches_left)


def _with_fewer_repeats(prepared: Prepared, evidence: Evidence, launches_left: int) -> Prepared:
    """Return the request with the repeats that the launches of a budget of hours allow."""
    request = prepared.request
    if request.budget.launches is not None:
        return prepared
    repeats = request.repeats_within(len(evidence.own) + launches_left)
    return prepared if repeats == request.repeats else replace(prepared, request=replace(request, repeats=repeats))


def with_set_aside(prepared: Prepared, certain: CertainFailures) -> Prepared | None:
    """Return the request without the parameters and values that are set aside; ``None`` if no config is legal."""
    space = certain.held(prepared.space, prepared.current)
    if space is prepared.space:
        return prepared
    try:
        space.bind(workload=prepared.workload, current=prepared.current)
    except SpaceError:
        return None
    return replace(prepared, space=space)


def _search_or_confirm(
    prepared: Prepared,
    evidence: Evidence,
    certain: CertainFailures,
    advisor: Proposer,
    snapshot: Snapshot,
    launches_left: int,
) -> tuple[str, Suggestion] | str:
    own = _own_config(prepared.current)
    best = advisor.best_known(snapshot)
    contender = _contender(prepared, evidence, best, partial(advisor.rivals, snapshot), launches_left)
    repeats = _lacking_repeats(prepared, evidence, own, contender)
    enough = _is_enough(prepared, best)
    if enough and not repeats and _confirms(prepared, evidence, best):
        return f"the gain of --target-gain {prepared.request.target_gain:g} is confirmed"
    spare = 0 if enough else launches_left - len(repeats)
    to_repeat = partial(_lacking_rivals, prepared, evidence, contender, partial(advisor.rivals, snapshot))
    rivals = to_repeat()[:spare] if 0 < spare <= _MOST_RIVALS else []
    searches = len(repeats) + len(rivals) < launches_left and not (enough and repeats)
    found: Sequence[Suggestion] = ()
    why = _too_few_left(launches_left, prepared.space.objective)
    if searches and launches_left > _kept_to_confirm(prepared, evidence):
        found, why = _search(prepared, evidence, certain, advisor, snapshot)
    if found:
        return "search", found[0]
    repeats = [*(to_repeat() if spare > _MOST_RIVALS else rivals), *repeats]
    if not _any_other(evidence, prepared.current):
        repeats = []  # nothing to compare the own config with
    if _searching(evidence, prepared.current, contender):
        # A launch in flight may turn out to be the best.
        repeats = [own for each in repeats if each is own and _spares_own(prepared, evidence, launches_left)]
    return ("confirm", repeats[0]) if repeats else why


def _search(
    prepared: Prepared,
    evidence: Evidence,
    certain: CertainFailures,
    advisor: Proposer,
    snapshot: Snapshot,
) -> tuple[Sequence[Suggestion], str]:
    """Return suggestions for a search launch, or the reason why there are none, in words."""
    if _is_idle(prepared, snapshot, advisor):
        return (), f"another launch is expected to gain less than --stop-under {prepared.request.stop_under:g}"
    return _suggested(advisor, snapshot, evidence, certain), _nothing_to_try(certain)


def _too_few_left(launches_left: int, objective: str) -> str:
    left = "1 launch that is left is" if launches_left == 1 else f"{launches_left} launches that are left are"
    return f"the {left} too few to find a {better_word(objective)} config and confirm it"


def _spares_own(prepared: Prepared, evidence: Evidence, launches_left: int) -> bool:
    """Return whether a repeat of the own config leaves enough launches to confirm a winner not known yet."""
    own = _repeats_of(evidence, prepared.current, prepared.space.objective, chosen=False)
    return own < FEWEST_TO_CLAIM or launches_left > FEWEST_TO_CLAIM


def _nothing_to_try(certain: CertainFailures) -> str:
    kept = f" with your own {' and '.join(certain.kept)}" if certain.kept else ""
    left_out = f" without {' and '.join(certain.value_texts())}" if certain.values else ""
    return f"no legal config is left to try{kept}{left_out}"


def _suggested(
    advisor: Proposer, snapshot: Snapshot, evidence: Evidence, certain: CertainFailures
) -> Sequence[Suggestion]:
    """Return the suggestions for a search launch: other configs first, then those that failed early once.

    A config of a certain failure is not among them.
    """
    early = {trial.trial_id for trial in evidence.own if is_early_failure(trial)}
    sure = {trial.trial_id for trial in evidence.own if config_key(trial.config) in certain.configs}
    for given_up in (early | sure, sure):
        # The state of a launch that had its full time: its config is not launched again.
        trials = [replace(t, state=State.TIMEOUT) if t.trial_id in given_up else t for t in snapshot.trials]
        found = advisor.suggest(replace(snapshot, trials=trials) if given_up else snapshot)
        found = [each for each in found if config_key(each.config) not in certain.configs]
        if found or not early - sure:
            return found
    return []


def _kept_to_confirm(prepared: Prepared, evidence: Evidence) -> int:
    """Return the launches that must be left after a search, so that a gain of what it finds can be claimed.

    None where no claim is possible, or one is already.
    """
    objective = prepared.space.objective
    if not prepared.request.can_claim:
        return 0
    own = _repeats_of(evidence, prepared.current, objective, chosen=False)
    if own >= FEWEST_TO_CLAIM and _best_confirmed(prepared, evidence) is not None:
        return 0
    return max(0, FEWEST_TO_CLAIM - own) + FEWEST_TO_CLAIM


def _contender(
    prepared: Prepared,
    evidence: Evidence,
    best: Suggestion | None,
    rivals_of: Callable[[Config], Sequence[Suggestion]],
    launches_left: int,
) -> Suggestion | None:
    """Return the config to confirm: the best known, or another one if the launches left allow a claim for that alone.

    The measurements that confirm a winner may show that another config is the best known, or leave the own config the
    best known because its measurements are imprecise. Then the last launches repeat its likeliest rival.
    """
    if best is None or not prepared.request.can_claim:
        return best
    objective = prepared.space.objective
    own = _repeats_of(evidence, prepared.current, objective, chosen=False)
    lacking = max(0, FEWEST_TO_CLAIM - own)

    def can_confirm(config: Config) -> bool:
        repeats = _repeats_of(evidence, config, objective, chosen=True)
        return lacking + FEWEST_TO_CLAIM - repeats <= launches_left

    if config_key(best.config) == config_key(prepared.current):
        is_end = launches_left <= lacking + FEWEST_TO_CLAIM
        rivals = rivals_of(prepared.current) if is_end else ()
        return next((each for each in rivals if can_confirm(each.config)), best)
    if can_confirm(best.config):
        return best
    other = _best_confirmed(prepared, evidence, least=1)
    return other if other is not None and can_confirm(other.config) else best


def _repeats_of(evidence: Evidence, config: Config, objective: str, *, chosen: bool) -> int:
    """Return the number of measurements of ``config`` that count, with those in flight."""
    measured = len(evidence.measured(config, objective, chosen=chosen))
    return measured + _unmeasured(evidence.own, config, measured=measured)


def _any_other(evidence: Evidence, current: Config) -> bool:
    """Return whether a config other than the own one was measured, or may be by a launch in flight."""
    return any(
        config_key(trial.config) != config_key(current) and (trial.measurement is not None or not trial.state.ended)
        for trial in (*evidence.before, *evidence.own)
    )


def snapshot_of(
    prepared: Prepared, trials: Sequence[Trial], *, seed: int, known: frozenset[str] = frozenset()
) -> Snapshot:
    """Build the input of a proposer; ``known`` holds the ids of the trials from before this tune."""
    workload, current = prepared.workload, prepared.current
    return Snapshot(space=prepared.space, workload=workload, current=current, trials=trials, seed=seed, known=known)


def winner_of(
    prepared: Prepared, history: History, *, known: frozenset[str], advisor: Proposer | None = None
) -> tuple[Suggestion | None, Comparison | None]:
    """Return the incumbent (the best known config) and the comparison of its repeats with the user's own config.

    If the incumbent was not measured again but other configs were, the fastest of those is returned.
    """
    advisor = advisor or StudyProposer.serving(prepared)
    best = advisor.best_known(snapshot_of(prepared, history.trials, seed=prepared.request.seed))
    if best is None:
        return None, None
    evidence = Evidence.of(history, known)
    comparison = _compared(prepared, evidence, best)
    lacks = comparison is None or comparison.launches_lacking > 0
    if lacks and config_key(best.config) != config_key(prepared.current):
        # The last measurements have changed the incumbent, and no launch is left to repeat it.
        confirmed = _best_confirmed(prepared, evidence)
        if confirmed is None and not evidence.measured(best.config, prepared.space.objective, chosen=True):
            confirmed = _best_confirmed(prepared, evidence, least=1)
        if confirmed is not None:
            return confirmed, _compared(prepared, evidence, confirmed)
    return best, comparison


def lacking_for_claim(prepared: Prepared, evidence: Evidence, best: Suggestion) -> int:
    """Return the launches until the own config and ``best`` can be compared for a claim; 0 for the own one."""
    if config_key(best.config) == config_key(prepared.current):
        return 0
    objective = prepared.space.objective
    counts = (
        len(evidence.measured(config, objective, chosen=chosen))
        for config, chosen in ((prepared.current, False), (best.config, True))
    )
    return launches_lacking(*counts)


def _best_confirmed(prepared: Prepared, evidence: Evidence, *, least: int = FEWEST_TO_CLAIM) -> Suggestion | None:
    """Return the fastest config with at least so many repeated measurements, as a legal config of the space."""
    space = prepared.space.without_rules().bind(workload=prepared.workload, current=prepared.current)
    objective = space.objective
    confirmed: dict[str, tuple[float, Config]] = {}
    for trial in evidence.own:
        repeats = evidence.measured(trial.config, objective, chosen=True)
        if len(repeats) < least or trial.config not in space:
            continue
        if (config := space.decode(space.encode(trial.config))) is not None:
            found = [value for each in repeats if (value := each.throughput(objective)) is not None]
            confirmed[config_key(config)] = (fmean(found), config)
    confirmed.pop(config_key(prepared.current), None)
    best = max(confirmed.values(), key=lambda pair: pair[0], default=None)
    if best is None:
        return None
    return replace(
        _own_config(best[1]), throughput=best[0], reason=f"the {best_word(objective)} config that was measured again"
    )


def _compared(prepared: Prepared, evidence: Evidence, best: Suggestion) -> Comparison | None:
    """Return the comparison by all launches of the workload; ``None`` where this tune did not measure one of both."""
    objective = prepared.space.objective
    if not all(_measurements(evidence.own, config, objective) for config in (prepared.current, best.config)):
        return None
    trials = (*evidence.before, *evidence.own)
    return compared(prepared.current, best.config, trials, objective=objective, elsewhere=evidence.elsewhere)


def _own_config(current: Config) -> Suggestion:
    return Suggestion(
        config=current,
        throughput=None,
        low=None,
        high=None,
        probability_to_fit=1.0,
        reason="your own config",
        n_trials=0,
    )


def _is_decisive(trial: Trial, config: Config) -> bool:
    """Return whether a trial decides ``config``: it was measured, or failed by itself."""
    decided = trial.measurement is not None or trial.state not in _NOTHING_LEARNED
    return decided and config_key(trial.config) == config_key(config)


def _in_flight(trial: Trial, config: Config) -> bool:
    return not trial.state.ended and config_key(trial.config) == config_key(config)


def _unmeasured(trials: Sequence[Trial], config: Config, *, measured: int) -> int:
    """Return the number of launches of ``config`` that count as repeats without a measurement.

    These are launches in flight, and those that failed by themselves, as another one is likely to. A launch that was
    killed (``UNKNOWN``) predicts little: at most max(1, ``measured``) such launches are left out, so as to be repeated.
    """
    key = config_key(config)
    states = [trial.state for trial in trials if trial.measurement is None and config_key(trial.config) == key]
    counted = sum(not state.ended or state not in _NOTHING_LEARNED for state in states)
    repeated = min(states.count(State.UNKNOWN), max(1, measured))
    return counted - repeated


def _searching(evidence: Evidence, current: Config, best: Suggestion | None) -> bool:
    """Return whether a config other than the own one and ``best`` is in flight."""
    contenders = [current, *([best.config] if best is not None else [])]
    return any(
        not trial.state.ended and not any(_in_flight(trial, config) for config in contenders) for trial in evidence.own
    )


def _infrastructure_retry(prepared: Prepared, evidence: Evidence) -> Suggestion | None:
    """Return a config of this tune whose only launch was lost to an infrastructure failure, as a suggestion."""
    space = prepared.space.without_rules().bind(workload=prepared.workload, current=prepared.current)
    launched = Counter(config_key(trial.config) for trial in evidence.own if trial.state is not State.STOPPED_EARLY)
    for trial in evidence.own:
        lost = trial.state is State.INFRASTRUCTURE and trial.measurement is None
        if not lost or launched[config_key(trial.config)] > 1:
            continue
        if config_key(trial.config) == config_key(prepared.current):
            return _own_config(prepared.current)
        config = space.decode(space.encode(trial.config)) if trial.config in space else None
        if config is not None:
            return replace(_own_config(config), reason=f"retry, because its launch was lost: {trial.reason}")
    return None


def _with_lost_as_failed(trials: Sequence[Trial], evidence: Evidence) -> Sequence[Trial]:
    """Return the trials; those of configs lost twice in this tune to infrastructure failures get state ``UNKNOWN``.

    Such a config may run on another day, but this tune spends no more launches on it.
    """
    lost = [t for t in evidence.own if t.state is State.INFRASTRUCTURE and t.measurement is None]
    times = Counter(config_key(trial.config) for trial in lost)
    given_up = {trial.trial_id for trial in lost if times[config_key(trial.config)] > 1}
    if not given_up:
        return trials
    return [replace(trial, state=State.UNKNOWN) if trial.trial_id in given_up else trial for trial in trials]


def _is_enough(prepared: Prepared, best: Suggestion | None) -> bool:
    target = prepared.request.target_gain
    return target is not None and best is not None and best.gain is not None and best.gain >= target


def _is_idle(prepared: Prepared, snapshot: Snapshot, advisor: Proposer) -> bool:
    """Return whether the expected gain of another launch is below the user's threshold ``stop_under``."""
    least = prepared.request.stop_under
    expected = advisor.expected_gain(snapshot) if least is not None else None
    return least is not None and expected is not None and expected < least


def _confirms(prepared: Prepared, evidence: Evidence, best: Suggestion | None) -> bool:
    target, comparison = prepared.request.target_gain, _compared(prepared, evidence, best) if best else None
    return comparison is not None and target is not None and comparison.claims_gain and comparison.gain >= target


def _lacking_repeats(
    prepared: Prepared, evidence: Evidence, own: Suggestion, best: Suggestion | None
) -> list[Suggestion]:
    """Return each contender once per missing measurement, in turn, the least measured first."""
    contenders = [(own, False)]
    if best is not None and config_key(best.config) != config_key(own.config):
        contenders.append((best, True))
    lacking: list[tuple[int, int, Suggestion]] = []
    for order, (contender, chosen) in enumerate(contenders):
        have = len(evidence.measured(contender.config, prepared.space.objective, chosen=chosen))
        have += _unmeasured(evidence.own, contender.config, measured=have)
        lacking += [(repeat, order, contender) for repeat in range(have, prepared.request.repeats_made)]
    return [contender for _, _, contender in sorted(lacking, key=lambda item: item[:2])]


def _lacking_rivals(
    prepared: Prepared,
    evidence: Evidence,
    best: Suggestion | None,
    rivals_of: Callable[[Config], Sequence[Suggestion]],
) -> list[Suggestion]:
    """Return rivals of ``best`` that this tune has not repeated yet, as many as it may still repeat."""
    most = min(_MOST_RIVALS, prepared.request.repeats_made - 1)
    if best is None or most < 1:
        return []
    contenders = {config_key(prepared.current), config_key(best.config)}
    repeated_configs = _launched_again(evidence) - contenders
    if len(repeated_configs) >= most:
        return []
    found = [each for each in rivals_of(best.config) if config_key(each.config) not in contenders | repeated_configs]
    reason = "rival of the winner: measured again before a gain is reported"
    return [replace(each, reason=reason) for each in found[: most - len(repeated_configs)]]


def _launched_again(evidence: Evidence) -> set[str]:
    """Return the ``config_key`` of each config that this tune launched after it was measured."""
    launched = Counter(
        config_key(trial.config)
        for trial in evidence.own
        if trial.measurement is not None or trial.state not in _NOTHING_LEARNED or not trial.state.ended
    )
    before = {config_key(trial.config) for trial in evidence.before if trial.measurement is not None}
    measured = {config_key(trial.config) for trial in evidence.own if trial.measurement is not None} | before
    return {key for key, count in launched.items() if key in measured and count > (key not in before)}


def _measurements(trials: Sequence[Trial], config: Config, objective: str) -> tuple[Trial, ...]:
    key = config_key(config)
    measured = (trial for trial in trials if trial.measurement and config_key(trial.config) == key)
    return tuple(each for each in measured if each.throughput(objective) is not None)
