"""Cases in which the engine is measured: each is repeated with a change and paired with itself.

Families: ``order`` (Kendall's tau, and coverage of 80 % intervals, of the default predictor on splits of two public
tables), ``proposals`` (whole workloads left out: best of 1, 3 and 5, AUC of failures), ``replay`` (workloads of the
H100 table searched over their rows, nothing else known), ``warm`` (the same, all others known), ``stragglers``
(``replay`` where one launch in ten has half its speed), ``layers`` and ``plain`` (simulated trainings), ``tables``
(public tables of plain parameters, 2 % noise, configs that are not in the table fail), ``slots`` (tunes with four slots
on a simulated cluster, whose clock also counts the processor time of the tune itself).
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from predictors import left_out_jobs, of_methods, random_jobs
from replay import Cell, handed_over, keys_of_cells, others_of, propose_random, rows_of
from scipy import stats
from search import Layered, Plain, Search
from tune import SimulatedCluster, slots_filled

from lib.splits import FSDP_LINES, LINES
from lib.stores import fill
from lib.tables import PLAIN_TABLES, fsdp_jobs, h100_jobs, plain_rows
from torchx_cubicml.advisor import Study
from torchx_cubicml.predictors import DEFAULT_PREDICTOR
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from predictors import Job
    from search import Models
    from torchx.specs import AppState

    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.records.values import Config

Figures: TypeAlias = "dict[str, float]"
N_OTHERS = 1000  # trials of other workloads in the store of a tune
BUSY_SHARE, BUSY_SPEED = 0.1, 0.5  # of the launches that a busy node slows down, and of their throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement that is paired with itself.

    Args:
        family: of alike cases.
        line: of the family: one split, or one search.
        unit: by which differences are averaged: a seed of a split, a workload, a simulated training.
        measure: returns figure -> value; a larger one is better.
    """

    family: str
    line: str
    unit: str
    measure: Callable[[], Figures]


def order(job: Job) -> Figures:
    """Return tau, and how near the coverage of 80 % intervals is to 0.8."""
    found = {line.rpartition(": ")[2]: value for line, method, value in job() if method == DEFAULT_PREDICTOR}
    return {"tau": found["tau"], "coverage": 1.0 - abs(found["coverage"] - 0.8)}


def proposals(job: Job) -> Figures:
    """Return the best of one, three and five proposals, and the AUC of failures."""
    found = {line.rpartition(": ")[2]: value for line, method, value in job() if method == DEFAULT_PREDICTOR}
    return {name: found[name] for name in ("best of 1", "best of 3", "best of 5", "AUC") if name in found}


def replayed(
    key: tuple[str, int], marks: Sequence[int], seed: int, *, warm: bool = False, busy: bool = False
) -> Figures:
    """Return the share of the fastest row after so many launches of a search over the rows of one workload."""
    cell, others = Cell(rows_of(key)), others_of(key) if warm else []
    chance = cell.rng(seed, 77)
    known: list[Trial] = []
    figures: Figures = {}

    def study(*, own: bool) -> Study:
        current = cell.current(seed) if own else {}
        trials = [*known, *others]
        return Study.of(
            cell.space, workload=cell.workload, current=current, trials=trials, seed=1000 * seed + len(known)
        )

    while len(known) < min(marks[-1], len(cell.rows)):
        found = study(own=not warm or bool(known)).suggest()
        row = cell.row(found[0].config if found else propose_random(cell, known, seed)[0])
        known.append(_slowed(row) if busy and chance.random() < BUSY_SHARE else row)
        if len(known) in marks:
            figures[f"after {len(known)}"] = handed_over(cell, study(own=True))
    return figures


def _slowed(row: Trial) -> Trial:
    if row.measurement is None:
        return row
    speed = (row.measurement.tokens_per_second or 0.0) * BUSY_SPEED
    return replace(row, measurement=replace(row.measurement, tokens_per_second=speed))


def simulated(models: Models, family: str, seed: int, marks: Sequence[int]) -> Figures:
    """Return the share of the optimum after so many launches of a simulated training."""
    found = Search(models=models, family=family, seed=seed, method="ours", marks=marks)()
    return {f"after {mark}": share for mark, share in zip(marks, found.shares, strict=True)}


def searched_table(name: str, marks: Sequence[int], seed: int) -> Figures:
    """Return the share of the fastest row of a public table of plain parameters after so many launches."""
    rows = plain_rows(name)
    speeds = {tuple(config.values()): speed for config, speed in rows}
    choices = {each: sorted({config[each] for config, _ in rows}) for each in rows[0][0]}
    space = SearchSpace(parameters=tuple(Parameter(name=each, choices=tuple(of)) for each, of in choices.items()))
    rng = np.random.default_rng([seed, len(rows)])
    current = rows[int(rng.integers(len(rows)))][0]
    best = max(speed for speed in speeds.values() if speed is not None)
    trials: list[Trial] = []
    figures: Figures = {}
    for mark in marks:
        while len(trials) < mark:
            study = Study.of(space, workload={"program": name}, current=current, trials=trials, seed=len(trials))
            found = study.suggest(count=min(4, mark - len(trials)))
            trials += [_launched(name, each.config, speeds, rng) for each in found]
        ran = [trial for trial in trials if trial.measurement is not None]
        first = max(ran, key=lambda trial: trial.measurement.samples_per_second or 0.0, default=None)
        true = speeds[tuple(first.config[each] for each in choices)] if first is not None else None
        figures[f"after {mark}"] = (true or 0.0) / best
    return figures


def _launched(
    name: str, config: Config, speeds: Mapping[tuple[object, ...], float | None], rng: np.random.Generator
) -> Trial:
    speed = speeds.get(tuple(config[each] for each in config))
    if speed is None:
        return Trial.infeasible(workload={"program": name}, config=config, reason="user_error")
    measured = speed * float(np.exp(rng.normal(0.0, 0.02)))
    return Trial.completed(workload={"program": name}, config=config, samples_per_second=measured)


@dataclass(slots=True)
class CountingCluster(SimulatedCluster):
    """A simulated cluster whose clock counts the processor time of the tune, and that counts its polls."""

    n_polls: int = 0
    busy_s: float = field(default_factory=time.process_time)

    def now(self) -> datetime:
        """Return the simulated time."""
        self._count_own_work()
        return SimulatedCluster.now(self)

    def submit(self, contract: Contract) -> str:
        """Submit a job once the tune's own work is done."""
        self._count_own_work()
        return SimulatedCluster.submit(self, contract)

    def state(self, name: str) -> AppState:
        """Return the state of a job, and count the poll."""
        self.n_polls += 1
        return SimulatedCluster.state(self, name)

    def _count_own_work(self) -> None:
        busy_s = time.process_time()
        self.time += timedelta(seconds=busy_s - self.busy_s)
        self.busy_s = busy_s


def slots(run_s: tuple[float, float], seed: int, *, launches: int = 30) -> Figures:
    """Return the share of four slots that a tune keeps filled, and the share of seconds of jobs without a poll.

    The store holds trials of others, too.
    """
    cluster = CountingCluster(seed=seed, fates=("done",), late_s=0.0, run_s=run_s)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "store", N_OTHERS)
        _, filled, _ = slots_filled(Path(folder), cluster, launches=launches)
    of_jobs_s = sum((job.ends - job.submitted).total_seconds() for job in cluster.jobs.values())
    return {"filled": filled, "not polled": 1.0 - cluster.n_polls / of_jobs_s}


def cases(families: Iterable[str], *, seeds: int) -> Iterator[Case]:
    """Yield the cases of some families, ``seeds`` of each kind."""
    for family in families:
        yield from FAMILIES[family](seeds)


def _orders(seeds: int) -> Iterator[Case]:
    for table, lines in ((h100_jobs(), LINES), (fsdp_jobs(), FSDP_LINES)):
        jobs = random_jobs(table, lines, seeds=0, paired_seeds=4 * seeds)
        for job in of_methods(jobs, [DEFAULT_PREDICTOR]):
            line = f"{len(table)} jobs, {job.known}"
            yield Case(family="order", line=line, unit=f"{line} {job.unit}", measure=partial(order, job))


def _proposals(_seeds: int) -> Iterator[Case]:
    for job in of_methods(left_out_jobs(h100_jobs(), seed=0), [DEFAULT_PREDICTOR]):
        yield Case(family="proposals", line=job.known, unit=f"{job.known} {job.unit}", measure=partial(proposals, job))


def _replays(family: str, marks: tuple[int, ...], seeds: int, **options: bool) -> Iterator[Case]:
    for key, seed in product(keys_of_cells(100), range(seeds)):
        yield Case(family=family, line="", unit=str(key), measure=partial(replayed, key, marks, seed, **options))


def _simulations(family: str, models: Models, marks: tuple[int, ...], seeds: int) -> Iterator[Case]:
    for each, seed in product(models.families, range(100, 100 + 3 * seeds)):
        yield Case(family=family, line="", unit=f"{each} {seed}", measure=partial(simulated, models, each, seed, marks))


def _tables(seeds: int) -> Iterator[Case]:
    for name, seed in product(PLAIN_TABLES, range(3 * seeds)):
        measure = partial(searched_table, name, (8, 16, 32), seed)
        yield Case(family="tables", line="", unit=f"{name} {seed}", measure=measure)


def _slots(seeds: int) -> Iterator[Case]:
    for run_s, seed in product(((5.0, 20.0), (20.0, 200.0)), range(3 * seeds)):
        yield Case(family="slots", line="", unit=f"{run_s} {seed}", measure=partial(slots, run_s, seed))


FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "order": _orders,
    "proposals": _proposals,
    "replay": partial(_replays, "replay", (5, 10, 15)),
    "stragglers": partial(_replays, "stragglers", (5, 10, 15), busy=True),
    "warm": partial(_replays, "warm", (1, 3, 5), warm=True),
    "layers": partial(_simulations, "layers", Layered(), (8, 15, 25)),
    "plain": partial(_simulations, "plain", Plain(), (8, 16, 24)),
    "tables": _tables,
    "slots": _slots,
}


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of the values of units, and its 95 % t-interval.

    >>> mean_interval([1.0, 2.0, 3.0])
    (2.0, -0.48..., 4.48...)
    """
    each = np.asarray(values)
    mean, reach = float(each.mean()), float(stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each)))
    return mean, mean - reach, mean + reach
