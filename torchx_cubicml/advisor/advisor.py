"""Trials in, suggestions out: what to launch next to learn most, and what is known to be best.

Pure and without state: everything is rebuilt from the trials each time, so a killed process loses nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.acquisition import Acquisition, pick_apart
from torchx_cubicml.advisor.outlook import Outlook
from torchx_cubicml.advisor.reasons import against_baseline, nearest_tried, without_effect
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history import matches
from torchx_cubicml.noise import Belief
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.climb import Climb
from torchx_cubicml.searchers.design import first_batch
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.suggestion import Suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torchx_cubicml.searchers import Searcher
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config, Trial, Workload


_DESIGNED = 8  # launches of a workload after which the predictor alone chooses
_TOO_RISKY = 0.35  # probability to fit under which a designed launch is left out
_SMALL = 20_000  # legal configs that are rather listed than searched
_SMALL_FOR_A_LAUNCH = 2_000  # the same where a user waits
_POOL = 40  # good configs per suggestion, from which a batch that differs is picked
_CLIMBED = 5  # good configs from which a climb begins
_SAFE = 0.95  # probability to fit that an ordinary launch asks of a config that was never run
_ENOUGH_TO_EXTRAPOLATE = 8  # ended trials before an ordinary launch may run a config that was never run
_WORTH_CHANGING = 1.01  # predicted gain under which the user's own config stays


def suggest(
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    count: int = 1,
    seed: int = 0,
) -> list[Suggestion]:
    """Return up to ``count`` distinct configs to launch next, the most telling first.

    While the workload has few trials: the user's own config, then a designed batch. Afterwards: what promises the
    largest improvement and fits. Never a config that was launched already, is under way, or is known not to fit; where
    none is left, the list is short or empty.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config.
        trials: of any workload, in any order; running and planned ones count as under way.
        count: how many are wanted, >= 1.
        seed: of all randomness.

    Raises:
        SpaceError: the space cannot be bound to the workload, or ``count`` is not positive.
    """
    if count < 1:
        raise SpaceError(f"count must be >= 1, got {count}")
    rng = np.random.default_rng(seed)
    bound = space.bind(workload=workload, current=current)
    with one_thread():
        outlook = Outlook.of(bound, workload=workload, current=current, trials=trials, rng=rng)
        reasons = {identity(config): (config, why) for config, why in _designed(outlook, current)}
        chosen = list(reasons.values())[:count]
        if len(chosen) < count:
            found = _searched(outlook, [config for config, _ in chosen], count=count - len(chosen), rng=rng)
            chosen += [(config, "") for config in found]
        return _told(outlook, chosen, current)


def best_known(
    space: SearchSpace, *, workload: Workload, current: Config, trials: Iterable[Trial], seed: int = 0
) -> Suggestion | None:
    """Return what an ordinary launch should run: the config of highest posterior mean, never a gamble.

    A measured config is judged by its prediction and its own measurements together. One that was never run is returned
    only if its whole 80 % interval stands above the best measured one and it almost surely fits. The user's own config
    stays unless another promises a gain of a per cent.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config.
        trials: of any workload, in any order.
        seed: of all randomness.

    Returns:
        The suggestion, whose config is ``current`` where nothing better is known; ``None`` where no legal config of
        this workload was measured yet.

    Raises:
        SpaceError: the space cannot be bound to the workload.
    """
    rng = np.random.default_rng(seed)
    bound = space.bind(workload=workload, current=current)
    trials = list(trials)
    if not any(trial.measurement is not None and matches(trial, workload) for trial in trials):
        return None  # without the time that learning takes
    with one_thread():
        outlook = Outlook.of(bound, workload=workload, current=current, trials=trials, rng=rng)
        return _best(outlook, current, rng)


def _best(outlook: Outlook, current: Config, rng: np.random.Generator) -> Suggestion | None:
    measured = outlook.measured()
    if not measured:
        return None
    beliefs = [belief for belief in outlook.beliefs(measured) if belief is not None]
    best, belief = max(zip(measured, beliefs, strict=True), key=lambda pair: pair[1].throughput)
    why = "the fastest of the configs measured so far, by prediction and measurements together"
    bold = _beyond(outlook, belief, rng)
    if bold is not None:
        best, why = bold, "not run yet, but predicted faster than all that was measured even at the low end"
    told = _told(outlook, [(best, why)], current)[0]
    if told.gain is not None and told.gain < _WORTH_CHANGING:
        return _told(outlook, [(current, "your own config: nothing known is faster by a per cent")], current)[0]
    return told


def _designed(outlook: Outlook, current: Config) -> Iterator[tuple[Config, str]]:
    if outlook.n_trials >= _DESIGNED:
        return
    measured = outlook.measured()
    best = max(measured, key=lambda config: max(outlook.records[identity(config)].measured), default=None)
    points = [
        point for point in first_batch(outlook.space, current=current, best=best) if not outlook.settled(point.config)
    ]
    fits = outlook.forecast([point.config for point in points]).fits if points else np.empty(0)
    for point, chance in zip(points, fits, strict=True):
        if chance >= _TOO_RISKY:
            yield point.config, f"untried first guess: {point.why}"


def _searched(outlook: Outlook, chosen: Sequence[Config], *, count: int, rng: np.random.Generator) -> list[Config]:
    if outlook.knowledge.measurements_included:
        return _climbed(outlook, chosen, count=count, rng=rng)
    acquisition = Acquisition(outlook)
    pool = _searcher(outlook).search(outlook.space, acquisition, count=_POOL * count + len(chosen), rng=rng)
    taken = {identity(config) for config in chosen}
    pool = [config for config in pool if identity(config) not in taken]
    under_way = [record.config for record in outlook.records.values() if record.open]
    return pick_apart(outlook.space, pool, acquisition(pool), count=count, taken=[*chosen, *under_way]) if pool else []


def _climbed(outlook: Outlook, chosen: Sequence[Config], *, count: int, rng: np.random.Generator) -> list[Config]:
    """Return configs picked one by one, each as if those before it had been measured at what is expected of them."""
    under_way = [record.config for record in outlook.records.values() if record.open]
    outlook = outlook.believing([*chosen, *under_way])
    measured = outlook.measured()
    order = np.argsort(-outlook.forecast(measured).logarithm, kind="stable")[:_CLIMBED]
    tops = [measured[index] for index in order.tolist()]
    picked: list[Config] = []
    for _ in range(count):
        found = Climb(start=tuple(tops)).search(outlook.space, Acquisition(outlook), count=_CLIMBED, rng=rng)
        if not found:
            break
        picked.append(found[0])
        outlook = outlook.believing(found[:1])
        tops = [*tops[:_CLIMBED], *found[1:]]
    return picked


def _searcher(outlook: Outlook) -> Searcher:
    if outlook.space.size(limit=_SMALL + 1) <= _SMALL:
        return Exhaustive()
    return Evolution(start=_fastest(outlook))


def _quick_searcher(outlook: Outlook) -> Searcher:
    if outlook.space.size(limit=_SMALL_FOR_A_LAUNCH + 1) <= _SMALL_FOR_A_LAUNCH:
        return Exhaustive()
    return Evolution(start=_fastest(outlook), population=40, children=250, generations=3, climbs=2)


def _fastest(outlook: Outlook) -> tuple[Config, ...]:
    measured = sorted(outlook.measured(), key=lambda config: -max(outlook.records[identity(config)].measured))
    return tuple(measured[:20])


def _beyond(outlook: Outlook, best: Belief, rng: np.random.Generator) -> Config | None:
    """Return the config never run whose low end stands highest, if that is above ``best`` and it surely fits."""
    if outlook.n_trials < _ENOUGH_TO_EXTRAPOLATE:
        return None

    def low_end(configs: Sequence[Config]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        forecast = outlook.forecast(configs)
        tried = np.array([outlook.settled(config) for config in configs])
        return np.where((forecast.fits < _SAFE) | tried, -np.inf, forecast.logarithm - 1.2816 * forecast.spread)

    found = _quick_searcher(outlook).search(outlook.space, low_end, count=1, rng=rng)
    return found[0] if found and low_end(found)[0] > np.log(best.throughput) else None


def _told(outlook: Outlook, chosen: Sequence[tuple[Config, str]], current: Config) -> list[Suggestion]:
    if not chosen:
        return []
    configs = [config for config, _ in chosen]
    *beliefs, baseline = outlook.beliefs([*configs, current])
    record = outlook.records.get(identity(current))
    if record is not None and record.out_of_memory:
        baseline = None
    fits = outlook.forecast(configs).fits.tolist()
    plain = [
        _suggestion(outlook, config, (belief, baseline), chance)
        for config, belief, chance in zip(configs, beliefs, fits, strict=True)
    ]
    return [replace(item, reason=_reason(outlook, item, why)) for item, (_, why) in zip(plain, chosen, strict=True)]


def _suggestion(
    outlook: Outlook, config: Config, beliefs: tuple[Belief | None, Belief | None], chance: float
) -> Suggestion:
    belief, baseline = beliefs
    gain = None
    if belief is not None and baseline is not None:
        # Two independent beliefs; a config compared with itself gains nothing for certain.
        spread = 0.0 if belief == baseline else math.hypot(belief.spread, baseline.spread)
        gain = Belief(belief.throughput / baseline.throughput, spread)
    return Suggestion(
        config=config,
        throughput=belief.throughput if belief else None,
        low=belief.quantile(0.1) if belief else None,
        high=belief.quantile(0.9) if belief else None,
        probability_to_fit=chance,
        reason="",
        n_trials=outlook.n_trials,
        baseline_throughput=baseline.throughput if baseline else None,
        gain=gain.throughput if gain else None,
        gain_low=gain.quantile(0.1) if gain else None,
        gain_high=gain.quantile(0.9) if gain else None,
    )


def _reason(outlook: Outlook, suggestion: Suggestion, why: str) -> str:
    parts = [why]
    if suggestion.gain is not None and suggestion.gain_low is not None and suggestion.gain_high is not None:
        told = against_baseline(suggestion.gain, suggestion.gain_low, suggestion.gain_high)
        parts.append(f"expected {told}" if suggestion.gain_low < suggestion.gain_high else "")
    if not why:
        parts.append(nearest_tried(suggestion.config, outlook.measured()) or "chosen to cover what was not tried yet")
    parts += [without_effect(outlook.ineffective), *outlook.advice]
    return "; ".join(part for part in parts if part)
