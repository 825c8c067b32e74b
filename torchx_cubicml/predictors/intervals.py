"""Prediction intervals: conformal quantiles, widened for configs unlike those seen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns


NOISE_FLOOR = 0.02  # log spread between repeats of one config on a quiet machine
PRIOR_SPREAD = 0.3  # log spread believed before anything was measured
PRIOR_TRIALS = 3.0  # how many trials that belief weighs
FEWEST = 10  # errors from which a scale is learned
_SHARE = 0.8
_Z = 1.2816  # two-sided 80 % of a normal distribution
_LEAST, _MOST = 0.2, 5.0  # a scale beyond says more of the errors' number than of the spreads


def prior_variance(n_measured: float) -> float:
    """Return what is left of the variance that was believed before anything was measured.

    Args:
        n_measured: measurements, each counting by its weight.
    """
    return PRIOR_SPREAD**2 * PRIOR_TRIALS / (PRIOR_TRIALS + n_measured)


def conformal_scale(errors: NDArray[np.float64], spreads: NDArray[np.float64], *, fewest: int = FEWEST) -> float:
    """Return the factor on ``spreads`` that makes 80 % intervals hold four fifths of ``errors``, 1 for too few.

    Args:
        errors: absolute ones of rows predicted without themselves, ``[n]``.
        spreads: standard deviations that were predicted for them, ``[n]``.
        fewest: errors without which nothing is scaled.
    """
    if len(errors) < fewest:
        return 1.0
    share = min(1.0, _SHARE * (len(errors) + 1) / len(errors))  # the correction for a finite sample
    return float(np.clip(np.quantile(errors / spreads, share) / _Z, _LEAST, _MOST))


_USUAL = 0.15  # log difference between two devices, releases or programs beyond what is predicted
_CATEGORIES = 2.0  # as many of a fact as that belief weighs
_DOUBLING = 0.15  # log error more for each doubling beyond the range of what was measured
_VERSIONS = 1.0  # doublings over which a number that hardly varies stands
_FEW = 1.0  # the outermost rows on either side, as many as the root of all, do not make a range known


@dataclass(frozen=True, slots=True, kw_only=True)
class Novelty:
    """What a table knows.

    Args:
        categories: column -> codes that were seen, NaN among them where values were missing, and variance of the
            logarithm among them.
        facts: columns of one fact, which is new only once.
        numbers: columns of positive numbers.
        low: log2 of the smallest of each that is known, ``[n_numbers]``.
        high: of the largest.
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
        """Return what is known of ``features``, float64 ``[n, n_columns]``, n >= 1.

        Args:
            features: encoded rows that were measured.
            columns: what the columns mean.
            rest: logarithm of measured over what is predicted without knowing categories, ``[n]``.
        """
        facts: defaultdict[str, list[int]] = defaultdict(list)
        sources = [block.source for block in columns.blocks for _ in block.names]
        for index, source in enumerate(sources):
            if columns.categorical[index]:
                facts[source].append(index)
        told = [column for each in facts.values() for column in each]
        numbers = [
            index for index, flag in enumerate(columns.categorical) if not flag and _positive(features[:, index])
        ]
        places = np.sort(np.log2(features[:, numbers]), axis=0)
        few = int(_FEW * np.sqrt(len(features))) - 1
        return cls(
            categories={index: (np.unique(features[:, index]), _variance(features[:, index], rest)) for index in told},
            facts=tuple(map(tuple, facts.values())),
            numbers=tuple(numbers),
            low=places[few],
            high=places[-1 - few],
            ends=places[[0, -1]],
        )

    def of_categories(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of the logarithm that new categories add, float64 ``[n]``.

        A number that hardly varies and now is beyond all that were seen counts as one: it may be a version.
        """
        total = _USUAL**2 * self._versions(features).sum(axis=1)
        for columns in self.facts:
            total += np.max([self._of_column(features[:, index], index) for index in columns], axis=0)
        return np.asarray(total, dtype=np.float64)

    def of_numbers(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance that numbers beyond the range add, float64 ``[n]``."""
        places = self._places(features)
        outside = np.maximum(self.low - places, 0.0) + np.maximum(places - self.high, 0.0)
        outside = np.where(np.isfinite(outside), outside, 0.0)
        return np.asarray((_DOUBLING * outside.sum(axis=1)) ** 2)

    def _places(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log2(features[:, self.numbers]), dtype=np.float64)

    def _versions(self, features: NDArray[np.float64]) -> NDArray[np.bool_]:
        places, (low, high) = self._places(features), self.ends
        beyond = np.maximum(low - places, places - high)
        return np.asarray((high - low < _VERSIONS) & (beyond > 1e-9) & (beyond < _VERSIONS), dtype=np.bool_)

    def _of_column(self, column: NDArray[np.float64], index: int) -> NDArray[np.float64]:
        seen, variance = self.categories[index]
        new = ~np.isin(column, seen) & ~(np.isnan(column) & np.isnan(seen).any())
        return np.where(new, variance, 0.0)


def _positive(column: NDArray[np.float64]) -> bool:
    known = column[~np.isnan(column)]
    return len(known) == len(column) and bool((known > 0.0).all())


def _variance(column: NDArray[np.float64], rest: NDArray[np.float64]) -> float:
    """Return the variance among the means of categories, less what chance makes of it."""
    groups = [rest[column == code] for code in np.unique(column[~np.isnan(column)])]
    groups = [group for group in groups if len(group) > 1]
    noise = np.mean([np.median(np.abs(group - np.median(group))) ** 2 * 2.2 / len(group) for group in groups] or [0.0])
    medians = np.array([np.median(group) for group in groups] or [0.0])
    among = max(float(np.mean((medians - medians.mean()) ** 2) - noise), 0.0)
    count = len(groups) - 1 if groups else 0
    return float((count * among + _CATEGORIES * _USUAL**2) / (count + _CATEGORIES))
