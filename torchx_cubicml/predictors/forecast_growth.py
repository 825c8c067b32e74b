"""Growth of accuracy: the predictions that were stored with launches, by how many measurements were known then.

CubicML (arXiv 2409.04585), figure 4, shows the same of refitted predictors; these are the predictions that were made.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.evaluation import correlations
from torchx_cubicml.predictors.forecast_scores import promised_interval
from torchx_cubicml.records.suggestion import promised_throughput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial

_FIRST_GROUP = 10  # known measurements of the first group; each further one doubles them
_FEWEST = 3  # launches from which a rank correlation says anything


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastError:
    """One launch that was predicted, and then measured.

    Args:
        known: number of measured launches of the workload that had ended when it started.
        predicted: median throughput, in the unit of the objective.
        measured: throughput.
        interval: 80 % interval of the true throughput as predicted; ``None`` where it was not stored.
        trial: its record.
    """

    known: int
    predicted: float
    measured: float
    interval: tuple[float, float] | None
    trial: Trial

    @property
    def error(self) -> float:
        """Factor between prediction and measurement less 1, >= 0: 0.1 is ten per cent off."""
        return math.exp(abs(math.log(self.measured / self.predicted))) - 1.0

    @property
    def is_inside(self) -> bool | None:
        """True if the measurement lies in the interval; ``None`` without one."""
        return None if self.interval is None else self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthGroup:
    """Accuracy of the launches that were predicted from a like number of measurements.

    Args:
        first: fewest known measurements.
        last: most.
        launches: number of launches, >= 1.
        error: median of their errors.
        tau: Kendall's tau among them; ``None`` for fewer than three, or where all are alike.
        inside: number of measurements inside their interval.
        with_interval: number of launches whose interval is known.
    """

    first: int
    last: int
    launches: int
    error: float
    tau: float | None
    inside: int
    with_interval: int


def forecast_errors(trials: Sequence[Trial], *, objective: str) -> list[ForecastError]:
    """Return the launches that were predicted and measured, in the order of their start.

    Args:
        trials: of one workload.
        objective: name of the throughput.
    """
    measured = [trial for trial in trials if trial.throughput(objective) is not None and trial.started_at]
    ends = sorted(trial.ended_at or trial.started_at for trial in measured)
    found = []
    for trial in sorted(measured, key=lambda trial: (trial.started_at, trial.trial_id)):
        predicted, rate = promised_throughput(trial.suggestion, objective), trial.throughput(objective)
        if predicted is None or rate is None:
            continue
        known = bisect_right(ends, trial.started_at) - int((trial.ended_at or trial.started_at) <= trial.started_at)
        interval = promised_interval(trial)
        found.append(ForecastError(known=known, predicted=predicted, measured=rate, interval=interval, trial=trial))
    return found


def growth(errors: Sequence[ForecastError]) -> list[GrowthGroup]:
    """Return the accuracy by known measurements: up to 10, to 20, to 40, and so on; groups without a launch are none.

    Args:
        errors: in any order.
    """
    groups: dict[int, list[ForecastError]] = {}
    for each in errors:
        number = max(0, math.ceil(math.log2(max(each.known, 1) / _FIRST_GROUP)))
        groups.setdefault(number, []).append(each)
    return [_group(groups[number], number) for number in sorted(groups)]


def _group(errors: Sequence[ForecastError], number: int) -> GrowthGroup:
    tau = None
    if len(errors) >= _FEWEST:
        found, _, _ = correlations(
            np.array([each.predicted for each in errors]), np.array([each.measured for each in errors])
        )
        tau = found if math.isfinite(found) else None
    known = [each.is_inside for each in errors if each.is_inside is not None]
    return GrowthGroup(
        first=_FIRST_GROUP * 2 ** (number - 1) + 1 if number else 0,
        last=_FIRST_GROUP * 2**number,
        launches=len(errors),
        error=median(each.error for each in errors),
        tau=tau,
        inside=sum(known),
        with_interval=len(known),
    )
