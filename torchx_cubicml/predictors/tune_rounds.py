"""Tunes in rounds as ``history rounds`` shows them: the trials of a store by workload and tune, with their figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.predictors.evaluation import most_measured_objective
from torchx_cubicml.predictors.round_table import RoundTable, round_table, tunes_in_rounds
from torchx_cubicml.records.objective_units import PER_DEVICE_HOUR, PER_JOULE
from torchx_cubicml.records.suggestion import promised_objective, promised_round
from torchx_cubicml.records.workload import PROJECT, is_same_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRounds:
    """Rounds of one tune, or the launches of a workload without rounds.

    Args:
        trials: of the workload, in the order of the store.
        objective: unit of the figures.
        table: the figures.
        tune: as ``tunes_in_rounds`` names it; empty where the launches do not say.
        number: of the tune among those of the workload, from 1.
        n_tunes: tunes of the workload in rounds; 0 without rounds.
    """

    trials: tuple[Trial, ...]
    objective: str
    table: RoundTable
    tune: str
    number: int
    n_tunes: int

    @property
    def name(self) -> str:
        """Name of the tune in words; empty for the only one."""
        return f"tune {self.number} of {self.n_tunes}" if self.n_tunes > 1 else ""


def tunes_of_store(trials: Sequence[Trial]) -> list[TuneRounds]:
    """Return the tunes in rounds of each workload; a workload without one has one entry with ``n_tunes`` 0."""
    found = []
    for group in by_workload(trials):
        tunes = tunes_in_rounds(group)
        objective = table_objective(group)
        found += [rounds_of(group, tunes, number, objective=objective) for number in range(1, max(1, len(tunes)) + 1)]
    return found


def rounds_of(trials: Sequence[Trial], tunes: Sequence[str], number: int, *, objective: str) -> TuneRounds:
    """Return the rounds of one tune.

    Args:
        trials: of one workload.
        tunes: its tunes in rounds, as ``tunes_in_rounds`` gives them; there may be none.
        number: of the tune among them, from 1.
        objective: unit of the figures.
    """
    tune = tunes[number - 1] if tunes else ""
    return TuneRounds(
        trials=tuple(trials),
        objective=objective,
        table=round_table(trials, objective=objective, tune=tune),
        tune=tune,
        number=number,
        n_tunes=len(tunes),
    )


def by_workload(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of each workload; one with rounds holds all trials that agree with it, as for its tune."""
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        key = repr(sorted((name, value) for name, value in trial.workload.items() if name != PROJECT))
        alike.setdefault(key, []).append(trial)
    groups: list[list[Trial]] = []
    taken: set[str] = set()
    for group in sorted(alike.values(), key=_has_rounds, reverse=True):
        if group[0].trial_id in taken:
            continue
        whole = group
        if _has_rounds(group):
            whole = [trial for trial in trials if is_same_workload(trial, group[0].workload)]
            taken |= {trial.trial_id for trial in whole}
        groups.append(whole)
    return groups


def _has_rounds(trials: Sequence[Trial]) -> bool:
    return any(promised_round(trial.suggestion) is not None for trial in trials)


def table_objective(trials: Sequence[Trial]) -> str:
    """Return the unit of the table: the last round's, if it is per device hour or joule; else that of most trials.

    The price of a device hour is not recorded, so an objective per currency is not shown. Optimizer steps count where
    no trial has a throughput in another unit.
    """
    rounds = [trial for trial in trials if promised_round(trial.suggestion) is not None]
    latest = max(rounds, key=lambda trial: trial.started_at, default=trials[-1])
    objective = promised_objective(latest.suggestion)
    if objective in {*PER_DEVICE_HOUR, *PER_JOULE}:
        return str(objective)
    most = most_measured_objective(trials)
    return most if any(trial.throughput(most) is not None for trial in trials) else "steps_per_second"
