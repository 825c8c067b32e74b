"""Run-to-run noise from repeated measurements (random-effects meta-analysis), and their combination with a prediction.

The error of a measurement has two independent parts. A run estimates the first itself: its ``uncertainty``. The second
is constant within a run and differs between runs: nodes, neighbours, the day. Only repeats reveal it, those of other
workloads too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.space.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors import Prediction
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

RepeatedMeasurements: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""Throughputs of one config, and the uncertainty of each."""

# Log-normal prior of the noise: median, and log deviations between sites and between the workloads of a site. Quiet
# machines repeat within 0.5 to 2 per cent, shared clusters within 2 to 10. The middle half of the prior covers 1.6 to
# 5.5 per cent, and its root mean square is 6.7. Of the medians and widths tried on simulated histories of 1 to 10 per
# cent noise (``benchmarks/promises.py``), these gave interval coverage closest to nominal.
_MEDIAN_NOISE, _SITE_SD, _WORKLOAD_SD = 0.03, 0.75, 0.5
_OUTLIER_SHARE = 0.1  # share of workloads whose noise is an outlier, uniform over the grid
_MAX_GROUPS = 3000  # repeated configs used
_REPEAT_FACTS = frozenset({"device", "n_params", *STANDARD_PARAMETERS})  # observed facts that repeats must share
_GRID = np.geomspace(0.001, 1.0, 70)
_MIN_VARIANCE = 1e-6  # least variance of a run: two equal measurements do not prove zero noise


def repeat_noise(
    trials: Iterable[Trial], *, objective: str = "tokens_per_second", elsewhere: Iterable[Trial] = ()
) -> float:
    """Return the standard deviation of the logarithm of throughput from run to run; see ``pooled_noise``.

    Args:
        trials: of the workload in question, or of many; workloads are kept apart.
        objective: name of the throughput.
        elsewhere: trials of other workloads, or of other days.

    >>> from torchx_cubicml.records.trial import Trial
    >>> runs = [Trial.completed(workload={}, config={"a": 1}, tokens_per_second=speed) for speed in (90.0, 110.0)]
    >>> round(repeat_noise([]), 3), round(repeat_noise(runs), 3), round(repeat_noise([*runs, *runs]), 3)
    (0.067, 0.131, 0.118)
    """
    own = chain.from_iterable(repeated_measurements(trials, objective=objective))
    return pooled_noise(own, repeated_measurements(elsewhere, objective=objective))


def repeated_measurements(trials: Iterable[Trial], *, objective: str) -> list[list[RepeatedMeasurements]]:
    """Return the measurements of each config measured more than once, one list per workload.

    Launches recorded without a space file have unknown configs, so they are not repeats of one another.
    """
    keys: dict[int, Hashable] = {}  # trials read from a store share equal mappings

    def key_of(facts: Config) -> Hashable:
        if id(facts) not in keys:
            keys[id(facts)] = tuple(sorted(facts.items()))
        return keys[id(facts)]

    groups: defaultdict[Hashable, defaultdict[Hashable, list[tuple[float, float]]]]
    groups = defaultdict(lambda: defaultdict(list))
    trials = list(trials)  # an id is unique only while its object lives
    for trial in trials:
        value = trial.throughput(objective)
        if trial.config and value is not None and trial.measurement is not None:
            shared = tuple(sorted((name, trial.observed[name]) for name in trial.observed.keys() & _REPEAT_FACTS))
            measurements = groups[key_of(trial.workload)][key_of(trial.config), shared]
            measurements.append((value, trial.uncertainty(objective)))
    repeated = ([each for each in configs.values() if len(each) > 1] for configs in groups.values())
    return [
        [(tuple(value for value, _ in each), tuple(uncertainty for _, uncertainty in each)) for each in workload]
        for workload in repeated
        if workload
    ]


def pooled_noise(
    own: Iterable[RepeatedMeasurements], elsewhere: Iterable[Iterable[RepeatedMeasurements]] = ()
) -> float:
    """Return the run-to-run standard deviation of the logarithm of throughput, pooled over repeats within configs.

    This is the root of the mean square under the noise's posterior: a random-effects meta-analysis by restricted
    likelihood. The uncertainties that runs report explain their part of the differences.

    Args:
        own: of configs of the workload; those measured once do not count.
        elsewhere: of other workloads, one list each; they estimate the usual noise of this site. A workload whose
            program changed between its launches differs wildly, and has little weight.

    >>> round(pooled_noise([((90.0, 100.0, 111.0), (0.0, 0.0, 0.0)), ((5.0,), (0.0,))]), 3)
    0.109
    >>> round(pooled_noise([((90.0, 100.0, 111.0), (0.1, 0.1, 0.1))]), 3)
    0.053
    """
    return math.sqrt(float(_posterior(own, elsewhere) @ _GRID**2))


def median_noise(
    own: Iterable[RepeatedMeasurements], elsewhere: Iterable[Iterable[RepeatedMeasurements]] = ()
) -> float:
    """Return the posterior median of the run-to-run noise, for a predictor that also fits the noise to its residuals.

    >>> round(median_noise([]), 3)
    0.03
    """
    probabilities = _posterior(own, elsewhere)
    return float(np.interp(0.5, np.cumsum(probabilities) - 0.5 * probabilities, _GRID))


def _posterior(
    own: Iterable[RepeatedMeasurements], elsewhere: Iterable[Iterable[RepeatedMeasurements]]
) -> NDArray[np.float64]:
    """Return the posterior probability of each noise level of the grid, given all repeats."""
    logs = np.log(_GRID)
    workload_given_site = np.exp(-0.5 * ((logs[:, None] - logs) / _WORKLOAD_SD) ** 2)  # workload noise given the site's
    workload_given_site /= workload_given_site.sum(axis=1, keepdims=True)
    site = -0.5 * ((logs - math.log(_MEDIAN_NOISE)) / _SITE_SD) ** 2
    for likelihood in _log_likelihoods(elsewhere):
        site += np.log(
            (1.0 - _OUTLIER_SHARE) * workload_given_site @ _normalized(likelihood) + _OUTLIER_SHARE / len(logs)
        )
    return _normalized(np.log(_normalized(site) @ workload_given_site) + _log_likelihoods([own]).sum(axis=0))


def _normalized(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _log_likelihoods(workloads: Iterable[Iterable[RepeatedMeasurements]]) -> NDArray[np.float64]:
    """Return the restricted log likelihood of each workload's repeats at each noise level of the grid.

    Up to a constant per workload, float64 ``[n_workloads, n_levels]``; workloads without measurements are left out.
    A config measured once adds nothing.
    """
    repeated = [(workload, group) for workload, groups in enumerate(workloads) for group in groups]
    repeated = repeated[-_MAX_GROUPS:]
    if not repeated:
        return np.zeros((0, len(_GRID)))
    logs = np.log(np.concatenate([values for _, (values, _) in repeated]))
    known = np.concatenate([uncertainties for _, (_, uncertainties) in repeated]) ** 2
    sizes = np.array([len(values) for _, (values, _) in repeated])
    starts = np.cumsum(sizes) - sizes
    likelihoods = []
    for noise in _GRID:
        weights = 1.0 / (noise**2 + known + _MIN_VARIANCE)
        totals = np.add.reduceat(weights, starts)
        centres = np.repeat(np.add.reduceat(weights * logs, starts) / totals, sizes)
        likelihoods.append(np.add.reduceat(np.log(weights) - weights * (logs - centres) ** 2, starts) - np.log(totals))
    firsts = np.unique([workload for workload, _ in repeated], return_index=True)[1]
    return np.asarray(0.5 * np.add.reduceat(np.array(likelihoods).T, firsts), dtype=np.float64)


def updated_forecast(predicted: Prediction, measured: Sequence[RepeatedMeasurements], *, noise: float) -> Prediction:
    """Return the posterior from a prediction and measurements, weighted by precision; NaN where there is neither.

    Args:
        predicted: prior of the true values, from the surrogate.
        measured: measurements of each config, ``[n]``; there may be none.
        noise: standard deviation of the logarithm from run to run, > 0, added to each uncertainty in quadrature.
    """
    logarithm, spread = predicted.logarithm.copy(), predicted.spread.copy()
    for index, (values, uncertainties) in enumerate(measured):
        if not values:
            continue
        weights = [1.0 / (noise**2 + each**2) for each in uncertainties]
        centre, precision = np.average(np.log(values), weights=weights), sum(weights)
        if np.isfinite(logarithm[index]):
            prior = max(spread[index], 1e-6) ** -2
            centre, precision = np.average([centre, logarithm[index]], weights=[precision, prior]), precision + prior
        logarithm[index], spread[index] = centre, precision**-0.5
    return replace(predicted, logarithm=logarithm, spread=spread)
