"""Roofline predictor: analytic step time with calibrated constants, and its breakdown into parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.intervals import PRIOR_TRIALS, Novelty, conformal_scale
from torchx_cubicml.predictors.roofline.calibration import Calibration, calibrate
from torchx_cubicml.predictors.roofline.category_offsets import CategoryOffsets
from torchx_cubicml.predictors.roofline.estimate import (
    PRIOR_ERROR,
    RooflineEstimate,
    completed_by,
    doublings_outside,
    variance_of_modes,
    widen_spread,
)
from torchx_cubicml.predictors.roofline.facts import Decoder, Facts
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.public_prior import prior_of
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout, has_tables
from torchx_cubicml.predictors.roofline.recommender_memory import recommender_memory_parts
from torchx_cubicml.predictors.roofline.recommender_predictor import RecommenderRoofline
from torchx_cubicml.predictors.roofline.step_time import explained_parts, step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import MeasuredRows, TrainingTable
    from torchx_cubicml.predictors.roofline.calibration import ExpectedStepTime
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.records.values import Value

_FEWEST_FOR_OFFSETS = 10  # measured trials
_RANGE_COLUMNS = ("layers", "width", "sequence", "micro", "rounds", "world", "tp", "pp", "cp", "ep", "peak")


class Roofline:
    """The ``roofline`` predictor: analytic step time of transformers and recommenders, calibrated on history.

    It needs ``n_layers``, ``d_model`` (or ``n_params``), ``seq_len``, ``micro_batch_size`` and ``world_size`` (or
    degrees that multiply to it). Rows without them are those of recommenders if these have embedding tables; see
    ``RecommenderRoofline``. Others are not covered: their prediction is NaN. Unlike ``predict``, the methods
    ``explain``, ``memory`` and ``tokens_per_second`` work before ``fit``, with the medians of the prior: the public one
    where it knows all devices (``PublicPrior``), else the hand-set one. The unit of a history's throughput, tokens or
    samples, is the one that fits better.
    """

    def __init__(self) -> None:
        self.calibration_: Calibration | None = None
        self.bias_ = 0.0
        self.category_offsets_: CategoryOffsets | None = None
        self.recommenders_ = RecommenderRoofline()
        self.n_measured_ = 0

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Calibrate on the measured rows of ``history`` that are covered; see ``Predictor``."""
        self.decoder_ = Decoder(history.columns, history.rows)
        self.recommenders_ = RecommenderRoofline().fit(history)
        rows = history.measured
        layout = self._layout(rows.features)
        covered = layout.covered
        layout, rows = layout.rows(covered), rows.rows(covered)
        self.prior_ = prior_of(self.decoder_.facts(rows.features))
        self.category_offsets_ = None
        self._calibrate(layout, rows, rng)
        if len(rows) >= _FEWEST_FOR_OFFSETS:
            self._fit_offsets(layout, rows, history.columns.categorical, rng)
        if self.n_measured_:
            self.novelty_ = Novelty.of(
                rows.features, history.columns, rows.logarithm - self._estimate_all(layout).logarithm
            )
        return self

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows, NaN where they are not covered; see ``Predictor``."""
        logarithm, spread = np.full(len(features), np.nan), np.full(len(features), np.nan)
        if self.n_measured_:
            estimate = self.estimate(features)
            logarithm[estimate.covered] = estimate.logarithm
            spread[estimate.covered] = widen_spread(self.scale_ * self._raw_spread(estimate), estimate)
        if self.recommenders_.n_measured_:
            others = self.recommenders_.predict(features)
            missing = np.isnan(logarithm)
            logarithm, spread = (
                np.where(missing, others.logarithm, logarithm),
                np.where(missing, others.spread, spread),
            )
        return Prediction.of_measurement(logarithm, spread)

    def estimate(self, features: NDArray[np.float64], *, usual: NDArray[np.float64] | None = None) -> RooflineEstimate:
        """Return the predictions of the transformers' formulas for encoded rows.

        Args:
            features: float64 ``[n, n_columns]``.
            usual: what counts as the value of a missing category when it is asked whether it is new, ``[n_columns]``.
        """
        layout = self._layout(features)
        covered = layout.covered
        estimate = self._estimate(layout if covered.all() else layout.rows(covered), covered)
        features = features[covered]
        level = self.category_offsets_(features) if self.category_offsets_ is not None else 0.0
        novel = self.novelty_.of_categories(completed_by(features, usual))
        return replace(estimate, logarithm=estimate.logarithm + level, novel=novel)

    def explain(self, row: Mapping[str, Value]) -> dict[str, float]:
        """Return the seconds per step of each of ``EXPLAINED_PARTS``; empty where the row is not covered.

        For a row with the sizes of dense layers, or of embedding tables, instead of a transformer's facts, the parts
        are ``RECOMMENDER_PARTS``.

        >>> row = {"n_layers": 32, "d_model": 4096, "seq_len": 2048, "micro_batch_size": 2, "world_size": 16}
        >>> seconds = Roofline().explain({**row, "tp_degree": 8, "device": "NVIDIA H100 80GB HBM3"})
        >>> max(seconds, key=seconds.get), seconds["bubble"]
        ('compute', 0.0)
        """
        facts = Facts.from_rows([row])
        layout = TrainingLayout.of(facts)
        if not layout.covered[0]:
            recommender = RecommenderLayout.from_rows([row])
            parts = self.recommenders_.parts(recommender) if recommender.covered[0] else {}
            return {name: float(seconds[0]) for name, seconds in parts.items()}
        parts = explained_parts(layout, self._constants(facts))
        return {name: float(seconds[0] * np.exp(-self.bias_)) for name, seconds in parts.items()}

    def hidden(self, row: Mapping[str, Value]) -> dict[str, float]:
        """Return the seconds per step of communication that computation hides, by part; empty where not covered."""
        facts = Facts.from_rows([row])
        layout = TrainingLayout.of(facts)
        if not layout.covered[0]:
            recommender = RecommenderLayout.from_rows([row])
            hidden = self.recommenders_.hidden(recommender) if recommender.covered[0] else {}
            return {name: float(seconds[0]) for name, seconds in hidden.items()}
        hidden = step_time(layout, self._constants(facts)).hidden
        return {name: float(seconds[0] * np.exp(-self.bias_)) for name, seconds in hidden.items()}

    def tokens_per_second(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the throughput of the whole job with the current constants, ``[n]``.

        It is NaN for what is no transformer; see ``RecommenderRoofline.samples_per_second`` for recommenders.
        """
        facts = Facts.from_rows(rows)
        layout = TrainingLayout.of(facts)
        with np.errstate(invalid="ignore", divide="ignore"):
            seconds = step_time(layout, self._constants(facts)).total() * np.exp(-self.bias_)
        return np.where(layout.covered, layout.tokens_per_step / seconds, np.nan)

    def memory(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, NDArray[np.float64]]:
        """Return the bytes that each part takes on the fullest device at its peak, NaN where not covered, ``[n]``."""
        layout = TrainingLayout.of(Facts.from_rows(rows))
        parts = memory_parts(layout)
        if layout.covered.all() or not any(map(has_tables, rows)):
            return {name: np.where(layout.covered, part, np.nan) for name, part in parts.items()}
        recommenders = RecommenderLayout.from_rows(rows)
        of_recommenders = recommender_memory_parts(recommenders)
        zeros = np.zeros(len(rows))
        return {
            name: np.where(
                layout.covered,
                parts.get(name, zeros),
                np.where(recommenders.covered & recommenders.has_tables, of_recommenders.get(name, zeros), np.nan),
            )
            for name in dict.fromkeys([*parts, *of_recommenders])
        }

    def _constants(self, facts: Facts) -> Constants:
        return self.calibration_.constants if self.calibration_ is not None else prior_of(facts).medians

    def _layout(self, features: NDArray[np.float64]) -> TrainingLayout:
        return TrainingLayout.of(self.decoder_.facts(features))

    def _calibrate(self, layout: TrainingLayout, rows: MeasuredRows, rng: np.random.Generator) -> None:
        self.n_measured_, throughput = len(rows), rows.throughput
        self.effective_n_ = float(rows.weights.sum())
        self.bias_, self.error_, self.scale_, self.per_sample_ = 0.0, PRIOR_ERROR, 1.0, False
        self.calibration_ = None
        if not self.n_measured_:
            return
        self.per_sample_ = _counts_samples(layout, throughput)
        work = layout.tokens_per_step / (layout.sequence if self.per_sample_ else 1.0)
        with one_thread():
            self.calibration_ = calibrate(layout, work / throughput, rows.uncertainty, rng=rng, prior=self.prior_)
        # A few large jobs do not make a scale well known: the outermost rows are left out.
        n_outermost = int(np.sqrt(self.n_measured_)) - 1
        coordinates = np.sort(_log2_coordinates(layout), axis=0)
        self.range_ = coordinates[0], coordinates[-1]
        self.dense_range_ = coordinates[n_outermost], coordinates[-1 - n_outermost]
        errors = rows.logarithm - self._estimate_all(layout).logarithm
        self.bias_ = weighted_quantile(errors, rows.weights, 0.5)
        self._calibrate_spread(layout, errors - self.bias_, rows)

    def _calibrate_spread(self, layout: TrainingLayout, errors: NDArray[np.float64], rows: MeasuredRows) -> None:
        """Calibrate the predicted spread on the ``errors`` of the training ``rows``."""
        errors = np.abs(errors)
        data_weight = self.effective_n_ / (self.effective_n_ + PRIOR_TRIALS)
        typical_error = weighted_quantile(errors, rows.weights, 0.5) * 1.4826
        self.error_ = float(np.sqrt(data_weight * typical_error**2 + (1 - data_weight) * PRIOR_ERROR**2))
        self.scale_ = conformal_scale(errors, np.hypot(self._raw_spread(self._estimate_all(layout)), rows.uncertainty))

    def _fit_offsets(
        self,
        layout: TrainingLayout,
        rows: MeasuredRows,
        categorical: Sequence[bool],
        rng: np.random.Generator,
    ) -> None:
        """Fit the offsets of categories, then refit the constants, which the offsets had biased."""

        def fit_offsets() -> CategoryOffsets | None:
            residuals = rows.logarithm - self._estimate_all(layout).logarithm
            return CategoryOffsets.of(rows.features, categorical, residuals, rows.weights)

        without_offsets, initial = dict(vars(self)), fit_offsets()
        if initial is None:
            return
        self._calibrate(layout, replace(rows, throughput=rows.throughput / np.exp(initial(rows.features))), rng)
        offsets = fit_offsets()
        if offsets is None or not offsets.worth_keeping(initial.without):
            vars(self).update(without_offsets)
            return
        self._calibrate_spread(layout, offsets.trend.leave_one_out, rows)
        self.category_offsets_ = offsets

    def _estimate_all(self, layout: TrainingLayout) -> RooflineEstimate:
        return self._estimate(layout, np.ones(len(layout.layers), dtype=np.bool_))

    def _estimate(self, layout: TrainingLayout, covered: NDArray[np.bool_]) -> RooflineEstimate:
        coordinates = _log2_coordinates(layout)
        beyond = doublings_outside(coordinates, *self.range_)
        calibration = self.calibration_ or Calibration()
        expected = calibration.expect(layout, inside=np.maximum(1.0 - beyond, 0.0))
        work = np.log(layout.tokens_per_step / (layout.sequence if self.per_sample_ else 1.0))
        return RooflineEstimate(
            covered=covered,
            logarithm=work - expected.logarithm + self.bias_,
            slower=expected.slow - expected.fast,
            slow=expected.chance,
            beyond=beyond,
            thin=doublings_outside(coordinates, *self.dense_range_),
            novel=np.zeros(len(coordinates)),
            traits=_traits(expected, coordinates),
        )

    def _raw_spread(self, estimate: RooflineEstimate) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(self.error_**2 + variance_of_modes(estimate)))


def _counts_samples(layout: TrainingLayout, throughput: NDArray[np.float64]) -> bool:
    seconds = step_time(layout, Calibration().constants).total()
    log_ratio = np.log(layout.tokens_per_step / seconds / throughput)
    return bool(np.abs(np.median(log_ratio - np.log(layout.sequence))) < np.abs(np.median(log_ratio)))


def _traits(expected: ExpectedStepTime, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.exp(expected.fast)
    parts = expected.times.parts()
    parts["overhead"] = parts["overhead"] + parts.pop("offload")
    shares = [np.log(1e-3 + part / total) for part in parts.values()]
    table: NDArray[np.float64] = np.column_stack([*shares, expected.chance, coordinates])
    return np.nan_to_num(table)


def _log2_coordinates(layout: TrainingLayout) -> NDArray[np.float64]:
    columns: list[NDArray[np.float64]] = [np.log2(getattr(layout, name)) for name in _RANGE_COLUMNS]
    return np.column_stack(columns)
