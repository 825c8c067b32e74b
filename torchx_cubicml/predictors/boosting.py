"""Gradient boosting of the log throughput, on the residuals of a linear trend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.extra_trees import ExtraTrees
from torchx_cubicml.predictors.features.learner_inputs import Inputs
from torchx_cubicml.predictors.intervals import FEWEST, NOISE_FLOOR, Novelty, conformal_scale, prior_variance
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import MeasuredRows, TrainingTable


# Ridge penalties on slopes of standardised inputs, in numbers of trials. The one of least leave-one-out error is
# chosen, which ridge regression gives at no extra cost.
_PENALTIES = (1.0, 4.0, 16.0, 64.0)
_HUBER = 1.5  # robust standard deviations beyond which a larger residual has no more influence
_ROUNDS = 4  # of reweighting; the weights settle in three or four
_MOST_LEVERAGE = 4.0  # the uncertainty of the trend itself is at most two residual spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Ridge regression with Huber weights on standardised inputs.

    Args:
        weights: intercept first, ``[1 + n_inputs]``.
        inverse: inverse of the penalised normal matrix, ``[1 + n_inputs, 1 + n_inputs]``.
        leave_one_out: residuals of the training rows, each predicted without itself, ``[n]``.
    """

    weights: NDArray[np.float64]
    inverse: NDArray[np.float64]
    leave_one_out: NDArray[np.float64]

    @classmethod
    def fit(
        cls, inputs: NDArray[np.float64], values: NDArray[np.float64], sample_weight: NDArray[np.float64] | None = None
    ) -> Self:
        """Return the trend of ``values`` ``[n]`` over ``inputs`` ``[n, n_inputs]``, n >= 1.

        Args:
            inputs: standardised.
            values: to be predicted.
            sample_weight: how much each counts, ``[n]``, > 0 and at most 1; ``None``: all alike.
        """
        sample_weight = np.ones(len(values)) if sample_weight is None else sample_weight
        fits = [cls._fit(_with_intercept(inputs), values, sample_weight, penalty) for penalty in _PENALTIES]
        return min(fits, key=lambda trend: float(np.average(np.abs(trend.leave_one_out), weights=sample_weight)))

    @classmethod
    def _fit(
        cls,
        design: NDArray[np.float64],
        values: NDArray[np.float64],
        sample_weight: NDArray[np.float64],
        penalty: float,
    ) -> Self:
        row_weights = sample_weight
        ridge = np.diag([1e-9, *[penalty] * (design.shape[1] - 1)])
        for _ in range(_ROUNDS):
            inverse = np.asarray(np.linalg.inv(design.T @ (row_weights[:, None] * design) + ridge), dtype=np.float64)
            weights = inverse @ (design.T @ (row_weights * values))
            residuals = values - design @ weights
            leverage = row_weights * np.einsum("ij,ij->i", design @ inverse, design)
            row_weights = sample_weight * _huber(residuals)
        loo_residuals = residuals / np.maximum(1.0 - leverage, 0.05)
        return cls(weights=weights, inverse=inverse, leave_one_out=loo_residuals)

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the trend at ``inputs`` ``[n, n_inputs]``, float64 ``[n]``."""
        return np.asarray(_with_intercept(inputs) @ self.weights, dtype=np.float64)

    def leverage(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of the trend at ``inputs`` in units of the residual variance, float64 ``[n]``."""
        design = _with_intercept(inputs)
        variances = np.einsum("ij,ij->i", design @ self.inverse, design)
        return np.asarray(np.minimum(variances, _MOST_LEVERAGE), dtype=np.float64)


def _with_intercept(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hstack([np.ones((len(inputs), 1)), inputs])


def _huber(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = _HUBER * 1.4826 * float(np.median(np.abs(residuals))) + 1e-12
    return np.asarray(limit / np.maximum(np.abs(residuals), limit), dtype=np.float64)


class Boosting:
    """The ``boosting`` predictor: a ridge trend plus the mean of boosted and extremely randomised trees.

    Args:
        n_rounds: boosting rounds at most; half of them below 50 trials.
        n_trees: randomised trees.
    """

    def __init__(self, *, n_rounds: int = 300, n_trees: int = 50) -> None:
        self.n_rounds = n_rounds
        self.n_trees = n_trees

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Fit on the measured rows of ``history``; see ``Predictor``."""
        with one_thread():
            self._fit(history, seed=int(rng.integers(2**31)))
        return self

    def _fit(self, history: TrainingTable, *, seed: int) -> None:
        rows = history.measured
        features, target, weights = rows.features, rows.logarithm, rows.weights
        self.n_measured_, self.prior_variance_ = len(rows), prior_variance(float(weights.sum()))
        if not self.n_measured_:
            return
        self.inputs_ = Inputs.of(features, history.columns.categorical)
        dense = self.inputs_.dense(features)
        self.trend_ = Trend.fit(dense, target, weights)
        residuals = target - self.trend_.predict(dense)
        self.fits_residuals_ = dense.shape[1] > 0 and self.n_measured_ > 2
        if self.fits_residuals_:
            self.forest_ = ExtraTrees(dense, residuals, n_trees=self.n_trees, seed=seed, sample_weight=weights)
            self.boosted_ = self._boost(self.inputs_.gapped(features), residuals, weights, seed)
        self._calibrate(dense, rows)
        numeric = features[:, ~np.array(history.columns.categorical, dtype=np.bool_)]
        numeric_inputs = Inputs.of(numeric, [False] * numeric.shape[1]).dense(numeric)
        numeric_residuals = target - Trend.fit(numeric_inputs, target, weights).predict(numeric_inputs)
        self.novelty_ = Novelty.of(features, history.columns, numeric_residuals)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            return Prediction.unknown(len(features))
        with one_thread():
            return self._predict(features)

    def _predict(self, features: NDArray[np.float64]) -> Prediction:
        dense = self.inputs_.dense(features)
        logarithm = self.trend_.predict(dense)
        disagreement = np.zeros(len(features))
        if self.fits_residuals_:
            correction, disagreement = self.forest_.predict(dense)
            logarithm = logarithm + 0.5 * (correction + self.boosted_.predict(self.inputs_.gapped(features)))
        spread = self.scale_ * self._raw_spread(disagreement, self.trend_.leverage(dense))
        novelty = self.novelty_.of_categories(features) + self.novelty_.of_numbers(features)
        return Prediction.of_measurement(logarithm, np.maximum(np.sqrt(spread**2 + novelty), NOISE_FLOOR))

    def _boost(
        self, gapped: NDArray[np.float64], residuals: NDArray[np.float64], weights: NDArray[np.float64], seed: int
    ) -> _Regressor:
        from sklearn.ensemble import HistGradientBoostingRegressor

        is_small = len(residuals) < 50
        learner: _Regressor = HistGradientBoostingRegressor(
            loss="absolute_error",
            learning_rate=0.1,
            max_iter=self.n_rounds // 2 if is_small else self.n_rounds,
            max_leaf_nodes=15,
            # scikit-learn's default of 20 would not split at all below 40 trials.
            min_samples_leaf=min(max(len(residuals) // 20, 2), 20),
            l2_regularization=0.1,
            categorical_features=self.inputs_.gapped_categorical,
            early_stopping=False,
            random_state=seed,
        )
        with one_thread():
            return learner.fit(gapped, residuals, sample_weight=weights if weights.min() < 1.0 else None)

    def _raw_spread(self, disagreement: NDArray[np.float64], leverage: NDArray[np.float64]) -> NDArray[np.float64]:
        variance = NOISE_FLOOR**2 + self.prior_variance_ + disagreement**2 + self.residual_variance_ * leverage
        return np.asarray(np.sqrt(variance), dtype=np.float64)

    def _calibrate(self, dense: NDArray[np.float64], rows: MeasuredRows) -> None:
        """Scale the spread by conformal calibration: it covers four fifths of leave-one-out residuals.

        A residual that the uncertainty of its own run explains does not widen the spread.
        """
        loo_residuals = self.trend_.leave_one_out
        self.residual_variance_ = (weighted_quantile(np.abs(loo_residuals), rows.weights, 0.5) * 1.4826) ** 2
        self.scale_ = 1.0
        if not self.fits_residuals_ or len(rows) < FEWEST:
            return
        correction, disagreement = self.forest_.out_of_bag(dense)
        spread = self._raw_spread(disagreement, self.trend_.leverage(dense))
        self.scale_ = conformal_scale(np.abs(loo_residuals - correction), np.hypot(spread, rows.uncertainty))


class _Regressor(Protocol):
    def fit(
        self, inputs: NDArray[np.float64], values: NDArray[np.float64], /, sample_weight: NDArray[np.float64] | None
    ) -> Self: ...
    def predict(self, inputs: NDArray[np.float64], /) -> NDArray[np.float64]: ...
