"""Feature matrices for learners: dense standardised numbers, and codes with gaps for histogram trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.features.columns import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# A fact with more categories is a name (of a host, of a program), and one-hot columns for it would swamp the others.
# scikit-learn's histogram trees reject more than 255.
_MAX_ONE_HOT = 24
_CONSTANT = 1e-6  # standard deviation of a dense column, mostly of a logarithm, below which it varies by rounding alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Encoding of one table for learners, with standardisation and one-hot columns; constant columns are left out.

    Args:
        numeric: columns taken as numbers, on a logarithmic scale (powers of two are even steps of most knobs).
        lowest: the smallest value of each of them where all are positive, else 0.0, ``[n_numeric]``.
        gappy: those among them with missing values in the table, which get an indicator.
        codes: categorical columns.
        one_hot: column and code of each indicator of a category.
        centre: mean of each dense column, ``[n_dense]``.
        scale: standard deviation of each dense column, ``[n_dense]``.
    """

    numeric: tuple[int, ...]
    lowest: NDArray[np.float64]
    gappy: tuple[int, ...]
    codes: tuple[int, ...]
    one_hot: tuple[tuple[int, float], ...]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float64], categorical: Sequence[bool]) -> Self:
        """Return the encoding fitted on ``features``, float64 ``[n, n_columns]``, n >= 1."""
        distinct = [np.unique(column) for column in features.T]
        varying = [index for index, values in enumerate(distinct) if len(values) > 1]
        numeric = tuple(index for index in varying if not categorical[index])
        codes = tuple(index for index in varying if categorical[index])
        unscaled = cls(
            numeric=numeric,
            lowest=np.array([max(float(distinct[index][0]), 0.0) for index in numeric], dtype=np.float64),
            gappy=tuple(index for index in numeric if np.isnan(features[:, index]).any()),
            codes=codes,
            one_hot=tuple(
                (index, float(code))
                for index in codes
                if len(distinct[index]) <= _MAX_ONE_HOT
                for code in distinct[index][~np.isnan(distinct[index])]
            ),
            centre=np.zeros(1),
            scale=np.ones(1),
        )
        dense = unscaled._raw_dense(features)
        spread = np.nan_to_num(_nan_std(dense), nan=1.0)
        return replace(unscaled, centre=_nan_mean(dense), scale=np.where(spread > _CONSTANT, spread, 1.0))

    def dense(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardised numbers without gaps, float64 ``[n, n_dense]``; a missing number gets the mean."""
        return np.nan_to_num((self._raw_dense(features) - self.centre) / self.scale, nan=0.0)

    def gapped(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers, then codes, with NaN where missing, float64 ``[n, n_gapped]``."""
        codes = features[:, self.codes]
        return np.hstack([features[:, self.numeric], np.where(codes >= UNSEEN, np.nan, codes)])

    @property
    def width(self) -> int:
        """Number of columns that vary."""
        return len(self.numeric) + len(self.codes)

    @property
    def gapped_categorical(self) -> list[bool]:
        """Flag per column of ``gapped``: it holds few enough codes to be taken as a category."""
        few = {column for column, _ in self.one_hot}
        return [False] * len(self.numeric) + [index in few for index in self.codes]

    def _raw_dense(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers = self._logarithms(features[:, self.numeric])
        missing = np.isnan(features[:, self.gappy])
        indicators = features[:, [column for column, _ in self.one_hot]] == np.array([code for _, code in self.one_hot])
        return np.hstack([numbers, missing, indicators])

    def _logarithms(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return logarithms of columns that are positive throughout, and signed ``log1p`` of the others."""
        logarithms = np.log(np.where(numbers <= 0.0, np.maximum(self.lowest, 1e-9), numbers))
        return np.where(self.lowest > 0.0, logarithms, np.sign(numbers) * np.log1p(np.abs(numbers)))


def _nan_mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(table)
    return np.asarray(np.where(known, table, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1), dtype=np.float64)


def _nan_std(table: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(_nan_mean((table - _nan_mean(table)) ** 2))
