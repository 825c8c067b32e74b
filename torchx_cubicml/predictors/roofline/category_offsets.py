"""Offsets of categories: by how much jobs with one device, framework or release are faster than the formulas predict.

A property of a device or of software that is in no data sheet is the same for all jobs that share it. So each category
has an offset, shrunk towards 0 (ridge). Offsets are used only if they reduce the leave-one-out error enough.
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

_MOST_ERROR = 0.9  # times the mean error without offsets: their error must be below
_MOST_ERROR_REFITTED = 0.7  # likewise, after the formulas' constants are fitted again with the offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryOffsets:
    """Log offsets of the categories of one table.

    Args:
        inputs: encoder of rows as one-hot categories.
        trend: ridge regression of the log residual on them.
        without: mean absolute error of the formulas without offsets.
        weights: of the training rows.
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
        """Return the offsets fitted on ``rest``; ``None`` where they hardly reduce the error.

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
        deviations = np.abs(rest - weighted_quantile(rest, weights, 0.5))
        offsets = cls(
            inputs=inputs, trend=trend, without=float(np.average(deviations, weights=weights)), weights=weights
        )
        return offsets if offsets.error < _MOST_ERROR * offsets.without else None

    @property
    def error(self) -> float:
        """Mean absolute leave-one-out error of the training jobs."""
        return float(np.average(np.abs(self.trend.leave_one_out), weights=self.weights))

    def worth_keeping(self, without: float) -> bool:
        """Return whether the error is far enough below ``without``, that of the formulas fitted without offsets."""
        return self.error < _MOST_ERROR_REFITTED * without

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log offset of encoded rows, float64 ``[n]``; an unseen category gets the common part alone."""
        return self.trend.predict(self.inputs.dense(features))
