"""Interface of every predictor (surrogate), and the record of its predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.records.measurement import LEAST_THROUGHPUT, MOST_THROUGHPUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable

_LOG_RANGE = math.log(LEAST_THROUGHPUT), math.log(MOST_THROUGHPUT)
MOST_SPREAD = 10.0  # log standard deviation; a larger one carries no more information: nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predictive distribution of the throughput of ``n`` configs: log-normal.

    A ``Predictor`` returns that of one new measurement. The surrogates and the posterior in ``advisor`` return that of
    the true value: their spread is without the noise of a measurement.

    Args:
        logarithm: of the median throughput of the whole job, in the unit of the history's objective, float64 ``[n]``;
            NaN where nothing is known.
        spread: standard deviation of the logarithm, float64 ``[n]``; NaN likewise.
        fits: probability to fit in memory, float64 ``[n]``, or one 1.0 for all where only throughput is predicted.
    """

    logarithm: NDArray[np.float64]
    spread: NDArray[np.float64]
    fits: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))

    @classmethod
    def of_measurement(cls, logarithm: NDArray[np.float64], spread: NDArray[np.float64]) -> Self:
        """Return the prediction of one new measurement; median and spread are clipped to possible values.

        A trend that is extrapolated far beyond the measurements can reach any value.

        >>> prediction = Prediction.of_measurement(np.log([100.0, 1e300]), np.array([0.1, 400.0]))
        >>> prediction.throughput.round(-1).tolist(), prediction.spread.tolist()
        ([100.0, 1000000000000.0], [0.1, 10.0])
        """
        return cls(logarithm=np.clip(logarithm, *_LOG_RANGE), spread=np.minimum(spread, MOST_SPREAD))

    @classmethod
    def unknown(cls, n: int) -> Self:
        """Return the prediction of ``n`` configs where nothing is known."""
        return cls(logarithm=np.full(n, np.nan), spread=np.full(n, np.nan))

    @property
    def throughput(self) -> NDArray[np.float64]:
        """Median throughput, float64 ``[n]``."""
        return np.asarray(np.exp(self.logarithm), dtype=np.float64)

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the ``q`` quantile, 0 < q < 1, float64 ``[n]``.

        >>> Prediction(logarithm=np.log([100.0]), spread=np.array([0.1])).quantile(0.9).round(1).tolist()
        [113.7]
        """
        return np.asarray(self.throughput * np.exp(self.spread * NormalDist().inv_cdf(q)), dtype=np.float64)

    def intervals(self) -> list[tuple[float, float, float] | None]:
        """Return low end, median and high end of each 80 % interval; ``None`` where nothing is known."""
        ends = zip(self.quantile(0.1).tolist(), self.throughput.tolist(), self.quantile(0.9).tolist(), strict=True)
        return [each if math.isfinite(each[1]) else None for each in ends]


class Predictor(Protocol):
    """Regressor of throughput: it is fitted on history and predicts configs that were not run.

    The caller calls ``fit`` once, then ``predict`` whenever configs are to be scored. A predictor fitted on other
    workloads is kept for later suggestions, and several threads may call ``predict``. Fitted state is kept in
    attributes that end in ``_``. A predictor must never change the arrays that it is given or depend on the order of
    rows. It must not keep anything across ``fit``, or touch a file, a clock, the network or global randomness.
    """

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Fit on the measured rows of ``history``; none at all is legal, one is enough.

        Args:
            history: trials as a table.
            rng: the only source of randomness.
        """

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for rows that ``history.columns`` encoded, float64 ``[n, n_columns]``.

        NaN in ``features`` is a missing value, or a category that is not in the history. A code from ``UNSEEN`` on is
        a standard word that is not in the history. A predictor fitted on no measurement returns NaN.
        """
