"""How far runs of one config differ beyond what each tells of itself, and what noisy measurements say together.

A measurement is off by two independent parts. One run tells the first of itself: its ``uncertainty``. The second is the
same for all steps of a run and another for the next one: its nodes, its neighbours, the day. Only repeats show that
one, and not only those of the workload that is asked about.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.space.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config, Trial

Repeated: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""Throughputs of one config, and the uncertainty of each."""

# Before repeats are seen the noise is log-normal: median, and log deviation from site to site and from one workload of
# a site to the next. Quiet machines repeat within half a per cent to two, shared clusters within two to ten: half of
# the belief lies between 1.6 and 5.5 per cent, and the root of its mean square is 6.7. Of the medians and widths tried
# on made-up histories of 1 to 10 per cent (``benchmarks/promises.py``) it came nearest to what intervals promise.
_USUAL_NOISE, _OF_SITES, _OF_WORKLOADS = 0.03, 0.75, 0.5
_STRANGE = 0.1  # share of workloads that say nothing of what is usual
_MOST_GROUPS = 3000  # repeated configs that are looked at
_DONE = frozenset({"device", "n_params", *STANDARD_PARAMETERS})  # observed facts that repeats have in common
_GRID = np.geomspace(0.001, 1.0, 70)
_QUIETEST = 1e-6  # variance of a run: two that agree to the last digit are no proof of none


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of one config's throughput: log-normal.

    Args:
        throughput: median, whole job.
        spread: standard deviation of the logarithm of the true value, without the noise of a new measurement.
    """

    throughput: float
    spread: float

    def quantile(self, q: float) -> float:
        """Return the throughput that the true value stays under with probability ``q``, 0 < q < 1."""
        return self.throughput * math.exp(self.spread * NormalDist().inv_cdf(q))


def repeat_noise(
    trials: Iterable[Trial], *, objective: str = "tokens_per_second", elsewhere: Iterable[Trial] = ()
) -> float:
    """Return the standard deviation of the logarithm of throughput from run to run; see ``pooled_noise``.

    Args:
        trials: of the workload that is asked about, or of many; workloads are kept apart.
        objective: name of the throughput.
        elsewhere: trials of other workloads, or of other days.

    >>> from torchx_cubicml.records.trial import Trial
    >>> runs = [Trial.completed(workload={}, config={"a": 1}, tokens_per_second=speed) for speed in (90.0, 110.0)]
    >>> round(repeat_noise([]), 3), round(repeat_noise(runs), 3), round(repeat_noise([*runs, *runs]), 3)
    (0.067, 0.131, 0.118)
    """
    own = chain.from_iterable(repeats_of(trials, objective=objective))
    return pooled_noise(own, repeats_of(elsewhere, objective=objective))


def repeats_of(trials: Iterable[Trial], *, objective: str) -> list[list[Repeated]]:
    """Return what was measured of each config that was measured more than once, a list for each workload.

    Launches recorded without a space file are of a config that nobody knows, and no repeats of one another.
    """
    keys: dict[int, Hashable] = {}  # trials read from a store share what is alike

    def key_of(facts: Config) -> Hashable:
        if id(facts) not in keys:
            keys[id(facts)] = tuple(sorted(facts.items()))
        return keys[id(facts)]

    groups: defaultdict[Hashable, defaultdict[Hashable, list[tuple[float, float]]]]
    groups = defaultdict(lambda: defaultdict(list))
    trials = list(trials)  # an id is of one object only while that lives
    for trial in trials:
        value = trial.measurement.throughput(objective) if trial.measurement else None
        if trial.config and value is not None and trial.measurement is not None:
            seen = tuple(sorted((name, trial.observed[name]) for name in trial.observed.keys() & _DONE))
            same = groups[key_of(trial.workload)][key_of(trial.config), seen]
            same.append((value, trial.measurement.uncertainty))
    found = (
        [(tuple(value for value, _ in each), tuple(doubt for _, doubt in each)) for each in configs.values()]
        for configs in groups.values()
    )
    repeated = ([each for each in workload if len(each[0]) > 1] for workload in found)
    return [each for each in repeated if each]


def pooled_noise(own: Iterable[Repeated], elsewhere: Iterable[Iterable[Repeated]] = ()) -> float:
    """Return the standard deviation of the logarithm from run to run that repeats tell, each config by itself.

    The root of its mean square under what is believed after all repeats: a random-effects meta-analysis by restricted
    likelihood, in which what the runs doubt of themselves explains its part of how far they differ.

    Args:
        own: of configs of the workload; those measured once say nothing.
        elsewhere: of other workloads, a list for each: they say what is usual at this site. One whose program was
            changed between its launches differs wildly, and says little.

    >>> round(pooled_noise([((90.0, 100.0, 111.0), (0.0, 0.0, 0.0)), ((5.0,), (0.0,))]), 3)
    0.109
    >>> round(pooled_noise([((90.0, 100.0, 111.0), (0.1, 0.1, 0.1))]), 3)
    0.053
    """
    return math.sqrt(float(_believed(own, elsewhere) @ _GRID**2))


def usual_noise(own: Iterable[Repeated], elsewhere: Iterable[Iterable[Repeated]] = ()) -> float:
    """Return the median of the same belief, for a learner that fits the size of the noise to its residuals besides.

    >>> round(usual_noise([]), 3)
    0.03
    """
    chances = _believed(own, elsewhere)
    return float(np.interp(0.5, np.cumsum(chances) - 0.5 * chances, _GRID))


def _believed(own: Iterable[Repeated], elsewhere: Iterable[Iterable[Repeated]]) -> NDArray[np.float64]:
    """Return the probability of each noise of the grid, after all repeats."""
    logs = np.log(_GRID)
    near = np.exp(-0.5 * ((logs[:, None] - logs) / _OF_WORKLOADS) ** 2)  # what is usual, and what one workload has
    near /= near.sum(axis=1, keepdims=True)
    usual = -0.5 * ((logs - math.log(_USUAL_NOISE)) / _OF_SITES) ** 2
    for told in _log_likelihoods(elsewhere):
        usual += np.log((1.0 - _STRANGE) * near @ _chances(told) + _STRANGE / len(logs))
    return _chances(np.log(_chances(usual) @ near) + _log_likelihoods([own]).sum(axis=0))


def _chances(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    chances = np.exp(logs - logs.max())
    return np.asarray(chances / chances.sum(), dtype=np.float64)


def _log_likelihoods(workloads: Iterable[Iterable[Repeated]]) -> NDArray[np.float64]:
    """Return the restricted log likelihood of the repeats of each workload at each noise of the grid.

    But for a constant of each, float64 ``[n_workloads, n_noises]``; workloads without repeats are left out.
    """
    repeated = [(at, group) for at, groups in enumerate(workloads) for group in groups if len(group[0]) > 1]
    repeated = repeated[-_MOST_GROUPS:]
    if not repeated:
        return np.zeros((0, len(_GRID)))
    logs = np.log(np.concatenate([values for _, (values, _) in repeated]))
    known = np.concatenate([uncertainties for _, (_, uncertainties) in repeated]) ** 2
    sizes = np.array([len(values) for _, (values, _) in repeated])
    starts = np.cumsum(sizes) - sizes
    told = []
    for noise in _GRID:
        weights = 1.0 / (noise**2 + known + _QUIETEST)
        totals = np.add.reduceat(weights, starts)
        centres = np.repeat(np.add.reduceat(weights * logs, starts) / totals, sizes)
        told.append(np.add.reduceat(np.log(weights) - weights * (logs - centres) ** 2, starts) - np.log(totals))
    firsts = np.unique([at for at, _ in repeated], return_index=True)[1]
    return np.asarray(0.5 * np.add.reduceat(np.array(told).T, firsts, axis=0), dtype=np.float64)


def believe(
    predicted: Belief | None, measured: Sequence[float], uncertainties: Sequence[float], *, noise: float
) -> Belief | None:
    """Return prediction and measurements weighed by their precision; ``None`` where there is neither.

    Args:
        predicted: what the predictor says of the true value.
        measured: throughputs measured.
        uncertainties: of each of them, as its run told.
        noise: standard deviation of the logarithm from run to run, > 0, by which each is off besides.
    """
    if not measured:
        return predicted
    weights = [1.0 / (noise**2 + each**2) for each in uncertainties]
    precision = sum(weights)
    centre = sum(weight * math.log(value) for weight, value in zip(weights, measured, strict=True)) / precision
    if predicted is None:
        return Belief(math.exp(centre), precision**-0.5)
    prior = max(predicted.spread, 1e-6) ** -2
    mixed = (precision * centre + prior * math.log(predicted.throughput)) / (precision + prior)
    return Belief(math.exp(mixed), (precision + prior) ** -0.5)
