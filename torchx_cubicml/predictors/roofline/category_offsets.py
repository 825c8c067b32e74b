"""By how much jobs of one category are faster than the formulas say: a device, a framework or a release has its own.

What no data sheet tells of a kind of device, or of a piece of software, is alike for all jobs that share it. So each
category has a level, shrunken towards none; whether there are any is decided by jobs predicted without themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.boosting import Trend
from torchx_cubicml.predictors.features.learner_inputs import Inputs
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WORTH = 0.9  # of the mean error without levels: theirs must be below
_WORTH_KEEPING = 0.7  # likewise, once the formulas' constants were fitted beside them


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryOffsets:
    """The levels of the categories of one table.

    Args:
        inputs: how rows tell their categories.
        trend: of the logarithm over them.
        without: mean absolute error of the formulas without levels.
        weights: of the rows that were learned from.
    """

    inputs: Inputs
    trend: Trend
    without: float
    weights: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        features: NDArray[np.float64],
        categorical: Sequence[bool],
        rest: NDArray[np.float64],
        weights: NDArray[np.float64],
    ) -> Self | None:
        """Return the levels behind ``rest``; ``None`` where it is hardly smaller for knowing them.

        Args:
            features: encoded rows, float64 ``[n, n_columns]``, n >= 1.
            categorical: whether each column holds codes.
            rest: logarithm of measured over predicted throughput, ``[n]``.
            weights: how much each row counts, ``[n]``.
        """
        codes = np.where(np.array(categorical, dtype=np.bool_), features, 0.0)  # numbers are left to the formulas
        inputs = Inputs.of(codes, categorical)
        if not inputs.one_hot:
            return None
        trend = Trend.fit(inputs.dense(codes), rest, weights)
        off = np.abs(rest - weighted_quantile(rest, weights, 0.5))
        levels = cls(inputs=inputs, trend=trend, without=float(np.average(off, weights=weights)), weights=weights)
        return levels if levels.error < _WORTH * levels.without else None

    @property
    def error(self) -> float:
        """Mean absolute error of the jobs that were learned from, each predicted by the levels of the others."""
        return float(np.average(np.abs(self.trend.leave_one_out), weights=self.weights))

    def worth_keeping(self, without: float) -> bool:
        """Return whether errors are far enough below those of the formulas alone, fitted ``without`` levels."""
        return self.error < _WORTH_KEEPING * without

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the level of encoded rows, float64 ``[n]``; of a category that was never seen, that of all."""
        return self.trend.predict(self.inputs.dense(features))
