"""Rounds of a tune as a table: the frontier, and how well each round's predictions ranked its launches.

CubicML (arXiv 2409.04585), figure 2, shows both: throughput jumps from round to round, and falls within a round, whose
launches stand in the order of their prediction.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.evaluation import correlations
from torchx_cubicml.records.suggestion import promised_round
from torchx_cubicml.records.trial import LEAST_THROUGHPUT, MOST_THROUGHPUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial

_FEWEST = 3  # launches from which a rank correlation says anything


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """Figures of one round.

    Args:
        number: of the round, >= 1; 0 for the launches before the first.
        launches: number of launches.
        measured: those with a throughput.
        median: median throughput of the whole job, in the unit of the objective; ``None`` without one.
        best: highest throughput of the round; ``None`` without one.
        best_so_far: highest throughput up to the end of the round (the frontier); ``None`` without one.
        tau: Kendall's tau between predicted and measured throughput within the round, -1 to 1; ``None`` where fewer
            than three launches have both, or all are alike.
    """

    number: int
    launches: int
    measured: int
    median: float | None
    best: float | None
    best_so_far: float | None
    tau: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTable:
    """Figures of all rounds of one workload.

    Args:
        rounds: in their order.
        tau: Kendall's tau between predicted and measured throughput, over the launches of all rounds; ``None`` as in
            ``RoundFigures``.
    """

    rounds: tuple[RoundFigures, ...]
    tau: float | None

    def to_json(self) -> dict[str, object]:
        """Return the table as JSON values."""
        return {"rounds": [asdict(each) for each in self.rounds], "tau": self.tau}


def round_table(trials: Iterable[Trial], *, objective: str) -> RoundTable:
    """Return the figures of the rounds of one workload's trials.

    The launches before the first round count as round 0. Later ones without a round, which measure a config again, are
    left out.

    Args:
        trials: of one workload, in any order.
        objective: name of the throughput.
    """
    numbered = [(promised_round(trial.suggestion), trial) for trial in trials]
    begin = min((trial.started_at for number, trial in numbered if number is not None), default="")
    by_round: defaultdict[int, list[Trial]] = defaultdict(list)
    for number, trial in numbered:
        if number is not None:
            by_round[number].append(trial)
        elif not begin or trial.started_at < begin:
            by_round[0].append(trial)
    figures: list[RoundFigures] = []
    best_so_far: float | None = None
    for each, launches in sorted(by_round.items()):
        measured = [value for trial in launches if (value := _measured(trial, objective)) is not None]
        best = max(measured, default=None)
        best_so_far = max(filter(None, (best, best_so_far)), default=None)
        figures.append(
            RoundFigures(
                number=each,
                launches=len(launches),
                measured=len(measured),
                median=median(measured) if measured else None,
                best=best,
                best_so_far=best_so_far,
                tau=_tau(launches, objective) if each else None,
            )
        )
    return RoundTable(
        rounds=tuple(figures),
        tau=_tau([trial for each, launches in by_round.items() if each for trial in launches], objective),
    )


def _measured(trial: Trial, objective: str) -> float | None:
    return trial.measurement.throughput(objective) if trial.measurement is not None else None


def _predicted(trial: Trial) -> float | None:
    value = (trial.suggestion or {}).get("throughput")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if LEAST_THROUGHPUT <= value <= MOST_THROUGHPUT else None


def _tau(trials: Sequence[Trial], objective: str) -> float | None:
    pairs = [(_predicted(trial), _measured(trial, objective)) for trial in trials]
    known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
    if len(known) < _FEWEST:
        return None
    tau = correlations(known[:, 0], known[:, 1])[0]
    return tau if np.isfinite(tau) else None
