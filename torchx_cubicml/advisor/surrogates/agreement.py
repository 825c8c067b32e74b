"""What several predictors expect together: they seldom err alike, so their mean errs less than each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchx_cubicml.predictors import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Predicting(Protocol):
    """A predictor that is fitted."""

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """See ``Predictor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Fitted predictors as one: the geometric mean of what they expect, with the spread of the first.

    Args:
        first: what the others join; where it knows nothing, nobody does.
        others: those of them that step aside from a row are not counted there.
    """

    first: Predicting
    others: Sequence[Predicting]

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        first = self.first.predict(features)
        logarithm = np.log(first.throughput)
        told = np.stack([logarithm, *(np.log(other.predict(features).throughput) for other in self.others)])
        told = np.where(np.isfinite(told), told, logarithm)
        return Prediction(throughput=np.exp(told.mean(axis=0)), spread=first.spread)
