"""Splits of a table into jobs that are known and jobs that are predicted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.records.trial import Trial

Split: TypeAlias = "tuple[list[Trial], list[Trial]]"
Cell: TypeAlias = "tuple[str, int]"

LARGEST_KNOWN = 32  # processes; what is larger is predicted
FEWEST_IN_CELL = 20  # completed trials of a workload that is left out, and of those that are known


def at_random(trials: Sequence[Trial], known: int | float, seed: int) -> Split:
    """Return ``known`` completed trials (a number, or a share) with failures in proportion, and all others."""
    ran = [trial for trial in trials if trial.measurement is not None]
    failed = [trial for trial in trials if trial.measurement is None]
    rng = np.random.default_rng(seed)
    share = known if isinstance(known, float) else known / len(ran)
    train: list[Trial] = []
    test: list[Trial] = []
    for group in (ran, failed):
        order = rng.permutation(len(group)).tolist()
        cut = round(share * len(group))
        train += [group[index] for index in order[:cut]]
        test += [group[index] for index in order[cut:]]
    return train, test


def by_scale(trials: Sequence[Trial], large: int, seed: int) -> Split:
    """Return all trials on few processes and ``large`` completed ones beyond, and all others."""
    train = [trial for trial in trials if size_of(trial) <= LARGEST_KNOWN]
    beyond = [trial for trial in trials if size_of(trial) > LARGEST_KNOWN]
    ran = [index for index, trial in enumerate(beyond) if trial.measurement is not None]
    shown = set(np.random.default_rng(seed).permutation(ran)[:large].tolist())
    train += [trial for index, trial in enumerate(beyond) if index in shown]
    return train, [trial for index, trial in enumerate(beyond) if index not in shown]


def by_date(trials: Sequence[Trial], _seed: int) -> Split:
    """Return the trials of the first date, and all later ones."""
    first = min(trial.started_at for trial in trials)
    return [t for t in trials if t.started_at == first], [t for t in trials if t.started_at > first]


LINES: dict[str, Callable[[Sequence[Trial], int], Split]] = {
    "30 random jobs known": lambda trials, seed: at_random(trials, 30, seed),
    "100 random jobs known": lambda trials, seed: at_random(trials, 100, seed),
    "80 % known": lambda trials, seed: at_random(trials, 0.8, seed),
    f"<= {LARGEST_KNOWN} GPUs known": lambda trials, seed: by_scale(trials, 0, seed),
    "the same and 10 larger": lambda trials, seed: by_scale(trials, 10, seed),
}
FSDP_LINES: dict[str, Callable[[Sequence[Trial], int], Split]] = {
    **{known: LINES[known] for known in list(LINES)[:3]},
    "first date known": by_date,
}
KNOWN_OF_OTHERS: dict[str, Callable[[Trial, Cell], bool]] = {
    "other workloads known": lambda trial, cell: cell_of(trial) != cell,
    "fewer GPUs known": lambda trial, cell: size_of(trial) < cell[1],
    "other models known": lambda trial, cell: cell_of(trial)[0] != cell[0],
}


def cells(trials: Sequence[Trial]) -> dict[Cell, list[Trial]]:
    """Return the workloads (model and number of processes) with enough completed trials to choose from."""
    groups: defaultdict[Cell, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[cell_of(trial)].append(trial)
    return {cell: group for cell, group in groups.items() if n_completed(group) >= FEWEST_IN_CELL}


def n_completed(trials: Sequence[Trial]) -> int:
    """Return how many of ``trials`` were measured."""
    return sum(trial.measurement is not None for trial in trials)


def cell_of(trial: Trial) -> Cell:
    """Return model and number of processes."""
    return str(trial.workload["program"]), size_of(trial)


def size_of(trial: Trial) -> int:
    """Return the number of processes."""
    return int(str(trial.fact("world_size")))
