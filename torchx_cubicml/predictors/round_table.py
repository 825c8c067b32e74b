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
from torchx_cubicml.records.suggestion import promised_round, promised_throughput, tune_of

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
        median: median throughput, in the unit of the objective; ``None`` without one.
        best: highest throughput of the round; ``None`` without one.
        best_so_far: highest throughput up to the end of the round (the frontier); ``None`` without one.
        tau: Kendall's tau between predicted and measured throughput within the round, -1 to 1; ``None`` where fewer
            than three launches have both, or all are alike.
        ranked: number of launches that have both.
    """

    number: int
    launches: int
    measured: int
    median: float | None
    best: float | None
    best_so_far: float | None
    tau: float | None
    ranked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTable:
    """Figures of all rounds of one workload.

    Args:
        rounds: in their order.
        tau: Kendall's tau between predicted and measured throughput, over the launches of all rounds; ``None`` as in
            ``RoundFigures``.
        ranked: number of launches behind it.
    """

    rounds: tuple[RoundFigures, ...]
    tau: float | None
    ranked: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the table as JSON values."""
        return {"rounds": [asdict(each) for each in self.rounds], "tau": self.tau, "ranked": self.ranked}


def round_table(trials: Iterable[Trial], *, objective: str, tune: str = "") -> RoundTable:
    """Return the figures of the rounds of one workload's trials.

    The launches before the first round, those of other tunes too, count as round 0. Later ones without a round, which
    measure a config again, are left out.

    Args:
        trials: of one workload, in any order.
        objective: name of the throughput, or of one per device hour. Predictions in another unit do not count.
        tune: whose rounds, one of ``tunes_in_rounds``.
    """
    by_round: defaultdict[int, list[Trial]] = defaultdict(list)
    for number, trial in numbered(trials, tune=tune):
        if number is not None:
            by_round[number].append(trial)
    figures: list[RoundFigures] = []
    best_so_far: float | None = None
    for each, launches in sorted(by_round.items()):
        measured = [value for trial in launches if (value := trial.throughput(objective)) is not None]
        best = max(measured, default=None)
        best_so_far = max(filter(None, (best, best_so_far)), default=None)
        tau, ranked = _tau(launches if each else [], objective)
        figures.append(
            RoundFigures(
                number=each,
                launches=len(launches),
                measured=len(measured),
                median=median(measured) if measured else None,
                best=best,
                best_so_far=best_so_far,
                tau=tau,
                ranked=ranked,
            )
        )
    tau, ranked = _tau([trial for each, launches in by_round.items() if each for trial in launches], objective)
    return RoundTable(rounds=tuple(figures), tau=tau, ranked=ranked)


def tunes_in_rounds(trials: Iterable[Trial]) -> list[str]:
    """Return the tunes that launched rounds, the earliest first, as ``tune_of`` names them."""
    rounds = [trial for trial in trials if promised_round(trial.suggestion) is not None]
    return list(dict.fromkeys(tune_of(trial.launch_id) for trial in sorted(rounds, key=lambda each: each.started_at)))


def numbered(trials: Iterable[Trial], *, tune: str = "") -> list[tuple[int | None, Trial]]:
    """Return the round of each trial of one workload, as ``round_table`` counts: 0 before the first, ``None`` for none.

    Args:
        trials: of one workload.
        tune: whose rounds.
    """
    rounds = ((promised_round(trial.suggestion), trial) for trial in trials)
    found = [(each if each and tune_of(trial.launch_id) == tune else None, trial) for each, trial in rounds]
    begin = min((trial.started_at for number, trial in found if number is not None), default="")
    return [
        (0 if number is None and (not begin or trial.started_at < begin) else number, trial) for number, trial in found
    ]


def _tau(trials: Sequence[Trial], objective: str) -> tuple[float | None, int]:
    """Return Kendall's tau, and the number of launches that are both predicted and measured."""
    pairs = [(promised_throughput(trial.suggestion, objective), trial.throughput(objective)) for trial in trials]
    known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
    if len(known) < _FEWEST:
        return None, len(known)
    tau = correlations(known[:, 0], known[:, 1])[0]
    return (tau if np.isfinite(tau) else None), len(known)
