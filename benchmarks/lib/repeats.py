"""Scores of a table's first measurements as predictions of a simulated second measurement.

The noise is that of the table's own twins, jobs that differ in ``zero_stage`` alone: half of the square of their log
ratio each. Each job is measured once more with a twin's deviation drawn by chance. This is no upper bound: a table is
its own truth here, so a model that predicts it, noise included, is better than a second measurement.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial

_DRAWS = 20


def deviations(trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Return log deviations of single measurements, as often positive as negative; one 0 where there are no twins."""
    groups: defaultdict[object, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.measurement is not None and trial.measurement.tokens_per_second is not None:
            alike = {name: value for name, value in trial.config.items() if name != "zero_stage"}
            key = tuple(sorted({**trial.workload, **alike}.items()))
            groups[key].append(float(np.log(trial.measurement.tokens_per_second)))
    pairs = [np.ptp(values) / np.sqrt(2.0) for values in groups.values() if len(values) == 2]
    return np.array([sign * gap for gap in pairs for sign in (1.0, -1.0)] or [0.0], dtype=np.float64)


def tau_of_repeat(throughput: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    """Return Kendall's tau between measured jobs, float64 ``[n]``, and the same measured again."""
    from scipy.stats import kendalltau

    rng = np.random.default_rng(0)
    again = [throughput * np.exp(rng.choice(noise, len(throughput))) for _ in range(_DRAWS)]
    return float(np.mean([kendalltau(throughput, values)[0] for values in again]))


def share_of_repeat(reached: NDArray[np.float64], noise: NDArray[np.float64], k: int) -> float:
    """Return what the best of the first ``k`` of the measured order reaches of the best, measured again."""
    rng = np.random.default_rng(0)
    first = np.argsort(-reached)[:k]
    shares = []
    for _ in range(_DRAWS):
        again = reached * np.exp(rng.choice(noise, len(reached)))
        shares.append(again[first].max() / again.max())
    return float(np.mean(shares))
