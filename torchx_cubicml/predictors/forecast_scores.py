"""Scores of the predictions that were stored with launches, against what these launches then measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.evaluation import correlations
from torchx_cubicml.predictors.round_table import numbered
from torchx_cubicml.records.suggestion import promised_throughput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial

_FEWEST = 3  # launches from which a correlation says anything


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScores:
    """Scores over the launches that were both predicted and measured.

    Args:
        launches: number of them, >= 3.
        tau: Kendall's rank correlation, -1 to 1.
        pearson: linear correlation.
        spearman: rank correlation.
        inside: number of measurements inside their 80 % interval.
        with_interval: number of launches whose interval is known.
    """

    launches: int
    tau: float
    pearson: float
    spearman: float
    inside: int
    with_interval: int

    def __str__(self) -> str:
        text = (
            f"Predicted against measured, over {self.launches:,} launches: Kendall's tau {self.tau:.2f}, Pearson "
            f"{self.pearson:.2f}, Spearman {self.spearman:.2f}."
        )
        if not self.with_interval:
            return text
        return (
            f"{text} {self.inside:,} of {self.with_interval:,} measurements ({self.inside / self.with_interval:.0%}) "
            "lie in their 80 % interval, which leaves out the error of a single measurement."
        )


def forecast_scores(trials: Sequence[Trial], *, objective: str, tune: str = "") -> ForecastScores | None:
    """Return the scores; ``None`` for fewer than three launches, or where all predictions or measurements are alike.

    Where that tune had rounds, only their launches count, as in the figure.

    Args:
        trials: of one workload.
        objective: name of the throughput, or of one per device hour.
        tune: whose rounds count, one of ``tunes_in_rounds``.
    """
    launches = numbered(trials, tune=tune)
    has_rounds = any(number for number, _ in launches)
    chosen = [trial for number, trial in launches if number or not has_rounds]
    pairs = [
        (predicted, measured, trial)
        for trial in chosen
        if (predicted := promised_throughput(trial.suggestion, objective)) is not None
        and (measured := trial.throughput(objective)) is not None
    ]
    if len(pairs) < _FEWEST:
        return None
    values = np.array([pair[:2] for pair in pairs], dtype=np.float64)
    tau, pearson, spearman = correlations(values[:, 0], values[:, 1])
    if not np.isfinite((tau, pearson, spearman)).all():
        return None
    intervals = [(ends, measured) for _, measured, trial in pairs if (ends := promised_interval(trial)) is not None]
    return ForecastScores(
        launches=len(pairs),
        tau=tau,
        pearson=pearson,
        spearman=spearman,
        inside=sum(low <= measured <= high for (low, high), measured in intervals),
        with_interval=len(intervals),
    )


def promised_interval(trial: Trial) -> tuple[float, float] | None:
    """Return the 80 % interval of the true throughput that was stored with a launch; ``None`` where it was not."""
    low, high = ((trial.suggestion or {}).get(name) for name in ("low", "high"))
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in (low, high)):
        return None
    return float(low), float(high)  # type: ignore[arg-type]  # both are numbers, as checked above
