"""How far runs of one config differ beyond what each tells of itself, and what noisy measurements say together.

A measurement is off by two independent parts. One run tells the first of itself: its ``uncertainty``. The second is the
same for all steps of a run and another for the next one: its nodes, its neighbours, the day. Only repeats show that
one, and not only those of the workload that is asked about.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.trial import Config, Trial

Repeated: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""Throughputs of one config, and the uncertainty of each."""

# Before repeats are seen the noise is log-normal: median, and log deviation from site to site and from one workload of
# a site to the next. Quiet machines repeat within half a per cent to two, shared clusters within two to ten: half of
# the belief lies between 1.6 and 5.5 per cent, and the root of its mean square is 6.7. Of the medians and widths tried
# on made-up histories of 1 to 10 per cent (``benchmarks/promises.py``) it came nearest to what intervals promise.
_USUAL_NOISE, _OF_SITES, _OF_WORKLOADS = 0.03, 0.75, 0.5
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

    >>> from torchx_cubicml.trial import Trial
    >>> runs = [Trial.completed(workload={}, config={"a": 1}, tokens_per_second=speed) for speed in (90.0, 110.0)]
    >>> round(repeat_noise([]), 3), round(repeat_noise(runs), 3), round(repeat_noise([*runs, *runs]), 3)
    (0.067, 0.131, 0.118)
    """
    return pooled_noise(repeats_of(trials, objective=objective), repeats_of(elsewhere, objective=objective))


def repeats_of(trials: Iterable[Trial], *, objective: str) -> list[Repeated]:
    """Return what was measured of each config of each workload that was measured more than once, seen to do the same.

    Launches recorded without a space file are of a config that nobody knows, and no repeats of one another.
    """
    keys: dict[int, Hashable] = {}  # trials read from a store share what is alike

    def key_of(facts: Config) -> Hashable:
        if id(facts) not in keys:
            keys[id(facts)] = tuple(sorted(facts.items()))
        return keys[id(facts)]

    groups: defaultdict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    trials = list(trials)  # an id is of one object only while that lives
    for trial in trials:
        value = trial.measurement.throughput(objective) if trial.measurement else None
        if trial.config and value is not None and trial.measurement is not None:
            seen = tuple(sorted((name, trial.observed[name]) for name in trial.observed.keys() & _DONE))
            groups[key_of(trial.workload), key_of(trial.config), seen].append((value, trial.measurement.uncertainty))
    found = (tuple(zip(*group, strict=True)) for group in groups.values() if len(group) > 1)
    return [(values, uncertainties) for values, uncertainties in found]


def pooled_noise(own: Iterable[Repeated], elsewhere: Iterable[Repeated] = ()) -> float:
    """Return the standard deviation of the logarithm from run to run that repeats tell, each config by itself.

    The root of its mean square under what is believed after all repeats: a random-effects meta-analysis by restricted
    likelihood, in which what the runs doubt of themselves explains its part of how far they differ.

    Args:
        own: of configs of the workload; those measured once say nothing.
        elsewhere: of other workloads, each centred by itself: they say what is usual at this site.

    >>> round(pooled_noise([((90.0, 100.0, 111.0), (0.0, 0.0, 0.0)), ((5.0,), (0.0,))]), 3)
    0.109
    >>> round(pooled_noise([((90.0, 100.0, 111.0), (0.1, 0.1, 0.1))]), 3)
    0.053
    """
    logs = np.log(_GRID)
    usual = _chances(_log_likelihood(elsewhere) - 0.5 * ((logs - math.log(_USUAL_NOISE)) / _OF_SITES) ** 2)
    belief = np.exp(-0.5 * ((logs[:, None] - logs) / _OF_WORKLOADS) ** 2) @ usual
    return math.sqrt(float(_chances(_log_likelihood(own) + np.log(belief)) @ _GRID**2))


def _chances(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    chances = np.exp(logs - logs.max())
    return np.asarray(chances / chances.sum(), dtype=np.float64)


def _log_likelihood(groups: Iterable[Repeated]) -> NDArray[np.float64]:
    """Return the restricted log likelihood of repeats at each noise of the grid, but for a common constant."""
    repeated = [group for group in groups if len(group[0]) > 1][-_MOST_GROUPS:]
    if not repeated:
        return np.zeros(len(_GRID))
    logs = np.log(np.concatenate([values for values, _ in repeated]))
    known = np.concatenate([uncertainties for _, uncertainties in repeated]) ** 2
    sizes = np.array([len(values) for values, _ in repeated])
    starts = np.cumsum(sizes) - sizes
    told = []
    for noise in _GRID:
        weights = 1.0 / (noise**2 + known + _QUIETEST)
        totals = np.add.reduceat(weights, starts)
        centres = np.add.reduceat(weights * logs, starts) / totals
        off = weights @ (logs - np.repeat(centres, sizes)) ** 2
        told.append(0.5 * (np.log(weights).sum() - np.log(totals).sum() - off))
    return np.array(told)


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
