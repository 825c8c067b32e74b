"""Forecast of the seconds of a step: by formulas with constants of public sources, or calibrated on launches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.command_explanation.estimates import FORMULAS, WIDEST, WIDEST_CHECKED, LogNormal
from torchx_cubicml.advisor.command_explanation.program_level import ProgramLevel, usual_values
from torchx_cubicml.predictors.features.device_specs import CPU, find_hardware
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.intervals import PRIOR_TRIALS
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.constants import ConstantsPrior
from torchx_cubicml.predictors.roofline.estimate import PRIOR_ERROR, variance_of_modes, widen_spread
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.public_prior import prior_of, public_prior
from torchx_cubicml.predictors.roofline.step_doubt import log_step_seconds, step_slopes
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.objective_units import RATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
    from torchx_cubicml.records.values import Value

_OF_CPUS = 1.2  # log spread of processors and of the cores of a process, around the one in the table of devices
_OF_DEVICES = 1.0  # of the devices in that table, around the stand-in for an unknown one


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeForecast:
    """Forecast of step times.

    Args:
        roofline: formulas, calibrated where there are launches.
        history: table of the launches; ``None`` without any.
        prior: of the constants, as wide as they remain unknown.
        error: log error of the formulas for one training, beside that of the constants.
        basis: what the numbers are based on, for people.
        level: of the program beside the calibrated formulas; ``None`` without any launch.
        n_own: launches of the program among them.
        widest: ratio of the ends of an interval that is told.
    """

    roofline: Roofline
    history: TrainingTable | None
    prior: ConstantsPrior
    error: float
    basis: str
    level: ProgramLevel | None = None
    n_own: int = 0
    widest: float = WIDEST

    @classmethod
    def of(cls, row: Mapping[str, Value], launches: HistoryRows) -> Self:
        """Return the forecast for commands like ``row``, by launches on its device or else by formulas alone."""
        facts = Facts.from_rows([row])
        launches = launches.only(TrainingLayout.of(Facts.from_rows(launches.rows)).covered.tolist())
        tables = {name: TrainingTable.from_trials(launches.trials, objective=name) for name in RATES}
        objective = max(tables, key=lambda name: len(tables[name].measured))
        history = tables[objective]
        n_measured = len(history.measured)
        if not n_measured:
            return cls._without_launches(row, facts)
        roofline = _fitted(history)
        constants = roofline.calibration_.constants if roofline.calibration_ is not None else roofline.prior_.medians
        remaining = math.sqrt(PRIOR_TRIALS / (PRIOR_TRIALS + n_measured))
        return cls(
            roofline=roofline,
            history=history,
            prior=ConstantsPrior(medians=constants, width=roofline.prior_.width * remaining),
            error=roofline.error_ * roofline.scale_,
            basis=f"{FORMULAS} calibrated on {launches.text}",
            level=ProgramLevel.of_launches(roofline, history, str(row.get("program", ""))).among(
                launches, table=lambda trials: TrainingTable.from_trials(trials, objective=objective), fit=_fitted
            ),
            n_own=launches.n_own,
        )

    @classmethod
    def _without_launches(cls, row: Mapping[str, Value], facts: Facts) -> Self:
        public, layout = public_prior(), TrainingLayout.of(facts)
        prior, basis, widest = prior_of(facts), FORMULAS, WIDEST
        if public is not None and public.covers(facts, layout)[0] and public.covers_collectives(layout)[0]:
            error = public.widening * math.hypot(public.error, float(public.waiting(layout)[0]))
            basis, widest = f"{FORMULAS} and {len(public.sources)} public sources", WIDEST_CHECKED
            prior = ConstantsPrior(medians=prior.medians, width=prior.width * public.widening)
        else:
            hardware = find_hardware(str(row.get("device", "")))
            of_device = _OF_DEVICES if hardware is None else _OF_CPUS if hardware is CPU else 0.0
            error = math.hypot(PRIOR_ERROR, of_device)
        return cls(roofline=Roofline(), history=None, prior=prior, error=error, basis=basis, widest=widest)

    def log_step(self, row: Mapping[str, Value]) -> LogNormal | None:
        """Return the distribution of the seconds of a step; ``None`` where the formulas do not cover it."""
        layout = TrainingLayout.of(Facts.from_rows([row]))
        if not layout.covered[0]:
            return None
        if self.history is None or self.level is None:
            logarithm, deviation = log_step_seconds(layout, self.prior)
            return LogNormal(float(logarithm[0]), math.hypot(float(deviation[0]), self.error))
        features = encode_rows(self.history.columns, [row])
        estimate = self.roofline.estimate(features, usual=usual_values(self.history, row))
        rate = float(estimate.logarithm[0]) + self.level.offset
        per_sample = self.roofline.per_sample_
        work = float(layout.tokens_per_step[0]) / (float(layout.sequence[0]) if per_sample else 1.0)
        spread = float(widen_spread(np.hypot(self.level.spread, np.sqrt(variance_of_modes(estimate))), estimate)[0])
        return LogNormal(math.log(work) - rate, spread) if math.isfinite(rate) else None

    def log_gain(self, row: Mapping[str, Value], changed: Mapping[str, Value]) -> LogNormal | None:
        """Return the distribution of the throughput of a changed row over that of ``row``.

        Both share the constants and the device: what is unknown of these cancels, as far as they count alike.
        """
        layout = TrainingLayout.of(Facts.from_rows([row, changed]))
        if not layout.covered.all():
            return None
        logarithm, slopes = step_slopes(layout, self.prior)
        work = np.log(layout.tokens_per_step)
        shared = float(np.sqrt(np.square((slopes[:, 1] - slopes[:, 0]) * self.prior.width).sum()))
        own = math.sqrt(2.0) * min(self.error, _WITHIN_A_MACHINE)
        gain = float(work[1] - work[0] - (logarithm[1] - logarithm[0]))
        return LogNormal(gain, math.hypot(shared, own))

    def parts(self, row: Mapping[str, Value], step_s: float) -> dict[str, float]:
        """Return part of the formulas -> seconds; they add up to ``step_s``. Empty where they do not cover the row."""
        seconds = self.roofline.explain(row)
        total = sum(seconds.values())
        return {name: part * step_s / total for name, part in seconds.items()} if total > 0.0 else {}


def _fitted(history: TrainingTable) -> Roofline:
    with one_thread():
        return Roofline().fit(history, rng=np.random.default_rng(0))


_WITHIN_A_MACHINE = 0.15  # log error of calibrated formulas between trainings of one source: see ``public_prior.json``
