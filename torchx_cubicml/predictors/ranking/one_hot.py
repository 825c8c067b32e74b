"""One-hot encoding of every column, numbers too, coarsely and finely at once.

One indicator for each of a few dozen seen numbers would have to be learned from a job or two. So numbers have
indicators at their ends and, with less weight, at more and more of their quantiles: a number between two of them counts
as a little of each, so neighbours teach one another. A category that was never seen has no indicator at all, a missing
value one of its own. The entries of a value per layer share the weight of one parameter, or a hundred layers would
drown the batch size beside them.
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
_BEYOND = 1.0  # how far outside the seen ends the trend between them is believed, as a share of their distance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indicators:
    """One set of indicators of one column.

    Args:
        index: of the column.
        knots: codes, or numbers (their logarithms where all are positive) at which an indicator is 1, ascending.
        categorical: whether they are codes.
        logarithmic: whether they are logarithms.
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
        """Set the indicators of ``values`` ``[n]`` in ``out`` ``[n, width]``, which arrives full of zeros."""
        gaps = np.isnan(values)
        if self.missing:
            out[gaps, -1] = self.weight
        rows = np.flatnonzero(~gaps)
        if self.categorical:
            place = np.clip(np.searchsorted(self.knots, values[rows]), 0, len(self.knots) - 1)
            met = self.knots[place] == values[rows]
            out[rows[met], place[met]] = self.weight
        elif len(self.knots) > 1:
            self._fill_numbers(values[rows], rows, out)

    def _fill_numbers(self, known: NDArray[np.float64], rows: NDArray[np.intp], out: NDArray[np.float32]) -> None:
        if self.logarithmic:
            known = np.log(np.where(known > 0, known, np.exp(self.knots[0])))
        # The two ends alone are a trend, which goes on for a while; finer indicators stay at the last.
        beyond = _BEYOND if len(self.knots) == 2 else 0.0
        above = np.clip(np.searchsorted(self.knots, known), 1, len(self.knots) - 1)
        share = (known - self.knots[above - 1]) / (self.knots[above] - self.knots[above - 1])
        share = np.clip(share, -beyond, 1.0 + beyond)
        out[rows, above - 1] = self.weight * (1.0 - share)
        out[rows, above] = self.weight * share


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHot:
    """The indicators of one table; columns that are alike in every row have none.

    Args:
        sets: of indicators, side by side.
    """

    sets: tuple[_Indicators, ...]

    @classmethod
    def of(cls, features: NDArray[np.float64], columns: Columns, *, knots: Sequence[int]) -> Self:
        """Return the encoding that fits ``features``, float64 ``[n, n_columns]``, n >= 1.

        Args:
            features: encoded rows; NaN where missing.
            columns: what they mean.
            knots: how many indicators a number has in each set, from the coarsest to the finest, each >= 2.
        """
        varying = [index for index, values in enumerate(features.T) if len(np.unique(values)) > 1]
        siblings = Counter(_family(columns.names[index]) for index in varying)
        sets: list[_Indicators] = []
        for index in varying:
            weight = siblings[_family(columns.names[index])] ** -0.5
            values = features[:, index]
            sets += (
                [_codes(index, values, weight)] if columns.categorical[index] else _scales(index, values, weight, knots)
            )
        return cls(sets=tuple(sets))

    @property
    def width(self) -> int:
        """How many indicators there are."""
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
    """Return what the columns of one per-layer value have in common."""
    return name.rpartition("[")[0] if name.endswith("]") else name


def _codes(index: int, values: NDArray[np.float64], weight: float) -> _Indicators:
    gaps = np.isnan(values)
    knots = np.unique(values[~gaps])
    return _Indicators(
        index=index, knots=knots, categorical=True, logarithmic=False, missing=bool(gaps.any()), weight=weight
    )


def _scales(index: int, values: NDArray[np.float64], weight: float, knots: Sequence[int]) -> Iterator[_Indicators]:
    """Yield the sets of one column of numbers; a set no finer than the one before it is left out."""
    gaps = np.isnan(values)
    seen = np.unique(values[~gaps])
    logarithmic, width = bool(seen[0] > 0), 0
    for level, most in enumerate(knots):
        places = seen if len(seen) <= most else np.unique(np.quantile(values[~gaps], np.linspace(0.0, 1.0, most)))
        if len(places) > width:
            width = len(places)
            yield _Indicators(
                index=index,
                knots=np.log(places) if logarithmic else places,
                categorical=False,
                logarithmic=logarithmic,
                missing=bool(gaps.any()) and level == 0,
                weight=weight * _FINER**level,
            )
