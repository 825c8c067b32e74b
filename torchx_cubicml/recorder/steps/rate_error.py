"""Standard error of one run's throughput as an estimate of the launch's long-run rate; pure functions.

The rate is a ratio estimator, work over time. Its standard error comes from the long-run variance of its residuals.
That is the spectral density at frequency zero of an autoregressive process fitted to them (Heidelberger and Welch
1981). The fit uses Burg's method, with the order chosen by AICc. Positive autocorrelation (slow phases) widens the
error; a stall at every fifth step does not.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BLOCKS = 512  # blocks with a residual: the fit takes linear time, and the training waits for it
_EDGE = 1.0 / 24.0  # of the squared residual of the slowest step: a run may end just before the next such step
_NORMAL = 1.645  # quantile 0.95 of the normal distribution
# Quantile 0.95 of Student's t by degrees of freedom; between them it is almost linear in their reciprocal.
_STUDENT = (
    (1.0, 6.314), (2.0, 2.920), (3.0, 2.353), (4.0, 2.132), (6.0, 1.943), (10.0, 1.812), (20.0, 1.725),
    (60.0, 1.671), (math.inf, _NORMAL),
)  # fmt: skip


def relative_error(work: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Return the standard error of the logarithm of ``sum(work) / sum(seconds)`` as an estimate of the long-run rate.

    It is scaled such that 1.645 of it on either side is a 90 % interval, by Student's t. The degrees of freedom are the
    effective number of independent blocks. ``None`` for fewer than three blocks.

    Args:
        work: work of consecutive blocks, >= 0, in any unit.
        seconds: durations of the same blocks, > 0.

    >>> relative_error([8.0] * 40, [1.0] * 40)
    0.0
    """
    if len(work) < 3 or sum(work) <= 0:
        return None
    work, seconds = _merged(work), _merged(seconds)
    n, rate = len(work), sum(work) / sum(seconds)
    residuals = [amount - rate * time for amount, time in zip(work, seconds, strict=True)]
    variance = sum(each * each for each in residuals) / n
    if variance <= (1e-12 * sum(work) / n) ** 2:
        return 0.0
    long_run, order = _long_run_variance(residuals)
    independent = min(n * variance / long_run, n)
    student = _student(max(independent - 1 - order, 1.0 if n < 6 else 2.0))
    edge = _EDGE * max(map(abs, residuals)) ** 2
    return student / _NORMAL * math.sqrt(n * long_run + edge) / sum(work)


def _long_run_variance(series: Sequence[float]) -> tuple[float, int]:
    """Return the sum of all autocovariances of a zero-mean series, and the order of the fitted process."""
    n = len(series)
    innovations, coefficients = _burg(series, most=min(int(10 * math.log10(n)), n // 4))
    order, total = len(coefficients), sum(coefficients)
    if order:  # short series underestimate autocorrelation: Kendall's correction, extended to any order
        more = max(1 + 3 * total if order == 1 else (order + 1) * (1 + total), 0.0) / n
        total = min(total + min(more, (1 - total) / 2), 1 - 0.5 / n**0.5)
    return innovations * n / (n - order - 1) / (1 - total) ** 2, order


def _burg(series: Sequence[float], *, most: int) -> tuple[float, list[float]]:
    """Return innovation variance and coefficients of the autoregressive process with the smallest AICc."""
    n = len(series)
    variance = sum(each * each for each in series) / n
    least = 1e-14 * variance
    forward, backward = list(series[1:]), list(series[:-1])
    coefficients: list[float] = []
    best = n * math.log(variance), variance, coefficients
    for order in range(1, most + 1):
        power = sum(one * one for one in forward) + sum(one * one for one in backward)
        if not power:
            break
        reflection = 2 * sum(one * other for one, other in zip(forward, backward, strict=True)) / power
        mirrored = [one - reflection * other for one, other in zip(coefficients, reversed(coefficients), strict=True)]
        coefficients = [*mirrored, reflection]
        variance *= 1 - reflection * reflection
        if variance <= least:
            break
        criterion = n * math.log(variance) + 2 * order * n / (n - order - 2)
        best = min(best, (criterion, variance, coefficients), key=lambda candidate: candidate[0])
        both = list(zip(forward, backward, strict=True))
        forward = [one - reflection * other for one, other in both[1:]]
        backward = [other - reflection * one for one, other in both[:-1]]
    return best[1], best[2]


def _merged(amounts: Sequence[float]) -> list[float]:
    size = -(-len(amounts) // _MOST_BLOCKS)
    return [sum(amounts[start : start + size]) for start in range(0, len(amounts), size)]


def _student(freedom: float) -> float:
    pairs = pairwise(_STUDENT)
    (fewer, above), (more, below) = next((one, other) for one, other in pairs if freedom <= other[0])
    share = (1 / freedom - 1 / more) / (1 / fewer - 1 / more)
    return below + share * (above - below)
