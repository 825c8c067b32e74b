"""Memory limit of recommenders: the odds that the tables and the dense part of the fullest rank fit in its device.

The formula's bytes get one factor, and the process has a constant part. Both are MAP estimates from the peaks and the
ends of recorded launches. TorchRec's planner places tables in what it does not reserve, so they have a limit of their
own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.recommender_memory import TABLE_PARTS, recommender_memory_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout

_USABLE = 0.92  # share of the memory
_STEEPNESS = 6.0  # log odds per doubling
_OTHER_FAILURES = -3.0  # log odds of a failure for another reason
_RESERVED = 1e9  # bytes of the device's context and of libraries
_FACTOR_SD, _RESERVED_SD = 0.5, 0.7  # prior standard deviations of their logarithms
_NOISE = 0.1  # log error of a peak up to which the loss is quadratic, beyond it linear
_OFFSETS = tuple(range(-6, 7))  # of a grid, in its steps
_STEPS = (0.5, 0.1)  # of one grid after the other, in prior standard deviations
_MOST_LOGIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderLimit:
    """Memory limit of recommenders.

    Args:
        factor: on the bytes of the formula.
        reserved: bytes of a process besides.
    """

    factor: float = 1.0
    reserved: float = _RESERVED

    def pressure(self, layout: RecommenderLayout) -> NDArray[np.float64]:
        """Return log2 of the peak over the usable memory, float64 ``[n]``; the larger one of device and planner."""
        return _pressure(_bytes(layout), layout, self.factor, self.reserved)

    def log_odds(self, layout: RecommenderLayout) -> NDArray[np.float64]:
        """Return log odds that a training runs, including other reasons of failure, float64 ``[n]``."""
        runs = np.exp(_log_runs(self.pressure(layout)))
        return np.asarray(np.log(np.maximum(runs, 1e-12)) - np.log1p(-np.minimum(runs, 1.0 - 1e-12)))


def calibrate_limit(
    layout: RecommenderLayout,
    *,
    ran: NDArray[np.float64],
    certain: NDArray[np.float64],
    peak_bytes: NDArray[np.float64],
) -> RecommenderLimit:
    """Return the limit of the largest posterior, on a grid over both constants and on a finer one around its best.

    Args:
        layout: ``n`` trainings, all covered; none at all is legal.
        ran: 1.0 where the training ran, float64 ``[n]``.
        certain: 1.0 where it is known to have failed for memory, float64 ``[n]``.
        peak_bytes: measured on the fullest device, NaN where unknown, float64 ``[n]``.
    """
    if not len(ran):
        return RecommenderLimit()
    parts, has_peak = _bytes(layout), np.isfinite(peak_bytes)

    def negative_log_posterior(deviations: tuple[float, float]) -> float:
        limit = _limit(deviations)
        errors = np.log((parts.sum(axis=1) * limit.factor + limit.reserved)[has_peak] / peak_bytes[has_peak])
        robust_loss = (np.sqrt(1.0 + (errors / _NOISE) ** 2) - 1.0).sum()
        likelihood = _log_likelihood(_pressure(parts, layout, limit.factor, limit.reserved), ran, certain)
        return float(0.5 * (deviations[0] ** 2 + deviations[1] ** 2) + robust_loss - likelihood)

    best = (0.0, 0.0)
    for step in _STEPS:
        grid = [(best[0] + step * one, best[1] + step * other) for one in _OFFSETS for other in _OFFSETS]
        best = min(grid, key=negative_log_posterior)
    return _limit(best)


def _limit(deviations: tuple[float, float]) -> RecommenderLimit:
    """Return the limit whose constants are some prior standard deviations from their medians."""
    return RecommenderLimit(
        factor=float(np.exp(_FACTOR_SD * deviations[0])),
        reserved=float(_RESERVED * np.exp(_RESERVED_SD * deviations[1])),
    )


def _bytes(layout: RecommenderLayout) -> NDArray[np.float64]:
    """Return the bytes of the dense part and of the tables, float64 ``[n, 2]``."""
    parts = recommender_memory_parts(layout)
    tables = np.sum([parts[name] for name in TABLE_PARTS], axis=0)
    return np.column_stack([np.sum(list(parts.values()), axis=0) - tables, tables])


def _pressure(
    parts: NDArray[np.float64], layout: RecommenderLayout, factor: float, reserved: float
) -> NDArray[np.float64]:
    whole = (parts.sum(axis=1) * factor + reserved) / layout.memory
    # A share of 1 is an unknown one: nothing is known of a limit of the planner.
    left = np.where(layout.reserved_share < 1.0, 1.0 - layout.reserved_share, 1.0)
    planned = parts[:, 1] * factor / (layout.memory * left) * _USABLE  # the planner leaves no more than it reserves
    return np.asarray(np.log2(np.maximum(np.maximum(whole, planned) / _USABLE, 1e-9)))


def _log_fits(pressure: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.clip(-_STEEPNESS * pressure, -_MOST_LOGIT, _MOST_LOGIT))


def _log_runs(pressure: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-np.logaddexp(0.0, -_log_fits(pressure)) - np.log1p(np.exp(_OTHER_FAILURES)))


def _log_likelihood(pressure: NDArray[np.float64], ran: NDArray[np.float64], certain: NDArray[np.float64]) -> float:
    runs = _log_runs(pressure)
    unknown_failure = np.log(-np.expm1(np.minimum(runs, -1e-12)))
    failure = np.where(certain > 0.0, -np.logaddexp(0.0, _log_fits(pressure)), unknown_failure)
    return float(np.where(ran > 0.0, runs, failure).sum())
