"""Comparison of measurements that a test states, without their times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor import comparison
from torchx_cubicml.predictors.measurement_error import ErrorModel, Launches

if TYPE_CHECKING:
    from torchx_cubicml.advisor.comparison import Comparison, Repeats


def compare(baseline: Repeats, best: Repeats, *, objective: str) -> Comparison:
    """Compare two configs by these measurements alone."""
    throughputs = [*baseline.throughputs, *best.throughputs]
    n = len(throughputs)
    launches = Launches(
        logarithm=np.log(throughputs),
        error=np.array([*baseline.uncertainties, *best.uncertainties] or [0.0] * n),
        load=np.zeros(n),
        time=np.full(n, math.nan),
        config=np.repeat([0, 1], [len(baseline.throughputs), len(best.throughputs)]),
    )
    return comparison.compare(baseline, best, ErrorModel.unknown().gain(launches, 1, 0), objective=objective)
