"""How far repeats of one config differ, and what a few noisy measurements say together with a prediction."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.trial import Trial

_USUAL_NOISE = 0.02  # log standard deviation between repeats on a quiet machine
_USUAL_WEIGHT = 2  # how many degrees of freedom that belief weighs


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


def repeat_noise(trials: Iterable[Trial], *, objective: str = "tokens_per_second") -> float:
    """Return the standard deviation of the logarithm of one measurement, pooled over configs measured more than once.

    Two per cent is believed before repeats are seen, and soon outweighed by them.

    Args:
        trials: of one workload or many; workloads are kept apart.
        objective: name of the throughput.

    >>> from torchx_cubicml.trial import Trial
    >>> runs = [Trial.completed(workload={}, config={}, tokens_per_second=speed) for speed in (90.0, 100.0, 111.0)]
    >>> round(repeat_noise([]), 3), round(repeat_noise(runs), 3)
    (0.02, 0.075)
    """
    groups: defaultdict[object, list[float]] = defaultdict(list)
    for trial in trials:
        value = trial.measurement.throughput(objective) if trial.measurement else None
        if value is not None:
            key = (tuple(sorted(trial.workload.items())), tuple(sorted(trial.config.items())))
            groups[key].append(value)
    return pooled_noise(groups.values())


def pooled_noise(repeats: Iterable[Sequence[float]]) -> float:
    """Return the same of the throughputs of each config, which may be none.

    >>> round(pooled_noise([(90.0, 100.0, 111.0), (5.0,), ()]), 3)
    0.075
    """
    squares, freedom = _USUAL_WEIGHT * _USUAL_NOISE**2, _USUAL_WEIGHT
    for values in filter(None, repeats):
        logarithms = [math.log(value) for value in values]
        centre = fmean(logarithms)
        squares += sum((value - centre) ** 2 for value in logarithms)
        freedom += len(logarithms) - 1
    return math.sqrt(squares / freedom)


def believe(predicted: Belief | None, measured: Sequence[float], *, noise: float) -> Belief | None:
    """Return prediction and measurements weighed by their precision; ``None`` where there is neither.

    Args:
        predicted: what the predictor says of the true value.
        measured: throughputs measured, each off by ``noise``.
        noise: standard deviation of the logarithm of one measurement, > 0.
    """
    if not measured:
        return predicted
    centre, precision = fmean(map(math.log, measured)), len(measured) / noise**2
    if predicted is None:
        return Belief(math.exp(centre), precision**-0.5)
    prior = max(predicted.spread, 1e-6) ** -2
    mixed = (precision * centre + prior * math.log(predicted.throughput)) / (precision + prior)
    return Belief(math.exp(mixed), (precision + prior) ** -0.5)
