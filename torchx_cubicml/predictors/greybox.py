"""The formulas of the ``roofline``, and trees on what they get wrong.

The trees learn the logarithm of measured over predicted throughput, clipped: a job that ran ten times slower than it
should have teaches nothing about its neighbours. They see the row's own columns and what carries over between scales,
such as shares of time and throughput per device. What they say fades with the distance to what was measured, where the
formulas stand alone.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.extra_trees import ExtraTrees
from torchx_cubicml.predictors.features.learner_inputs import Inputs
from torchx_cubicml.predictors.intervals import NOISE_FLOOR, conformal_scale, prior_variance
from torchx_cubicml.predictors.roofline.predictor import (
    Roofline,
    variance_of_modes,
    widened,
)
from torchx_cubicml.predictors.threads import on_all_cores, one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.predictors.roofline.predictor import RooflineEstimate

_CLIP = 1.0  # log ratio beyond which a row is an accident
_FADE = 4.0  # doublings outside of what was measured at which the trees count e times less
_CHUNK = 8192
_MANY = 2  # chunks, which somebody waits for while nothing else of ours runs
_SPENT = 10.0  # constants that a calibration makes use of, about


class Greybox:
    """The ``greybox`` predictor.

    Rows that do not name what the formulas need are left to ``Boosting``, which is fitted on all rows when the first of
    them is asked for.

    Args:
        n_trees: randomised trees; without any the calibrated formulas stand alone.
    """

    def __init__(self, *, n_trees: int = 50) -> None:
        self.n_trees = n_trees

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the measured rows of ``history``; see ``Predictor``."""
        self.seed_ = int(rng.integers(2**31))
        self.history_ = history
        self.boosting_: Boosting | None = None
        self.forest_: ExtraTrees | None = None
        self.roofline_ = Roofline().fit(history, rng=np.random.default_rng(self.seed_))
        if self.n_trees and self.roofline_.n_measured_ > 1:
            with one_thread():
                self._learn_rest(history)
        return self

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.roofline_.n_measured_:
            return self._without_formulas(features)
        # What a step needs of few rows stays in the processor's cache.
        chunks = [features[start : start + _CHUNK] for start in range(0, max(len(features), 1), _CHUNK)]
        parts = on_all_cores(self._predict, chunks) if len(chunks) > _MANY else list(map(self._predict, chunks))
        return Prediction(
            throughput=np.concatenate([part.throughput for part in parts]),
            spread=np.concatenate([part.spread for part in parts]),
        )

    def _predict(self, features: NDArray[np.float64]) -> Prediction:
        outline = self.roofline_.outline(features)
        covered = outline.covered
        throughput, spread = np.empty(len(features)), np.empty(len(features))
        if covered.any():
            known = self._with_formulas(features[covered], outline)
            throughput[covered], spread[covered] = known.throughput, known.spread
        if not covered.all():
            other = self._without_formulas(features[~covered])
            throughput[~covered], spread[~covered] = other.throughput, other.spread
        return Prediction(throughput=throughput, spread=spread)

    def without_trees(self) -> Self:
        """Return this predictor as if ``n_trees`` had been 0: the same calibrated formulas alone."""
        bare = copy(self)
        bare.forest_ = None
        return bare

    def _with_formulas(self, features: NDArray[np.float64], outline: RooflineEstimate) -> Prediction:
        if self.forest_ is None:
            return self.roofline_.predict(features)
        middle, deviation = self.forest_.predict(self._inputs(features, outline))
        logarithm = outline.logarithm + middle * np.exp(-outline.beyond / _FADE)
        spread = widened(self.scale_ * self._raw_spread(outline, deviation), outline)
        return Prediction.at(logarithm, spread)

    def _without_formulas(self, features: NDArray[np.float64]) -> Prediction:
        if self.boosting_ is None:
            self.boosting_ = Boosting().fit(self.history_, rng=np.random.default_rng(self.seed_))
        return self.boosting_.predict(features)

    def _learn_rest(self, history: History) -> None:
        rows = history.measured
        outline = self.roofline_.outline(rows.features)
        rows = rows.rows(outline.covered)
        self.inputs_ = Inputs.of(rows.features, history.columns.categorical)
        rest = rows.logarithm - outline.logarithm
        inputs = self._inputs(rows.features, outline)
        self.forest_ = ExtraTrees(
            inputs, np.clip(rest, -_CLIP, _CLIP), n_trees=self.n_trees, seed=self.seed_, sample_weight=rows.weights
        )
        middle, deviation = self.forest_.out_of_bag(inputs)
        alone = rest if self.roofline_.levels_ is None else self.roofline_.levels_.trend.leave_one_out
        errors = np.abs(alone - middle) * np.sqrt(1.0 + _SPENT / len(rest))
        self.scale_ = conformal_scale(errors, np.hypot(self._raw_spread(outline, deviation), rows.uncertainty))

    def _inputs(self, features: NDArray[np.float64], outline: RooflineEstimate) -> NDArray[np.float64]:
        return np.hstack([self.inputs_.dense(features), outline.traits])

    def _raw_spread(self, outline: RooflineEstimate, deviation: NDArray[np.float64]) -> NDArray[np.float64]:
        belief = prior_variance(self.roofline_.n_sure_)
        # What the trees disagree on holds part of the doubt between the modes.
        return np.asarray(np.sqrt(NOISE_FLOOR**2 + belief + deviation**2 + 0.5 * variance_of_modes(outline)))
