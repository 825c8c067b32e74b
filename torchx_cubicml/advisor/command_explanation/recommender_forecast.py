"""Forecast of the seconds of a recommender's step: by formulas, with their priors or calibrated on launches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.command_explanation.estimates import FORMULAS, WIDEST, LogNormal
from torchx_cubicml.advisor.command_explanation.program_level import ProgramLevel, usual_values
from torchx_cubicml.predictors.features.device_specs import CPU, find_hardware
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.intervals import PRIOR_TRIALS
from torchx_cubicml.predictors.roofline.estimate import PRIOR_ERROR, widen_spread
from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_WIDTH
from torchx_cubicml.predictors.roofline.recommender_doubt import recommender_slopes
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout, has_tables
from torchx_cubicml.predictors.roofline.recommender_predictor import RecommenderRoofline
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_OF_CPUS = 1.2  # log spread of processors and of the cores of a process, around the one in the table of devices
_OF_DEVICES = 1.0  # log spread of the devices in the table of data sheets, around the stand-in for an unknown one
_WITHIN_A_MACHINE = 0.15  # log error between two configs on one machine, of formulas calibrated elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderTimeForecast:
    """Forecast of step times of recommenders.

    Args:
        formulas: calibrated where there are launches.
        history: table of the launches; ``None`` without any.
        width: log deviations of the constants that remain, float64 ``[n_constants]``.
        error: log error of the formulas for one training, beside that of the constants.
        basis: what the numbers are based on, for people.
        level: of the program beside the calibrated formulas; ``None`` without any launch.
        n_own: launches of the program among them.
        widest: ratio of the ends of an interval that is told.
    """

    formulas: RecommenderRoofline
    history: TrainingTable | None
    width: NDArray[np.float64]
    error: float
    basis: str
    level: ProgramLevel | None = None
    n_own: int = 0
    widest: float = WIDEST

    @classmethod
    def of(cls, row: Mapping[str, Value], launches: HistoryRows) -> Self:
        """Return the forecast for commands like ``row``, by launches of recommenders or else by formulas alone."""
        launches = launches.only([has_tables(each) for each in launches.rows])
        history = _table(launches.trials)
        formulas = _fitted(history)
        if not formulas.n_measured_:
            hardware = find_hardware(str(row.get("device", "")))
            of_device = _OF_DEVICES if hardware is None else _OF_CPUS if hardware is CPU else 0.0
            error = math.hypot(PRIOR_ERROR, of_device)
            return cls(formulas=formulas, history=None, width=RECOMMENDER_WIDTH, error=error, basis=FORMULAS)
        remaining = math.sqrt(PRIOR_TRIALS / (PRIOR_TRIALS + formulas.n_measured_))
        count = (
            f"{formulas.n_measured_} {'launch' if formulas.n_measured_ == 1 else 'launches'} of recommenders of yours"
        )
        return cls(
            formulas=formulas,
            history=history,
            width=RECOMMENDER_WIDTH * remaining,
            error=formulas.error_ * formulas.scale_,
            basis=f"{FORMULAS} calibrated on {count}",
            level=ProgramLevel.of_launches(formulas, history, str(row.get("program", ""))).among(
                launches, table=_table, fit=_fitted
            ),
            n_own=launches.n_own,
        )

    def log_step(self, row: Mapping[str, Value]) -> LogNormal | None:
        """Return the distribution of the seconds of a step; ``None`` where the formulas do not cover it."""
        layout = _layout(row)
        if layout is None:
            return None
        if self.history is None or self.level is None:
            logarithm, slopes = recommender_slopes(layout, self.formulas.constants_)
            deviation = float(np.sqrt(np.square(slopes[:, 0] * self.width).sum()))
            return LogNormal(float(logarithm[0]), math.hypot(deviation, self.error))
        features = encode_rows(self.history.columns, [row])
        estimate = self.formulas.estimate(features, usual=usual_values(self.history, row))
        rate = float(estimate.logarithm[0]) + self.level.offset
        work = float(layout.samples[0] * layout.ranks[0])
        spread = float(widen_spread(np.array([self.level.spread]), estimate)[0])
        return LogNormal(math.log(work) - rate, spread) if math.isfinite(rate) else None

    def log_gain(self, row: Mapping[str, Value], changed: Mapping[str, Value]) -> LogNormal | None:
        """Return the distribution of the throughput of a changed row over that of ``row``.

        What is unknown of the constants cancels, as far as it counts alike in both.
        """
        before, after = _layout(row), _layout(changed)
        if before is None or after is None:
            return None
        (old, old_slopes), (new, new_slopes) = (
            recommender_slopes(layout, self.formulas.constants_) for layout in (before, after)
        )
        shared = float(np.sqrt(np.square((new_slopes - old_slopes)[:, 0] * self.width).sum()))
        work = math.log(float(after.samples[0] * after.ranks[0]) / float(before.samples[0] * before.ranks[0]))
        own = math.sqrt(2.0) * min(self.error, _WITHIN_A_MACHINE)
        return LogNormal(work - float(new[0] - old[0]), math.hypot(shared, own))

    def parts(self, row: Mapping[str, Value], step_s: float) -> dict[str, float]:
        """Return part of the formulas -> seconds; they add up to ``step_s``. Empty where they do not cover the row."""
        layout = _layout(row)
        if layout is None:
            return {}
        seconds = {name: float(part[0]) for name, part in self.formulas.parts(layout).items()}
        total = sum(seconds.values())
        return {name: part * step_s / total for name, part in seconds.items()}


def _table(trials: Sequence[Trial]) -> TrainingTable:
    return TrainingTable.from_trials(trials, objective="samples_per_second")


def _fitted(history: TrainingTable) -> RecommenderRoofline:
    with one_thread():
        return RecommenderRoofline().fit(history)


def _layout(row: Mapping[str, Value]) -> RecommenderLayout | None:
    """Return the layout of a recommender; ``None`` where the formulas do not cover it."""
    layout = RecommenderLayout.from_rows([row])
    return layout if bool(layout.covered[0] and layout.has_tables[0]) else None
