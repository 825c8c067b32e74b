"""Conformal prediction intervals, widened for configs unlike the training rows (novelty)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns


NOISE_FLOOR = 0.02  # log spread between repeats of one config on a quiet machine
PRIOR_SPREAD = 0.3  # prior log spread, before anything is measured
PRIOR_TRIALS = 3.0  # weight of that prior, in trials
FEWEST = 10  # errors from which a scale is fitted
_SHARE = 0.8
_Z = 1.2816  # two-sided 80 % of a normal distribution
_LEAST, _MOST = 0.2, 5.0  # a scale outside reflects the small number of errors rather than the spreads


def prior_variance(n_measured: float) -> float:
    """Return the prior variance that remains after ``n_measured`` measurements.

    Args:
        n_measured: sum of the weights of the measurements.
    """
    return PRIOR_SPREAD**2 * PRIOR_TRIALS / (PRIOR_TRIALS + n_measured)


def conformal_scale(errors: NDArray[np.float64], spreads: NDArray[np.float64], *, fewest: int = FEWEST) -> float:
    """Return the conformal factor on ``spreads``: 80 % intervals then cover four fifths of ``errors``.

    Args:
        errors: absolute leave-one-out or out-of-bag errors, ``[n]``.
        spreads: standard deviations that were predicted for them, ``[n]``.
        fewest: number of errors below which the factor is 1.
    """
    if len(errors) < max(fewest, 1):
        return 1.0
    share = min(1.0, _SHARE * (len(errors) + 1) / len(errors))  # finite-sample correction
    return float(np.clip(np.quantile(errors / spreads, share) / _Z, _LEAST, _MOST))


def group_error(errors: NDArray[np.float64], uncertainty: NDArray[np.float64], error: float) -> float:
    """Return the log error of one group of trials: its own conformal one, shrunk to that of all trials.

    Args:
        errors: absolute errors of the group's trials, ``[n]``.
        uncertainty: of their measurements, ``[n]``.
        error: log error of all trials, above 0. It counts as ``PRIOR_TRIALS`` trials.
    """
    own = error * conformal_scale(errors, np.hypot(error, uncertainty), fewest=1)
    n = float((error**2 / (error**2 + uncertainty**2)).sum())
    return math.sqrt((PRIOR_TRIALS * error**2 + n * own**2) / (PRIOR_TRIALS + n))


_PRIOR_DIFFERENCE = 0.15  # prior log difference between two devices, releases or programs beyond the prediction
_PRIOR_CATEGORIES = 2.0  # weight of that prior, in categories of one fact
_PER_DOUBLING = 0.15  # additional log error for each doubling beyond the measured range
_VERSION_RANGE = 1.0  # a number with a range of fewer doublings may be a version
_OUTERMOST = 1.0  # times the square root of n: that many outermost rows on either side do not count as a known range


@dataclass(frozen=True, slots=True, kw_only=True)
class Novelty:
    """Variance that unseen categories and numbers outside the training range add (novelty detection).

    Args:
        categories: column -> codes in the table, NaN among them where values are missing, and variance of the
            logarithm between the categories.
        facts: columns of each fact; a new value counts once per fact.
        numbers: columns of positive numbers.
        low: log2 of the lower end of each known range, without the outermost rows, ``[n_numbers]``.
        high: log2 of the upper end, likewise.
        ends: log2 of the very smallest and the very largest, ``[2, n_numbers]``.
    """

    categories: dict[int, tuple[NDArray[np.float64], float]]
    facts: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    ends: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float64], columns: Columns, rest: NDArray[np.float64]) -> Self:
        """Return the novelty detector fitted on ``features``, float64 ``[n, n_columns]``, n >= 1.

        Args:
            features: encoded rows that were measured.
            columns: meaning of the columns.
            rest: logarithm of measured over predicted throughput, predicted without the categories, ``[n]``.
        """
        facts: defaultdict[str, list[int]] = defaultdict(list)
        sources = [block.source for block in columns.blocks for _ in block.names]
        for index, source in enumerate(sources):
            if columns.categorical[index]:
                facts[source].append(index)
        categorical = [column for each in facts.values() for column in each]
        numbers = [
            index for index, flag in enumerate(columns.categorical) if not flag and _positive(features[:, index])
        ]
        logarithms = np.sort(np.log2(features[:, numbers]), axis=0)
        n_outermost = int(_OUTERMOST * np.sqrt(len(features))) - 1
        return cls(
            categories={
                index: (np.unique(features[:, index]), _between_variance(features[:, index], rest))
                for index in categorical
            },
            facts=tuple(map(tuple, facts.values())),
            numbers=tuple(numbers),
            low=logarithms[n_outermost],
            high=logarithms[-1 - n_outermost],
            ends=logarithms[[0, -1]],
        )

    def of_categories(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of the logarithm that new categories add, float64 ``[n]``.

        A number that hardly varies counts as a new category just outside its range: it may be a version.
        """
        total = _PRIOR_DIFFERENCE**2 * self._new_versions(features).sum(axis=1)
        for columns in self.facts:
            total += np.max([self._column_variance(features[:, index], index) for index in columns], axis=0)
        return np.asarray(total, dtype=np.float64)

    def of_numbers(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of the logarithm that numbers beyond the known range add, float64 ``[n]``."""
        logarithms = self._log2_numbers(features)
        outside = np.maximum(self.low - logarithms, 0.0) + np.maximum(logarithms - self.high, 0.0)
        outside = np.where(np.isfinite(outside), outside, 0.0)
        return np.asarray((_PER_DOUBLING * outside.sum(axis=1)) ** 2)

    def _log2_numbers(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log2(features[:, self.numbers]), dtype=np.float64)

    def _new_versions(self, features: NDArray[np.float64]) -> NDArray[np.bool_]:
        logarithms, (low, high) = self._log2_numbers(features), self.ends
        beyond = np.maximum(low - logarithms, logarithms - high)
        return np.asarray((high - low < _VERSION_RANGE) & (beyond > 1e-9) & (beyond < _VERSION_RANGE), dtype=np.bool_)

    def _column_variance(self, column: NDArray[np.float64], index: int) -> NDArray[np.float64]:
        seen, variance = self.categories[index]
        new = ~np.isin(column, seen) & ~(np.isnan(column) & np.isnan(seen).any())
        return np.where(new, variance, 0.0)


def _positive(column: NDArray[np.float64]) -> bool:
    known = column[~np.isnan(column)]
    return len(known) == len(column) and bool((known > 0.0).all())


def _between_variance(column: NDArray[np.float64], residuals: NDArray[np.float64]) -> float:
    """Return the variance between the medians of categories, less the part due to noise, shrunk to the prior."""
    groups = [residuals[column == code] for code in np.unique(column[~np.isnan(column)])]
    groups = [group for group in groups if len(group) > 1]
    noise = np.mean([np.median(np.abs(group - np.median(group))) ** 2 * 2.2 / len(group) for group in groups] or [0.0])
    medians = np.array([np.median(group) for group in groups] or [0.0])
    among = max(float(np.mean((medians - medians.mean()) ** 2) - noise), 0.0)
    count = len(groups) - 1 if groups else 0
    return float((count * among + _PRIOR_CATEGORIES * _PRIOR_DIFFERENCE**2) / (count + _PRIOR_CATEGORIES))
