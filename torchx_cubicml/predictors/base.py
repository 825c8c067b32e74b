"""What every predictor offers, and the shape of what it predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.records.trial import LEAST_THROUGHPUT, MOST_THROUGHPUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History

_ENDS = math.log(LEAST_THROUGHPUT), math.log(MOST_THROUGHPUT)
MOST_SPREAD = 10.0  # log standard deviation; one that is larger says no more: nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Throughput of ``n`` configs, log-normal around its median.

    Args:
        throughput: median, whole job, in the unit of the history's objective, float64 ``[n]``; NaN where the history
            held no measurement.
        spread: standard deviation of the logarithm of one new measurement, float64 ``[n]``; NaN likewise.
    """

    throughput: NDArray[np.float64]
    spread: NDArray[np.float64]

    @classmethod
    def at(cls, logarithm: NDArray[np.float64], spread: NDArray[np.float64]) -> Self:
        """Return the prediction of a logarithm of the median; both end where no training can be.

        A trend that is followed far beyond what was measured leads anywhere.

        >>> told = Prediction.at(np.log([100.0, 1e300]), np.array([0.1, 400.0]))
        >>> told.throughput.round(-1).tolist(), told.spread.tolist()
        ([100.0, 1000000000000.0], [0.1, 10.0])
        """
        return cls(
            throughput=np.clip(np.exp(np.clip(logarithm, *_ENDS)), LEAST_THROUGHPUT, MOST_THROUGHPUT),
            spread=np.minimum(spread, MOST_SPREAD),
        )

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the throughput that a measurement stays under with probability ``q``, 0 < q < 1, float64 ``[n]``.

        >>> Prediction(throughput=np.array([100.0]), spread=np.array([0.1])).quantile(0.9).round(1).tolist()
        [113.7]
        """
        return np.asarray(self.throughput * np.exp(self.spread * NormalDist().inv_cdf(q)), dtype=np.float64)


class Predictor(Protocol):
    """Learns throughput from history and predicts it for configs that were not run.

    Whoever makes one calls ``fit`` once, then ``predict`` as often as configs are to be scored; what other workloads
    taught is kept so and asked again for the suggestions that follow, by several threads where there are. In between it
    may keep what it learned, in attributes that end in ``_``. It must never change the arrays that it is given, keep
    anything across ``fit``, touch a file, a clock, the network or global randomness, or depend on the order of the
    rows.
    """

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the measured rows of ``history``; none at all is legal, one is enough.

        Args:
            history: trials as a table.
            rng: the only source of randomness.
        """

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for rows that ``history.columns`` encoded, float64 ``[n, n_columns]``.

        NaN in ``features`` is a missing value or a category that the history never saw, a code from ``UNSEEN`` on
        a standard word that it never saw. A predictor fitted on no measurement answers NaN.
        """
