"""The ``roofline`` as a predictor: facts in, calibrated throughput out, and where its seconds go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.intervals import NOISE_FLOOR, PRIOR_TRIALS, Novelty, conformal_scale
from torchx_cubicml.predictors.roofline.calibration import Calibration, calibrate
from torchx_cubicml.predictors.roofline.category_offsets import CategoryOffsets
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Decoder, Facts
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.recommender import Recommender, calibrate_recommenders
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History, MeasuredRows
    from torchx_cubicml.predictors.roofline.calibration import ExpectedStepTime
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.records.trial import Value

_PRIOR_ERROR = 0.5  # log error of the formulas alone, believed before anything was measured
_SPENT = 10.0  # constants that a calibration makes use of, about: its errors on its own rows are that much too small
_PER_DOUBLING = 0.15  # log error more for each doubling beyond the range of what was measured
_FORGET = 2.0  # doublings beyond it over which the frequency of the slow mode is forgotten
_FEWEST_FOR_LEVELS = 10  # measured trials
_EDGES = ("layers", "width", "sequence", "micro", "rounds", "world", "tp", "pp", "cp", "ep", "peak")


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineEstimate:
    """What the formulas say of ``n`` encoded rows, ``n_covered`` of which name all that they need.

    Args:
        covered: bool ``[n]``.
        logarithm: of the throughput expected, float64 ``[n_covered]``, and so below.
        slower: by how much the logarithm would fall in the slow mode.
        slow: probability of the slow mode.
        beyond: doublings outside the range of what was measured.
        thin: doublings outside the range where many were.
        novel: variance of the logarithm for categories that no trial had.
        traits: what the rows are like in terms that carry over between scales and devices: time shares, both modes'
            throughput per device, tokens per micro batch and the like, ``[n_covered, n_traits]``.
    """

    covered: NDArray[np.bool_]
    logarithm: NDArray[np.float64]
    slower: NDArray[np.float64]
    slow: NDArray[np.float64]
    beyond: NDArray[np.float64]
    thin: NDArray[np.float64]
    novel: NDArray[np.float64]
    traits: NDArray[np.float64]


class Roofline:
    """Analytic step time of transformers, with its constants calibrated on history.

    It needs ``n_layers``, ``d_model`` (or ``n_params``), ``seq_len``, ``micro_batch_size`` and ``world_size`` (or
    degrees that multiply to it). For rows that do not name them it steps aside: their prediction is NaN. Unlike
    ``predict``, ``explain``, ``memory`` and ``tokens_per_second`` serve before ``fit``, with the default constants. The
    unit of a history's throughput, tokens or samples, is the one that fits better.
    """

    def __init__(self) -> None:
        self.calibration_ = Calibration()
        self.level_ = 0.0
        self.levels_: CategoryOffsets | None = None
        self.recommenders_ = DEFAULTS
        self.n_measured_ = 0

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Calibrate on the measured rows of ``history`` that are covered; see ``Predictor``."""
        self.decoder_ = Decoder(history.columns, history.rows)
        self.recommenders_ = _of_recommenders(history)
        rows = history.measured
        layout = self._layout(rows.features)
        covered = layout.covered
        layout, rows = layout.rows(covered), rows.rows(covered)
        self.levels_ = None
        self._calibrate(layout, rows, rng)
        if len(rows) >= _FEWEST_FOR_LEVELS:
            self._learn_levels(layout, rows, history.columns.categorical, rng)
        if self.n_measured_:
            self.novelty_ = Novelty.of(rows.features, history.columns, rows.logarithm - self._all(layout).logarithm)
        return self

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows, NaN where they are not covered; see ``Predictor``."""
        throughput, spread = np.full(len(features), np.nan), np.full(len(features), np.nan)
        if self.n_measured_:
            outline = self.outline(features)
            known = Prediction.at(outline.logarithm, widened(self.scale_ * self._raw_spread(outline), outline))
            throughput[outline.covered], spread[outline.covered] = known.throughput, known.spread
        return Prediction(throughput=throughput, spread=spread)

    def outline(self, features: NDArray[np.float64]) -> RooflineEstimate:
        """Return what the formulas say of encoded rows."""
        layout = self._layout(features)
        covered = layout.covered
        outline = self._outline(layout if covered.all() else layout.rows(covered), covered)
        features = features[covered]
        level = self.levels_(features) if self.levels_ is not None else 0.0
        return replace(outline, logarithm=outline.logarithm + level, novel=self.novelty_.of_categories(features))

    def explain(self, row: Mapping[str, Value]) -> dict[str, float]:
        """Return the seconds per step that each part of ``PARTS`` takes; empty where the row is not covered.

        Of a row that names the sizes of its layers in place of a transformer's: the parts of a recommender.

        >>> row = {"n_layers": 32, "d_model": 4096, "seq_len": 2048, "micro_batch_size": 2, "world_size": 16}
        >>> seconds = Roofline().explain({**row, "tp_degree": 8, "device": "NVIDIA H100 80GB HBM3"})
        >>> max(seconds, key=seconds.get), seconds["bubble"]
        ('compute', 0.0)
        """
        layout = TrainingLayout.of(Facts.from_rows([row]))
        if not layout.covered[0]:
            recommender = Recommender.of(row)
            return recommender.seconds(self.recommenders_) if recommender is not None else {}
        parts = step_time(layout, self.calibration_.constants).parts()
        return {name: float(seconds[0] * np.exp(-self.level_)) for name, seconds in parts.items()}

    def tokens_per_second(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the throughput of the whole job by the constants as they are, NaN where not covered, ``[n]``."""
        layout = TrainingLayout.of(Facts.from_rows(rows))
        with np.errstate(invalid="ignore", divide="ignore"):
            seconds = step_time(layout, self.calibration_.constants).total() * np.exp(-self.level_)
        return np.where(layout.covered, layout.tokens_per_step / seconds, np.nan)

    def memory(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, NDArray[np.float64]]:
        """Return the bytes that each part takes on the fullest device at its peak, NaN where not covered, ``[n]``."""
        layout = TrainingLayout.of(Facts.from_rows(rows))
        return {name: np.where(layout.covered, part, np.nan) for name, part in memory_parts(layout).items()}

    def _layout(self, features: NDArray[np.float64]) -> TrainingLayout:
        return TrainingLayout.of(self.decoder_.facts(features))

    def _calibrate(self, layout: TrainingLayout, rows: MeasuredRows, rng: np.random.Generator) -> None:
        self.n_measured_, throughput = len(rows), rows.throughput
        self.n_sure_ = float(rows.weights.sum())
        self.level_, self.error_, self.scale_, self.per_sample_ = 0.0, _PRIOR_ERROR, 1.0, False
        if not self.n_measured_:
            self.calibration_ = Calibration()
            return
        self.per_sample_ = _counts_samples(layout, throughput)
        work = layout.tokens_per_step / (layout.sequence if self.per_sample_ else 1.0)
        with one_thread():
            self.calibration_ = calibrate(layout, work / throughput, rows.uncertainty, rng=rng)
        # A handful of large jobs does not make their scale known.
        few = int(np.sqrt(self.n_measured_)) - 1
        places = np.sort(_places(layout), axis=0)
        self.range_ = places[0], places[-1]
        self.dense_range_ = places[few], places[-1 - few]
        errors = rows.logarithm - self._all(layout).logarithm
        self.level_ = weighted_quantile(errors, rows.weights, 0.5)
        self._judge(layout, errors - self.level_, rows)

    def _judge(self, layout: TrainingLayout, errors: NDArray[np.float64], rows: MeasuredRows) -> None:
        """Learn how far to trust what is predicted from ``errors`` on the ``rows`` that were learned from."""
        errors = np.abs(errors) * np.sqrt(1.0 + _SPENT / self.n_measured_)
        trust = self.n_sure_ / (self.n_sure_ + PRIOR_TRIALS)
        usual = weighted_quantile(errors, rows.weights, 0.5) * 1.4826
        self.error_ = float(np.sqrt(trust * usual**2 + (1 - trust) * _PRIOR_ERROR**2))
        self.scale_ = conformal_scale(errors, np.hypot(self._raw_spread(self._all(layout)), rows.uncertainty))

    def _learn_levels(
        self,
        layout: TrainingLayout,
        rows: MeasuredRows,
        categorical: Sequence[bool],
        rng: np.random.Generator,
    ) -> None:
        """Fit the levels of categories, then the constants beside them, which they were pulling at."""

        def found() -> CategoryOffsets | None:
            rest = rows.logarithm - self._all(layout).logarithm
            return CategoryOffsets.of(rows.features, categorical, rest, rows.weights)

        alone, first = dict(vars(self)), found()
        if first is None:
            return
        self._calibrate(layout, replace(rows, throughput=rows.throughput / np.exp(first(rows.features))), rng)
        levels = found()
        if levels is None or not levels.worth_keeping(first.without):
            vars(self).update(alone)
            return
        self._judge(layout, levels.trend.leave_one_out, rows)
        self.levels_ = levels

    def _all(self, layout: TrainingLayout) -> RooflineEstimate:
        return self._outline(layout, np.ones(len(layout.layers), dtype=np.bool_))

    def _outline(self, layout: TrainingLayout, covered: NDArray[np.bool_]) -> RooflineEstimate:
        expected = self.calibration_.expect(layout)
        work = np.log(layout.tokens_per_step / (layout.sequence if self.per_sample_ else 1.0))
        places = _places(layout)
        return RooflineEstimate(
            covered=covered,
            logarithm=work - expected.logarithm + self.level_,
            slower=expected.slow - expected.fast,
            slow=expected.chance,
            beyond=_outside(places, *self.range_),
            thin=_outside(places, *self.dense_range_),
            novel=np.zeros(len(places)),
            traits=_traits(layout, expected, places),
        )

    def _raw_spread(self, outline: RooflineEstimate) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(self.error_**2 + variance_of_modes(outline)))


def variance_of_modes(outline: RooflineEstimate) -> NDArray[np.float64]:
    """Return the variance of the logarithm that not knowing a job's mode makes, ``[n_covered]``."""
    return np.asarray(outline.slow * (1.0 - outline.slow) * outline.slower**2)


def widened(spread: NDArray[np.float64], outline: RooflineEstimate) -> NDArray[np.float64]:
    """Return ``spread``, float64 ``[n]``, with what is added outside of where jobs are many.

    Each doubling adds an error; and how often the slow mode comes is forgotten: it may as well be every second job.
    """
    forgotten = (0.25 - outline.slow * (1.0 - outline.slow)) * outline.slower**2
    share = 1.0 - np.exp(-outline.thin / _FORGET)
    variance = spread**2 + share * forgotten + (_PER_DOUBLING * outline.thin) ** 2 + outline.novel
    return np.asarray(np.maximum(np.sqrt(variance), NOISE_FLOOR))


def _of_recommenders(history: History) -> Constants:
    """Return the constants as calibrated on the rows that are recommenders, whose throughput is in samples."""
    doubts = np.zeros(len(history.rows)) if history.uncertainty is None else history.uncertainty
    found = [Recommender.of(row) if "layer_n_params" in row else None for row in history.rows]
    measured = [
        (training, training.samples * training.ranks / speed, doubt)
        for training, speed, doubt in zip(found, history.throughput.tolist(), doubts.tolist(), strict=True)
        if training is not None and speed > 0.0
    ]
    seconds, uncertainty = np.array([each[1:] for each in measured]).reshape(len(measured), 2).T
    return calibrate_recommenders([training for training, _, _ in measured], seconds, uncertainty)


def _counts_samples(layout: TrainingLayout, throughput: NDArray[np.float64]) -> bool:
    seconds = step_time(layout, Calibration().constants).total()
    tokens = np.log(layout.tokens_per_step / seconds / throughput)
    return bool(np.abs(np.median(tokens - np.log(layout.sequence))) < np.abs(np.median(tokens)))


def _traits(layout: TrainingLayout, expected: ExpectedStepTime, places: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.exp(expected.fast)
    shares = [np.log(1e-3 + part / total) for part in expected.times.parts().values()]
    seconds = np.column_stack([expected.logarithm, expected.fast, expected.slow])
    per_device = np.log(layout.tokens_per_step / layout.world)[:, None] - seconds
    table: NDArray[np.float64] = np.column_stack([*shares, per_device, seconds, expected.chance, places])
    return np.nan_to_num(table)


def _outside(places: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((np.maximum(low - places, 0.0) + np.maximum(places - high, 0.0)).sum(axis=1))


def _places(layout: TrainingLayout) -> NDArray[np.float64]:
    columns: list[NDArray[np.float64]] = [np.log2(getattr(layout, name)) for name in _EDGES]
    return np.column_stack(columns)
