"""Roofline predictor of recommenders: analytic step time with constants calibrated on history (MAP estimates)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.intervals import PRIOR_TRIALS, Novelty, conformal_scale
from torchx_cubicml.predictors.roofline.estimate import (
    PRIOR_ERROR,
    RooflineEstimate,
    completed_by,
    doublings_outside,
    widen_spread,
)
from torchx_cubicml.predictors.roofline.least_squares import least_squares
from torchx_cubicml.predictors.roofline.recommender_constants import (
    RECOMMENDER_CENTRE,
    RECOMMENDER_DEFAULTS,
    RECOMMENDER_NAMES,
    RECOMMENDER_WIDTH,
)
from torchx_cubicml.predictors.roofline.recommender_facts import RecommenderDecoder
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_time import recommender_hidden, recommender_step_time
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import MeasuredRows, TrainingTable
    from torchx_cubicml.predictors.roofline.category_offsets import CategoryOffsets
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.records.values import Value

_NOISE = 0.2  # log error up to which the loss is quadratic, beyond it linear
_STEPS = 30
_MOST_ROWS = 500
_READ_WORDS = (
    *("embedding_kernel", "embedding_plan", "embedding_ranks", "embedding_sharding"),
    *("sharding_strategy", "train_pipeline"),
)


class RecommenderRoofline:
    """Formulas of recommenders with embedding tables, calibrated on history.

    It needs ``micro_batch_size`` and ``world_size``, and rows and widths of all tables (``embedding_rows`` and
    ``embedding_dims``), or ``n_embedding_tables`` and ``embedding_dim`` where they are alike. Other rows are not
    covered: their prediction is NaN. ``parts`` works before ``fit``, with the default constants, and for rows that have
    dense layers alone.
    """

    def __init__(self) -> None:
        self.constants_: Constants = RECOMMENDER_DEFAULTS
        self.bias_ = 0.0
        self.n_measured_ = 0
        self.effective_n_ = 0.0
        self.decoder_: RecommenderDecoder | None = None
        self.category_offsets_: CategoryOffsets | None = None

    def fit(self, history: TrainingTable) -> Self:
        """Calibrate on the measured rows of ``history`` that are covered; on dense layers alone if none has tables."""
        self.__init__()  # type: ignore[misc]
        self._calibrate_dense(history)
        decoder = RecommenderDecoder(history.columns, history.rows)
        if not decoder.is_recommender:
            return self
        self.decoder_, self.read_columns_ = decoder, history.columns.of(_READ_WORDS)
        rows = history.measured
        layout = RecommenderLayout.of(decoder.facts(rows.features))
        covered = layout.covered & layout.has_tables
        layout, rows = layout.at(covered), rows.rows(covered)
        self.n_measured_, self.effective_n_ = len(rows), float(rows.weights.sum())
        if self.n_measured_:
            self._calibrate(layout, rows)
            residuals = rows.logarithm - self._estimate(layout, covered).logarithm
            self.novelty_ = Novelty.of(self._unread(rows.features), history.columns, residuals)
        return self

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows, NaN where they are not covered; see ``Predictor``."""
        logarithm, spread = np.full(len(features), np.nan), np.full(len(features), np.nan)
        if self.n_measured_:
            estimate = self.estimate(features)
            logarithm[estimate.covered] = estimate.logarithm
            raw = np.full(len(estimate.logarithm), self.scale_ * self.error_)
            spread[estimate.covered] = widen_spread(raw, estimate)
        return Prediction.of_measurement(logarithm, spread)

    def estimate(self, features: NDArray[np.float64], *, usual: NDArray[np.float64] | None = None) -> RooflineEstimate:
        """Return the predictions of the formulas for encoded rows; only after a fit that measured some.

        Args:
            features: float64 ``[n, n_columns]``.
            usual: as for ``Roofline.estimate``.
        """
        if self.decoder_ is None:
            raise ValueError("fit the formulas on recommenders first")
        layout = RecommenderLayout.of(self.decoder_.facts(features))
        covered = layout.covered & layout.has_tables
        novel = self.novelty_.of_categories(completed_by(self._unread(features[covered]), usual))
        return self._estimate(layout.at(covered), covered, novel=novel)

    def parts(self, layout: RecommenderLayout) -> dict[str, NDArray[np.float64]]:
        """Return part -> seconds per step of ``n`` trainings, float64 ``[n]``, NaN where not covered."""
        seconds = recommender_step_time(layout, self.constants_)
        return {name: np.where(layout.covered, part * np.exp(-self.bias_), np.nan) for name, part in seconds.items()}

    def hidden(self, layout: RecommenderLayout) -> dict[str, NDArray[np.float64]]:
        """Return part -> seconds per step of communication that computation hides, NaN where not covered, ``[n]``."""
        seconds = recommender_hidden(layout, self.constants_)
        return {name: np.where(layout.covered, part * np.exp(-self.bias_), np.nan) for name, part in seconds.items()}

    def samples_per_second(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the throughput of the whole job with the current constants, NaN without tables, ``[n]``."""
        layout = RecommenderLayout.from_rows(rows)
        seconds = np.sum(list(self.parts(layout).values()), axis=0)
        return np.where(layout.has_tables, layout.samples * layout.ranks / seconds, np.nan)

    def _calibrate(self, layout: RecommenderLayout, rows: MeasuredRows) -> None:
        work = layout.samples * layout.ranks
        with one_thread():
            self.constants_ = calibrate_recommenders(layout, work / rows.throughput, rows.uncertainty)
        coordinates = np.sort(_log2_coordinates(layout), axis=0)
        n_outermost = int(np.sqrt(self.n_measured_)) - 1
        self.range_ = coordinates[0], coordinates[-1]
        self.dense_range_ = coordinates[n_outermost], coordinates[-1 - n_outermost]
        covered = np.ones(len(layout), dtype=np.bool_)
        errors = rows.logarithm - self._estimate(layout, covered).logarithm
        self.bias_ = weighted_quantile(errors, rows.weights, 0.5)
        errors = np.abs(errors - self.bias_)
        data_weight = self.effective_n_ / (self.effective_n_ + PRIOR_TRIALS)
        typical_error = weighted_quantile(errors, rows.weights, 0.5) * 1.4826
        self.error_ = float(np.sqrt(data_weight * typical_error**2 + (1.0 - data_weight) * PRIOR_ERROR**2))
        self.scale_ = conformal_scale(errors, np.hypot(self.error_, rows.uncertainty))

    def _calibrate_dense(self, history: TrainingTable) -> None:
        """Calibrate on rows with dense layers and without tables, which are explained and never predicted."""
        measured = np.flatnonzero(np.isfinite(history.throughput) & (history.throughput > 0.0))
        rows = [index for index in measured.tolist() if "layer_n_params" in history.rows[index]]
        layout = RecommenderLayout.from_rows([history.rows[index] for index in rows])
        chosen = np.flatnonzero(layout.covered)
        indices = np.array(rows, dtype=np.intp)[chosen]
        uncertainty = np.zeros(len(history.rows)) if history.uncertainty is None else history.uncertainty
        layout = layout.at(chosen)
        seconds = layout.samples * layout.ranks / history.throughput[indices]
        with one_thread():
            self.constants_ = calibrate_recommenders(layout, seconds, uncertainty[indices])

    def _estimate(
        self, layout: RecommenderLayout, covered: NDArray[np.bool_], *, novel: NDArray[np.float64] | float = 0.0
    ) -> RooflineEstimate:
        parts = recommender_step_time(layout, self.constants_)
        total, coordinates = np.sum(list(parts.values()), axis=0), _log2_coordinates(layout)
        none = np.zeros(len(layout))
        shares = [np.log(1e-3 + part / total) for part in parts.values()]
        return RooflineEstimate(
            covered=covered,
            logarithm=np.log(layout.samples * layout.ranks) - np.log(total) + self.bias_,
            slower=none,
            slow=none,
            beyond=doublings_outside(coordinates, *self.range_),
            thin=doublings_outside(coordinates, *self.dense_range_),
            novel=none + novel,
            traits=np.nan_to_num(np.column_stack([*shares, coordinates])),
        )

    def _unread(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``features`` without the words that the formulas read: a new one of these is no surprise to them."""
        unread = features.copy()
        unread[:, self.read_columns_] = 0.0
        return unread


def calibrate_recommenders(
    layout: RecommenderLayout, seconds: NDArray[np.float64], uncertainty: NDArray[np.float64]
) -> Constants:
    """Return the MAP estimates of the constants from measured steps, with a robust loss.

    Args:
        layout: ``n`` trainings, all covered; with none at all, the defaults are returned.
        seconds: per step, float64 ``[n]``, > 0.
        uncertainty: of their logarithms, as each run reported it, float64 ``[n]``.
    """
    if not len(layout):
        return RECOMMENDER_DEFAULTS
    order = np.argsort(seconds, kind="stable")[:: int(np.ceil(len(seconds) / _MOST_ROWS))]
    layout, measured, noise = layout.at(order), np.log(seconds[order]), np.hypot(_NOISE, uncertainty[order])

    def constants_at(theta: NDArray[np.float64]) -> Constants:
        return dict(zip(RECOMMENDER_NAMES, np.exp(theta).tolist(), strict=True))

    def misfit(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = recommender_step_time(layout, constants_at(theta))
        errors = measured - np.log(np.sum(list(parts.values()), axis=0))
        robust = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + (errors / noise) ** 2) - 1.0))
        return np.concatenate([robust, (theta - RECOMMENDER_CENTRE) / RECOMMENDER_WIDTH])

    return constants_at(least_squares(misfit, RECOMMENDER_CENTRE.copy(), steps=_STEPS))


def _log2_coordinates(layout: RecommenderLayout) -> NDArray[np.float64]:
    tables = layout.tables
    lookups = (tables.pooling * tables.count).sum(axis=1)
    columns = (
        layout.samples,
        layout.ranks,
        1.0 + layout.sizes.sum(axis=1),
        1.0 + lookups,
        1.0 + tables.bytes.sum(axis=1),
    )
    return np.asarray(np.log2(np.column_stack([*columns, layout.peak])))
