"""Ineffective parameters: requested at several values, observed at one, and measured alike within the noise.

What was observed alone proves nothing: a script may shard by itself what the recorder sees as one strategy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.workload import collapsed, value_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial

_LARGEST_EFFECT = 0.025  # root mean square of the relative differences from their mean
_LARGEST_ERROR = 0.07  # standard deviation of a mean throughput up to which it is compared: noise of a usual site
_TAIL = 1.645  # standard deviations above which five per cent of a normal distribution lie


def ineffective_parameters(
    own: Sequence[Trial],
    *,
    observed_as: Mapping[str, str],
    free: Collection[str],
    objective: str,
    noise: Callable[[], float],
) -> tuple[str, ...]:
    """Return the parameters of which observations and measurements agree that they have no effect.

    Launches that differ in such a parameter alone (and in what is derived from it) differ in throughput by no more
    than the noise explains, by a chi-square test at five per cent, and by less than 2.5 per cent. Without such
    launches no parameter is ineffective.

    Args:
        own: trials of the workload.
        observed_as: parameter -> name of the fact under which it is observed.
        free: names of the parameters that are not derived.
        objective: name of the throughput.
        noise: returns the standard deviation of the logarithm of throughput from run to run; called if needed.
    """
    names = _observed_alike(own, observed_as)
    if not names:
        return ()
    run_to_run = noise()
    return tuple(name for name in names if _is_measured_alike(own, name, free, objective, run_to_run))


def _observed_alike(own: Iterable[Trial], observed_as: Mapping[str, str]) -> list[str]:
    """Return the parameters that were requested at two or more values and always observed with one."""
    requested: defaultdict[str, set[Hashable]] = defaultdict(set)
    observed: defaultdict[str, set[Hashable]] = defaultdict(set)
    for trial in own:
        for name, fact in observed_as.items():
            if name in trial.config and fact in trial.observed:
                requested[name].add(value_key(collapsed(trial.config[name])))
                observed[name].add(value_key(collapsed(trial.observed[fact])))
    return sorted(name for name in requested if len(requested[name]) > 1 and len(observed[name]) == 1)


def _is_measured_alike(own: Iterable[Trial], name: str, free: Collection[str], objective: str, noise: float) -> bool:
    others = [each for each in free if each != name]
    groups: defaultdict[str, defaultdict[Hashable, list[tuple[float, float]]]]
    groups = defaultdict(lambda: defaultdict(list))
    for trial in own:
        throughput = trial.throughput(objective)
        if throughput is None or trial.measurement is None or name not in trial.config:
            continue
        rest = config_key({each: trial.config[each] for each in others if each in trial.config})
        weight = 1.0 / (noise**2 + trial.measurement.uncertainty**2)
        groups[rest][value_key(collapsed(trial.config[name]))].append((math.log(throughput), weight))
    chi_square, total_weight, freedom = 0.0, 0.0, 0
    for of_values in groups.values():
        weights = np.array([sum(weight for _, weight in each) for each in of_values.values()])
        logs = np.array([sum(log * weight for log, weight in each) for each in of_values.values()]) / weights
        is_known = weights >= _LARGEST_ERROR**-2
        if is_known.sum() > 1:
            logs, weights = logs[is_known], weights[is_known]
            chi_square += float(weights @ (logs - np.average(logs, weights=weights)) ** 2)
            total_weight += float(weights.sum())
            freedom += len(logs) - 1
    if not freedom:
        return False
    return chi_square <= _most_by_chance(freedom) and chi_square <= _LARGEST_EFFECT**2 * total_weight


def _most_by_chance(freedom: int) -> float:
    """Return the 95 % quantile of chi-square, by the cube-root approximation of Wilson and Hilferty (1931)."""
    variance = 2.0 / (9.0 * freedom)
    return float(freedom * (1.0 - variance + _TAIL * math.sqrt(variance)) ** 3)
