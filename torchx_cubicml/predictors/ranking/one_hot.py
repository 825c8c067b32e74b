"""One-hot encoding of every column; numbers are encoded by piecewise linear indicators of several resolutions.

With one indicator for each of a few dozen numbers, each weight would be fitted on a job or two. So numbers have
indicators at their ends and, with less weight, at more and more of their quantiles. A number between two of them is
interpolated, so that neighbours share evidence. An unseen category has no indicator, and a missing value has its own.
The entries of a value per layer share the weight of one parameter, or a hundred layers would swamp the batch size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns

_FINER = 0.3  # weight of a finer set of indicators against the one before it
_MOST_BEYOND = 1.0  # extrapolation limit of the trend between the two ends, as a share of their distance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indicators:
    """Set of indicators of one column.

    Args:
        index: of the column.
        knots: codes, or numbers (their logarithms where all are positive) at which an indicator is 1, ascending.
        categorical: whether the knots are codes.
        logarithmic: whether the knots are logarithms.
        missing: whether a missing value has an indicator, the last.
        weight: of each indicator.
    """

    index: int
    knots: NDArray[np.float64]
    categorical: bool
    logarithmic: bool
    missing: bool
    weight: float

    @property
    def width(self) -> int:
        return len(self.knots) + self.missing

    def fill(self, values: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Set the indicators of ``values`` ``[n]`` in ``out`` ``[n, width]``, which is all zeros on entry."""
        gaps = np.isnan(values)
        if self.missing:
            out[gaps, -1] = self.weight
        rows = np.flatnonzero(~gaps)
        if self.categorical:
            position = np.clip(np.searchsorted(self.knots, values[rows]), 0, len(self.knots) - 1)
            matches = self.knots[position] == values[rows]
            out[rows[matches], position[matches]] = self.weight
        elif len(self.knots) > 1:
            self._fill_numbers(values[rows], rows, out)

    def _fill_numbers(self, known: NDArray[np.float64], rows: NDArray[np.intp], out: NDArray[np.float32]) -> None:
        if self.logarithmic:
            known = np.log(np.where(known > 0, known, np.exp(self.knots[0])))
        # The coarsest set (two knots) is a linear trend and is extrapolated; finer sets are clipped at their ends.
        beyond = _MOST_BEYOND if len(self.knots) == 2 else 0.0
        above = np.clip(np.searchsorted(self.knots, known), 1, len(self.knots) - 1)
        share = (known - self.knots[above - 1]) / (self.knots[above] - self.knots[above - 1])
        share = np.clip(share, -beyond, 1.0 + beyond)
        out[rows, above - 1] = self.weight * (1.0 - share)
        out[rows, above] = self.weight * share


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHot:
    """One-hot encoder of one table; constant columns have no indicators.

    Args:
        sets: of indicators, side by side.
    """

    sets: tuple[_Indicators, ...]

    @classmethod
    def of(cls, features: NDArray[np.float64], columns: Columns, *, knots: Sequence[int]) -> Self:
        """Return the encoder fitted on ``features``, float64 ``[n, n_columns]``, n >= 1.

        Args:
            features: encoded rows; NaN where missing.
            columns: meaning of the columns.
            knots: number of indicators of a number in each set, from the coarsest to the finest, each >= 2.
        """
        varying = [index for index, values in enumerate(features.T) if len(np.unique(values)) > 1]
        n_siblings = Counter(_family(columns.names[index]) for index in varying)
        sets: list[_Indicators] = []
        for index in varying:
            weight = n_siblings[_family(columns.names[index])] ** -0.5
            values = features[:, index]
            sets += (
                [_category_indicators(index, values, weight)]
                if columns.categorical[index]
                else _number_indicators(index, values, weight, knots)
            )
        return cls(sets=tuple(sets))

    @property
    def width(self) -> int:
        """Number of indicators."""
        return sum(item.width for item in self.sets)

    def encode(self, features: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the weighted indicators of encoded rows, float32 ``[n, width]``."""
        table = np.zeros((len(features), self.width), dtype=np.float32)
        start = 0
        for item in self.sets:
            item.fill(features[:, item.index], table[:, start : start + item.width])
            start += item.width
        return table


def _family(name: str) -> str:
    """Return the name of the fact that the columns of one per-layer value share."""
    return name.rpartition("[")[0] if name.endswith("]") else name


def _category_indicators(index: int, values: NDArray[np.float64], weight: float) -> _Indicators:
    gaps = np.isnan(values)
    knots = np.unique(values[~gaps])
    return _Indicators(
        index=index, knots=knots, categorical=True, logarithmic=False, missing=bool(gaps.any()), weight=weight
    )


def _number_indicators(
    index: int, values: NDArray[np.float64], weight: float, knots: Sequence[int]
) -> Iterator[_Indicators]:
    """Yield the sets of one column of numbers; a set no finer than the one before it is left out."""
    gaps = np.isnan(values)
    distinct = np.unique(values[~gaps])
    logarithmic, width = bool(distinct[0] > 0), 0
    for level, n_knots in enumerate(knots):
        positions = (
            distinct
            if len(distinct) <= n_knots
            else np.unique(np.quantile(values[~gaps], np.linspace(0.0, 1.0, n_knots)))
        )
        if len(positions) > width:
            width = len(positions)
            yield _Indicators(
                index=index,
                knots=np.log(positions) if logarithmic else positions,
                categorical=False,
                logarithmic=logarithmic,
                missing=bool(gaps.any()) and level == 0,
                weight=weight * _FINER**level,
            )
