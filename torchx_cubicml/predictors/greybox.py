"""Grey-box predictor: the ``roofline`` formulas, corrected by extremely randomised trees on their residuals.

The trees are fitted on the logarithm of measured over predicted throughput. It is clipped, because a job that ran ten
times slower than it should have is no evidence about its neighbours. Their inputs are the row's own columns and traits
that carry over between scales: shares of the step time. The correction counts as far as it predicts rows that the trees
have not seen (``_trust``). It fades with the distance from the measurements, so that far from them the formulas stand
alone.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.extra_trees import ExtraTrees
from torchx_cubicml.predictors.features.learner_inputs import Inputs
from torchx_cubicml.predictors.intervals import NOISE_FLOOR, PRIOR_TRIALS, conformal_scale, prior_variance
from torchx_cubicml.predictors.roofline.estimate import variance_of_modes, widen_spread
from torchx_cubicml.predictors.roofline.predictor import Roofline
from torchx_cubicml.predictors.threads import map_parallel, one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.predictors.roofline.estimate import RooflineEstimate
    from torchx_cubicml.predictors.roofline.recommender_predictor import RecommenderRoofline

_CLIP = 1.0  # log ratio beyond which a row is an accident
_FADE = 4.0  # doublings outside the measured range at which the trees count e times less
_CHUNK = 8192
_MOST_SERIAL = 2  # chunks beyond which all cores are used: a caller waits, and nothing else of ours runs


class Greybox:
    """The ``greybox`` predictor: calibrated formulas plus trees on their residuals.

    Recommenders have formulas of their own, and trees of their own on the residuals of these.
    Rows without the facts that the formulas need are predicted by ``Boosting``. It is fitted on all rows when the first
    such row is predicted.

    Args:
        n_trees: randomised trees; with 0 the calibrated formulas stand alone.
    """

    def __init__(self, *, n_trees: int = 50) -> None:
        self.n_trees = n_trees

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Fit on the measured rows of ``history``; see ``Predictor``."""
        self.seed_ = int(rng.integers(2**31))
        self.history_ = history
        self.boosting_: Boosting | None = None
        self.roofline_ = Roofline().fit(history, rng=np.random.default_rng(self.seed_))
        self.recommenders_: Self | None = None
        if self.roofline_.recommenders_.n_measured_:
            self.recommenders_ = copy(self)
            self.recommenders_._fit_formulas(self.roofline_.recommenders_, history)
        self._fit_formulas(self.roofline_, history)
        return self

    def _fit_formulas(self, formulas: Roofline | RecommenderRoofline, history: TrainingTable) -> None:
        self.formulas_ = formulas
        self.forest_: ExtraTrees | None = None
        if self.n_trees and formulas.n_measured_ > 1:
            with one_thread():
                self._fit_trees(history)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.formulas_.n_measured_ and self.recommenders_ is None:
            return self._without_formulas(features)
        # The intermediate arrays of a small chunk stay in the processor's cache.
        chunks = [features[start : start + _CHUNK] for start in range(0, max(len(features), 1), _CHUNK)]
        parts = map_parallel(self._predict, chunks) if len(chunks) > _MOST_SERIAL else list(map(self._predict, chunks))
        return Prediction(
            logarithm=np.concatenate([part.logarithm for part in parts]),
            spread=np.concatenate([part.spread for part in parts]),
        )

    def _predict(self, features: NDArray[np.float64]) -> Prediction:
        logarithm, spread = np.full(len(features), np.nan), np.full(len(features), np.nan)
        rest = np.ones(len(features), dtype=np.bool_)
        for model in (self, self.recommenders_):
            if model is None or not model.formulas_.n_measured_ or not rest.any():
                continue
            estimate = model.formulas_.estimate(features[rest])
            covered = np.flatnonzero(rest)[estimate.covered]
            if len(covered):
                predicted = model._with_formulas(features[covered], estimate)
                logarithm[covered], spread[covered] = predicted.logarithm, predicted.spread
                rest[covered] = False
        if rest.any():
            fallback = self._without_formulas(features[rest])
            logarithm[rest], spread[rest] = fallback.logarithm, fallback.spread
        return Prediction(logarithm=logarithm, spread=spread)

    def without_trees(self) -> Self:
        """Return this predictor as if ``n_trees`` had been 0: the same calibrated formulas alone."""
        untreed = copy(self)
        untreed.forest_ = None
        untreed.recommenders_ = self.recommenders_.without_trees() if self.recommenders_ is not None else None
        return untreed

    def _with_formulas(self, features: NDArray[np.float64], estimate: RooflineEstimate) -> Prediction:
        if self.forest_ is None:
            return self.formulas_.predict(features)
        correction, deviation = self.forest_.predict(self._inputs(features, estimate))
        logarithm = estimate.logarithm + self.trust_ * correction * np.exp(-estimate.beyond / _FADE)
        spread = widen_spread(self.scale_ * self._raw_spread(estimate, deviation), estimate)
        return Prediction.of_measurement(logarithm, spread)

    def _without_formulas(self, features: NDArray[np.float64]) -> Prediction:
        if self.boosting_ is None:
            self.boosting_ = Boosting().fit(self.history_, rng=np.random.default_rng(self.seed_))
        return self.boosting_.predict(features)

    def _fit_trees(self, history: TrainingTable) -> None:
        rows = history.measured
        estimate = self.formulas_.estimate(rows.features)
        rows = rows.rows(estimate.covered)
        self.inputs_ = Inputs.of(rows.features, history.columns.categorical)
        residuals = rows.logarithm - estimate.logarithm
        clipped = np.clip(residuals, -_CLIP, _CLIP)
        inputs = self._inputs(rows.features, estimate)
        self.forest_ = ExtraTrees(inputs, clipped, n_trees=self.n_trees, seed=self.seed_, sample_weight=rows.weights)
        correction, deviation = self.forest_.out_of_bag(inputs)
        offsets = self.formulas_.category_offsets_
        loo_residuals = residuals if offsets is None else offsets.trend.leave_one_out
        self.trust_ = _trust(clipped, correction, rows.weights)
        errors = np.abs(loo_residuals - self.trust_ * correction)
        self.scale_ = conformal_scale(errors, np.hypot(self._raw_spread(estimate, deviation), rows.uncertainty))

    def _inputs(self, features: NDArray[np.float64], estimate: RooflineEstimate) -> NDArray[np.float64]:
        return np.hstack([self.inputs_.dense(features), estimate.traits])

    def _raw_spread(self, estimate: RooflineEstimate, deviation: NDArray[np.float64]) -> NDArray[np.float64]:
        prior = prior_variance(self.formulas_.effective_n_)
        # The disagreement of the trees already contains part of the uncertainty about the mode.
        return np.asarray(np.sqrt(NOISE_FLOOR**2 + prior + deviation**2 + 0.5 * variance_of_modes(estimate)))


def _trust(residuals: NDArray[np.float64], corrections: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Return the share of a correction that is applied: a slope that is shrunk to 0 for few rows.

    It minimises the mean absolute error of residuals that are predicted without themselves. Trees that are fitted on a
    few rows of one workload mostly repeat the noise of these.

    Args:
        residuals: logarithm of measured over predicted throughput, ``[n]``.
        corrections: out-of-bag predictions of them.
        weights: of the rows.
    """
    moved = corrections != 0.0
    if not moved.any():
        return 0.0
    slopes = residuals[moved] / corrections[moved]
    slope = weighted_quantile(slopes, weights[moved] * np.abs(corrections[moved]), 0.5)
    data_weight = float(weights.sum()) / (float(weights.sum()) + PRIOR_TRIALS)
    return float(np.clip(slope, 0.0, 1.0) * data_weight)
