"""Measures what each mechanism of the engine brings: the same cases with it and without it, paired.

python benchmarks/ablation.py [--only 'outliers;residual trees + slow mode'] [--families replay,plain] [--seeds 2]
    [--workers 2] [--output benchmarks/results/ablation.txt]

A mechanism is switched off by patches of functions or constants, listed in ``MECHANISMS``; those with a plus between
them are switched off together, for two may stand in for each other. A case is one split of a
table, one workload that is searched, or one simulated training. The loss is the figure with the mechanism less the
figure without it: mean over the cases of a family, with its 95 % t-interval over cases. A mechanism is not worth its
code where the upper end is under 0.005 in every family.

Families: ``order`` (Kendall's tau, and coverage of 80 % intervals, of the default predictor on splits of two public
tables), ``proposals`` (whole workloads left out: best of 1, 3 and 5, AUC of failures), ``replay`` (workloads of the
H100 table searched over their rows, nothing else known), ``warm`` (the same, all others known), ``stragglers``
(``replay`` where one launch in ten has half its speed), ``layers`` and ``plain`` (simulated trainings), ``tables``
(public tables of plain parameters, 2 % noise, configs that are not in the table fail).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

import numpy as np
from lib.splits import FSDP_LINES, LINES
from lib.tables import PLAIN_TABLES, fsdp_jobs, h100_jobs, plain_rows
from predictors import left_out_jobs, of_methods, random_jobs
from replay import Cell, handed_over, keys_of_cells, others_of, propose_random, rows_of
from scipy import stats
from search import Layered, Plain, Search

from torchx_cubicml.advisor import Study
from torchx_cubicml.predictors import DEFAULT_PREDICTOR
from torchx_cubicml.records.trial import Config, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from predictors import Job
    from search import Models

Figures: TypeAlias = "dict[str, float]"
NOTHING = 0.005  # of a figure: a smaller loss is not worth the code
BUSY_SHARE, BUSY_SPEED = 0.1, 0.5  # of the launches that a busy node slows down, and of their throughput
_PACKAGE = "torchx_cubicml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """One patch that switches something off.

    Args:
        at: module below ``torchx_cubicml``, a colon, and the attribute, as in ``predictors.greybox:_FADE``.
        instead: returns what takes its place, given what is there.
    """

    at: str
    instead: Callable[[Any], Any]

    def patched(self) -> Any:
        """Return the patch as a context manager."""
        module, _, path = self.at.partition(":")
        *owners, name = path.split(".")
        target = import_module(f"{_PACKAGE}.{module}")
        for owner in owners:
            target = getattr(target, owner)
        return patch.object(target, name, self.instead(vars(target)[name]))


def _constant(value: object) -> Callable[[Any], Any]:
    return partial(_first, value)


def _first(value: object, _there: object) -> object:
    return value


def _answer(value: object) -> Callable[[Any], Any]:
    return partial(_always, value)


def _always(value: object, _there: object) -> Callable[..., object]:
    return lambda *_args, **_options: value


def _without_variance(place: int) -> Callable[[Any], Any]:
    """Return what makes a method ``kernel`` return kernels without one of their terms."""

    def instead(there: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: object) -> object:
            made = there(*args)
            variances = made.variances.copy()
            variances[place] = 0.0
            return replace(made, variances=variances)

        return kernel

    return instead


def _without_traits(there: Callable[..., NDArray[np.float64]]) -> Callable[..., NDArray[np.float64]]:
    return lambda *args: np.zeros_like(there(*args))


def _random_instead(_there: object) -> Callable[..., object]:
    from torchx_cubicml.advisor import initial_design as module

    def screening(space: SearchSpace, _factors: object, _home: object) -> Iterator[tuple[tuple[int, ...], str]]:
        rows = module.drawn_rows(space, 12, rng=np.random.default_rng(0))
        yield from ((tuple(row), "drawn") for row in rows.tolist())

    return screening


def _evolution_for_climb(there: Callable[..., Any]) -> Callable[..., Any]:
    return lambda name, **options: there("evolution" if name == "climb" else name, **options)


def _first_ones(_there: object) -> Callable[..., object]:
    def subset(
        _space: object, configs: Sequence[Config], scores: NDArray[np.float64], *, count: int, taken: object
    ) -> list[Config]:
        del taken
        return [configs[place] for place in np.argsort(-scores.mean(axis=0), kind="stable")[:count].tolist()]

    return subset


def _never(there: Any) -> Any:
    del there
    return property(lambda _self: ())


def _itself(_there: object) -> Callable[..., object]:
    return lambda self, _rows: self


def _itself_alone(_there: object) -> Callable[..., object]:
    return lambda self, **_options: [self]


def _no_outliers(_there: object) -> Callable[..., object]:
    return lambda _kernel, sample, **_options: np.zeros(len(sample.rest), dtype=np.bool_)


_KERNEL = "predictors.gaussian_process.kernel:Prior"
_ROOFLINE = "predictors.roofline.predictor"
MECHANISMS: dict[str, tuple[Off, ...]] = {
    "residual trees": (Off(at="predictors.greybox:Greybox._fit_trees", instead=_answer(None)),),
    "fading of the trees": (Off(at="predictors.greybox:_FADE", instead=_constant(1e9)),),
    "category offsets": (Off(at=f"{_ROOFLINE}:_FEWEST_FOR_OFFSETS", instead=_constant(10**9)),),
    "slow mode": (Off(at="predictors.roofline.calibration:_Fit.stalls", instead=_answer([])),),
    "tree inputs: shares": (Off(at=f"{_ROOFLINE}:_traits", instead=_without_traits),),
    "feasibility trees": (Off(at="predictors.memory.cross_workload:_FEWEST_FOR_TREES", instead=_constant(10**9)),),
    "kernel: linear": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(1)),),
    "kernel: matching": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(2)),),
    "kernel: additive": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(3)),),
    "kernel: memory pressure": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(4)),),
    "kernel: stepwise": (Off(at=f"{_KERNEL}.stepwise", instead=_never),),
    "outliers": (Off(at="predictors.gaussian_process.process:find_outliers", instead=_no_outliers),),
    "optimistic prior mean": (
        Off(at="advisor.surrogates.select:PRIOR_MEAN_PARAMETERS", instead=_constant(frozenset())),
    ),
    "climb": (Off(at="advisor.batch:searcher_named", instead=_evolution_for_climb),),
    "screening design": (Off(at="advisor.initial_design:_screening", instead=_random_instead),),
    "roofline starts": (Off(at="advisor.batch:roofline_starts", instead=_answer([])),),
    "batch diversity": (Off(at="advisor.batch:diverse_subset", instead=_first_ones),),
    "kriging believer": (Off(at="advisor.surrogates.per_workload:PerWorkloadSurrogate.fantasize", instead=_itself),),
    "ensemble of three": (
        Off(at="advisor.surrogates.cross_workload:CrossWorkloadSurrogate.ensemble", instead=_itself_alone),
    ),
}
"""Mechanisms to switch off, in the order of the engine: predictors, kernel, surrogates, acquisition, searchers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement that is paired with itself.

    Args:
        family: of alike cases.
        unit: by which differences are averaged: a seed of a split, a workload, a simulated training.
        measure: returns figure -> value; a larger one is better.
    """

    family: str
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


def cases(families: Iterable[str], *, seeds: int) -> Iterator[Case]:
    """Yield the cases of some families, ``seeds`` of each kind."""
    for family in families:
        yield from _FAMILIES[family](seeds)


def _orders(seeds: int) -> Iterator[Case]:
    for table, lines in ((h100_jobs(), LINES), (fsdp_jobs(), FSDP_LINES)):
        jobs = random_jobs(table, lines, seeds=0, paired_seeds=4 * seeds)
        for job in of_methods(jobs, [DEFAULT_PREDICTOR]):
            yield Case(family="order", unit=f"{len(table)} {job.known} {job.unit}", measure=partial(order, job))


def _proposals(_seeds: int) -> Iterator[Case]:
    for job in of_methods(left_out_jobs(h100_jobs(), seed=0), [DEFAULT_PREDICTOR]):
        yield Case(family="proposals", unit=f"{job.known} {job.unit}", measure=partial(proposals, job))


def _replays(family: str, marks: tuple[int, ...], seeds: int, **options: bool) -> Iterator[Case]:
    for key, seed in product(keys_of_cells(100), range(seeds)):
        yield Case(family=family, unit=str(key), measure=partial(replayed, key, marks, seed, **options))


def _simulations(family: str, models: Models, marks: tuple[int, ...], seeds: int) -> Iterator[Case]:
    for each, seed in product(models.families, range(100, 100 + 3 * seeds)):
        yield Case(family=family, unit=f"{each} {seed}", measure=partial(simulated, models, each, seed, marks))


def _tables(seeds: int) -> Iterator[Case]:
    for name, seed in product(PLAIN_TABLES, range(3 * seeds)):
        yield Case(family="tables", unit=f"{name} {seed}", measure=partial(searched_table, name, (8, 16, 32), seed))


_FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "order": _orders,
    "proposals": _proposals,
    "replay": partial(_replays, "replay", (5, 10, 15)),
    "stragglers": partial(_replays, "stragglers", (5, 10, 15), busy=True),
    "warm": partial(_replays, "warm", (1, 3, 5), warm=True),
    "layers": partial(_simulations, "layers", Layered(), (8, 15, 25)),
    "plain": partial(_simulations, "plain", Plain(), (8, 16, 24)),
    "tables": _tables,
}


def measured(job: tuple[str, Case]) -> Figures:
    """Return the figures of a case with one mechanism switched off; none is, by the empty name."""
    warnings.filterwarnings("ignore")
    name, case = job
    _forget()
    with ExitStack() as stack:
        for part in name.split(" + ") if name else ():
            for off in MECHANISMS[part]:
                stack.enter_context(off.patched())
        found = case.measure()
    _forget()
    return found


def _forget() -> None:
    """Drop what a fit with the mechanism has left in this process."""
    from torchx_cubicml.advisor.surrogates import transfer_prior

    for each in vars(transfer_prior).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


def rows(names: Sequence[str], chosen: Sequence[Case], *, workers: int) -> Iterator[str]:
    """Yield a row for each mechanism, family and figure: the loss with its 95 % interval."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        whole = list(pool.map(measured, [("", case) for case in chosen]))
        for name in names:
            without = list(pool.map(measured, [(name, case) for case in chosen]))
            losses: defaultdict[tuple[str, str], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for case, before, after in zip(chosen, whole, without, strict=True):
                for figure in before.keys() & after.keys():
                    losses[case.family, figure][case.unit].append(before[figure] - after[figure])
            tops = []
            for (family, figure), of_units in sorted(losses.items()):
                each = np.array([np.mean(values) for values in of_units.values()])
                reach = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
                tops.append(each.mean() + reach)
                yield (
                    f"{name:34s}{family:11s}{figure:10s}{each.mean():+8.4f} "
                    f"({each.mean() - reach:+.4f} to {each.mean() + reach:+.4f}) {len(each):4d}"
                )
            yield f"{name:34s}{'brings nothing here' if max(tops) < NOTHING else 'stays'}"


@cache
def _names() -> str:
    return ", ".join(MECHANISMS)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=";".join(MECHANISMS), help=f"with semicolons between, of {_names()}")
    parser.add_argument("--families", default=",".join(_FAMILIES), help="with commas between")
    parser.add_argument("--seeds", type=int, default=1, help="of each kind of case")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at once")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    names = args.only.split(";")
    if unknown := [part for name in names for part in name.split(" + ") if part not in MECHANISMS]:
        sys.exit(f"unknown mechanism {unknown[0]!r}; choose from {_names()}")
    chosen = list(cases(args.families.split(","), seeds=args.seeds))
    lines = [f"Loss without each mechanism over {len(chosen)} cases; 95 % t-interval over units; units."]
    print(lines[0], flush=True)
    for line in rows(names, chosen, workers=args.workers):
        print(line, flush=True)
        lines.append(line)
        if args.output is not None:
            args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
