"""Measures what each mechanism of the engine brings: the same cases with it and without it, paired.

python benchmarks/ablation.py [--only 'slow mode;outliers'] [--families replay,plain] [--share 1.0] [--workers 2]
    [--output benchmarks/results/ablation.txt]

A mechanism is switched off by a patch of one function or constant, listed in ``MECHANISMS``. A case is one split of a
table, one workload that is searched, or one simulated training. What is lost is the figure with the mechanism less the
figure without it, mean over the cases of a family with its 95 % t-interval over cases. A mechanism whose upper end is
under 0.005 in every family brings nothing.

Families: ``order`` (Kendall's tau and coverage of the default predictor on splits of two public tables), ``proposals``
(whole workloads left out: best of k, AUC of failures), ``replay`` (each workload of the H100 table searched over its
rows, nothing else known), ``warm`` (all others known), ``layers`` and ``plain`` (simulated trainings), ``tables``
(public tables of plain parameters), ``stragglers`` (``replay`` where one launch in ten is held up by a busy node).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from predictors import Job
from replay import Cell, handed_over, others_of, propose_random, rows_of
from search import Models, Search
from tables import plain_rows

from torchx_cubicml.advisor import Study
from torchx_cubicml.predictors import DEFAULT_PREDICTOR
from torchx_cubicml.records.trial import Config, Trial
from torchx_cubicml.space import Parameter, SearchSpace

Figures: TypeAlias = "dict[str, float]"
NOTHING = 0.005  # of a figure: what brings less is not worth its code
BUSY, BUSY_SHARE = 0.5, 0.1  # of the throughput that a straggler keeps; of the launches that are stragglers


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One paired measurement.

    Args:
        family: of alike cases.
        name: of this one.
        measure: returns figure -> value; a larger one is better.
    """

    family: str
    name: str
    measure: Callable[[], Figures]


def order(job: Job) -> Figures:
    """Return tau, and how near the coverage of 80 % intervals is to 0.8."""
    found = {line.rpartition(": ")[2]: value for line, method, value in job() if method == DEFAULT_PREDICTOR}
    return {"tau": found["tau"], "coverage": 1.0 - abs(found["coverage"] - 0.8)}


def proposals(job: Job) -> Figures:
    """Return the best of one, three and five proposals, and the AUC of failures."""
    found = {line.rpartition(": ")[2]: value for line, method, value in job() if method == DEFAULT_PREDICTOR}
    return {name: found[name] for name in ("best of 1", "best of 3", "best of 5", "AUC") if name in found}


def replayed(key: tuple[str, int], *, marks: Sequence[int], warm: bool, busy: bool, seed: int) -> Figures:
    """Return the share of the fastest row after so many launches, for a search over the rows of one workload."""
    cell, others = Cell(rows_of(key)), others_of(key) if warm else []
    chance = cell.rng(seed, 77)
    known: list[Trial] = []
    figures: Figures = {}
    while len(known) < min(marks[-1], len(cell.rows)):
        study = _study(cell, [*known, *others], seed=1000 * seed + len(known), own=not warm or bool(known))
        found = study.suggest()
        row = cell.row(found[0].config if found else propose_random(cell, known, seed)[0])
        known.append(_slowed(row) if busy and chance.random() < BUSY_SHARE else row)
        if len(known) in marks:
            study = _study(cell, [*known, *others], seed=1000 * seed + len(known), own=True)
            figures[f"after {len(known)}"] = handed_over(cell, study)
    return figures


def _study(cell: Cell, trials: Sequence[Trial], *, seed: int, own: bool) -> Study:
    current = cell.current(seed // 1000) if own else {}
    return Study.of(cell.space, workload=cell.workload, current=current, trials=trials, seed=seed)


def _slowed(row: Trial) -> Trial:
    if row.measurement is None:
        return row
    speed = (row.measurement.tokens_per_second or 0.0) * BUSY
    return replace(row, measurement=replace(row.measurement, tokens_per_second=speed))


def simulated(models: Models, family: str, seed: int, marks: Sequence[int]) -> Figures:
    """Return the share of the optimum after so many launches of a simulated training."""
    found = Search(models=models, family=family, seed=seed, method="ours", marks=marks)()
    return {f"after {mark}": share for mark, share in zip(marks, found.shares, strict=True)}


def searched_table(name: str, seed: int, marks: Sequence[int]) -> Figures:
    """Return the share of the fastest row of a public table of plain parameters, with 2 % noise."""
    rows = plain_rows(name)
    choices = {each: sorted({row[each] for row in rows.configs}) for each in rows.names}
    space = SearchSpace(parameters=tuple(Parameter(name=each, choices=tuple(at)) for each, at in choices.items()))
    speeds = rows.speeds()
    rng = np.random.default_rng([seed, len(rows.configs)])
    current = rows.configs[int(rng.integers(len(rows.configs)))]
    trials: list[Trial] = []
    figures: Figures = {}
    for mark in marks:
        while len(trials) < mark:
            study = Study.of(space, workload={"program": name}, current=current, trials=trials, seed=len(trials))
            trials += [_told(each.config, rows.key(each.config), speeds, rng) for each in study.suggest(count=4)]
        ran = [trial for trial in trials[:mark] if trial.measurement is not None]
        best = max(ran, key=lambda trial: trial.measurement.samples_per_second or 0.0, default=None)
        figures[f"after {mark}"] = speeds[rows.key(best.config)] / max(speeds.values()) if best is not None else 0.0
    return figures


def _told(config: Config, key: object, speeds: Mapping[object, float], rng: np.random.Generator) -> Trial:
    if key not in speeds:
        return Trial.infeasible(workload={}, config=config, reason="user_error")
    speed = speeds[key] * float(np.exp(rng.normal(0.0, 0.02)))
    return Trial.completed(workload={}, config=config, samples_per_second=speed)
