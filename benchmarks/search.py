"""Measures how few launches a search takes on simulated trainings: share of a strong optimum handed over.

python benchmarks/search.py --table black-box [--workers 2] [--output benchmarks/results/search_black_box.txt]
python benchmarks/search.py --layers 48 [--seeds 3] [--first-seed 30] [--sizes] [--methods ours,tpe] [--marks 8,15,25]
python benchmarks/search.py --plain llm,vision [--seeds 3] ...

Tables of layer-wise FSDP: ``black-box`` (all methods; Optuna's GP to fewer launches, for it takes long), ``known``
(sizes, peaks and the memory of a device), ``layers`` (models of 16, 32 and 64 layers), ``transformer`` (equal layers of
a transformer whose shape the formulas know). Of plain knobs: ``plain``, ``plain-fresh`` (models that were looked at
once, all methods) and ``batch`` (one number alone). All of them where none is named.

Layer-wise: a strategy per layer, 25 batch sizes, 9 reserved shares; 1 % noise. Plain: nine or ten knobs with one value
for the whole job; 2 % noise. Batches of 5 launches. Told is the share of a strong optimum (40 starts, then pairs; of
plain knobs the best of all configs) that the config handed over reaches without noise: ours hands over what an ordinary
launch would run (the highest posterior mean where it is surely faster than the user's own config), all others the
highest measurement. Worst: of the runs, at last; s is of one core. Sizes of layers, peak memory of each launch and the
memory of a device are known where records hold them.

``tpe`` and ``gp`` are Optuna's, with jobs out of memory as broken constraints; ``+ first batch`` are the same after
the eight launches with which ours begins. ``paper`` is a hundred random jobs, then REINFORCE on ranking networks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from lib import simulator
from lib.plain_spaces import PlainModel
from lib.simulator import Simulator

from torchx_cubicml.advisor import best_known, suggest
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.values import Config

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.space import SearchSpace

BATCH = 5  # launches at once
FIRST = 8  # launches of the designed first batch


class Simulated(Protocol):
    """A made-up training that is searched."""

    @property
    def space(self) -> SearchSpace:
        """The search space, not bound."""

    @property
    def workload(self) -> Mapping[str, object]:
        """Its facts."""

    @property
    def current(self) -> Config:
        """The user's own config."""

    def references(self) -> list[Config]:
        """Return configs that need no search; the best of them is listed beside the searches."""

    def throughput(self, config: Config) -> float:
        """Return samples per second without noise; 0.0 where memory runs out."""

    def launch(self, config: Config, *, rng: np.random.Generator, number: int) -> Trial:
        """Return the trial of one launch, ``number`` being that of the launch."""

    def optimum(self) -> float:
        """Return the throughput of the best config known."""


Propose = Callable[[Simulated, Config, Sequence[Trial], int, np.random.Generator], list[Config]]


def propose_random(
    simulated: Simulated, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
) -> list[Config]:
    """Return configs drawn uniformly."""
    return simulated.space.bind(workload=simulated.workload, current=current).sample(count, rng=rng)


def propose_ours(
    simulated: Simulated, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
) -> list[Config]:
    """Return what the advisor suggests."""
    seed = int(rng.integers(2**31))
    found = suggest(
        simulated.space, workload=simulated.workload, current=current, trials=trials, count=count, seed=seed
    )
    return [suggestion.config for suggestion in found]


def optuna_proposing(sampler: str, *, first: int) -> Propose:
    """Return what asks Optuna's ``sampler``, and before ``first`` launches the advisor."""

    def propose_optuna(
        simulated: Simulated, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
    ) -> list[Config]:
        if len(trials) < first:
            return propose_ours(simulated, current, trials, min(count, first - len(trials)), rng)
        from lib.opponents import propose

        space = simulated.space.bind(workload=simulated.workload, current=current)
        return propose(sampler, space, trials, count=count, rng=rng)

    return propose_optuna


def propose_paper(
    simulated: Simulated, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
) -> list[Config]:
    """Return a round of the paper's recipe."""
    from paper import JOBS_A_ROUND, RANDOM_JOBS, propose

    space = simulated.space.bind(workload=simulated.workload, current=current)
    wanted = count if len(trials) < RANDOM_JOBS else JOBS_A_ROUND
    return propose(space, simulated.workload, trials, count=wanted, rng=rng)


METHODS: dict[str, Propose] = {
    "random": propose_random,
    "tpe": optuna_proposing("tpe", first=0),
    "tpe + first batch": optuna_proposing("tpe", first=FIRST),
    "ours": propose_ours,
    "paper": propose_paper,
    "gp": optuna_proposing("gp", first=0),
    "gp + first batch": optuna_proposing("gp", first=FIRST),
}


MARKS = (8, 10, 15, 25, 50, 100, 200)
PLAIN_MARKS = (8, 16, 24, 48, 96)
# The last mark of a method, and of how many models: what costs much is followed less far.
GP_LAST = {"gp": 25, "gp + first batch": 25}
MOST_MODELS = {"paper": 5, "gp": 5, "gp + first batch": 5}


class Models(Protocol):
    """Simulated trainings of one table."""

    families: Sequence[str]
    reference: tuple[str, str]
    """Name and description of the best of ``Simulated.references``."""

    def title(self) -> str:
        """Return what is known of them, in words."""

    def draw(self, seed: int, *, family: str) -> Simulated:
        """Return one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """Layer-wise FSDP; a ``Models``.

    Args:
        n_layers: of each.
        facts: whether layer sizes and peak memory are known.
    """

    n_layers: int = 24
    facts: bool = False
    families: Sequence[str] = simulator.FAMILIES
    reference: tuple[str, str] = "uniform", "the best with every layer alike"

    def title(self) -> str:
        """See ``Models``."""
        return f"{self.n_layers} layers, {'layer sizes and peak memory known' if self.facts else 'black box'}"

    def draw(self, seed: int, *, family: str) -> Simulated:
        """See ``Models``."""
        return Simulator.draw(seed, n_layers=self.n_layers, family=family, facts=self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Plain knobs; a ``Models``.

    Args:
        facts: whether peak memory is known.
    """

    facts: bool = False
    families: Sequence[str] = ("llm", "vision", "variables", "renamed")
    reference: tuple[str, str] = "own", "the user's own config"

    def title(self) -> str:
        """See ``Models``."""
        return f"plain knobs, {'peak memory known' if self.facts else 'black box'}"

    def draw(self, seed: int, *, family: str) -> Simulated:
        """See ``Models``."""
        return PlainModel(family=family, seed=seed, facts=self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One table.

    Args:
        models: what is searched.
        methods: keys of ``METHODS``.
        marks: launches after which a search is judged.
        seeds: of the simulated models of each family.
        last: last marks of methods that are followed less far.
    """

    models: Models
    methods: Sequence[str]
    marks: Sequence[int]
    seeds: Sequence[int]
    last: Mapping[str, int] = field(default_factory=dict)

    def of(self, method: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the marks and the seeds of one method."""
        marks = [mark for mark in self.marks if mark <= self.last.get(method, max(self.marks))]
        return marks, self.seeds[: MOST_MODELS.get(method, len(self.seeds))]


_SIMULATED = ("random", "tpe", "tpe + first batch", "ours", "paper")
_GP = ("gp", "gp + first batch")
_PLAIN = ("random", "tpe", "tpe + first batch", "ours")
TABLES = {
    "black-box": (Plan(models=Layered(), methods=(*_SIMULATED, *_GP), marks=MARKS, seeds=range(10), last=GP_LAST),),
    "known": (Plan(models=Layered(facts=True), methods=("ours",), marks=MARKS, seeds=range(10)),),
    "layers": tuple(
        Plan(models=Layered(n_layers=n_layers, facts=facts), methods=("ours",), marks=MARKS[:-1], seeds=range(20, 25))
        for n_layers in (16, 32, 64)
        for facts in (False, True)
    ),
    "transformer": tuple(
        Plan(
            models=Layered(families=(simulator.TRANSFORMER,), facts=facts),
            methods=("ours",),
            marks=MARKS[:4],
            seeds=range(5),
        )
        for facts in (False, True)
    ),
    "plain": (
        Plan(models=Plain(), methods=_PLAIN, marks=PLAIN_MARKS, seeds=range(5)),
        Plan(models=Plain(facts=True), methods=("ours",), marks=PLAIN_MARKS, seeds=range(5)),
    ),
    "plain-fresh": (Plan(models=Plain(), methods=(*_PLAIN, *_GP), marks=PLAIN_MARKS[:-1], seeds=range(60, 65)),),
    "batch": (Plan(models=Plain(families=("batch",)), methods=(*_PLAIN, *_GP), marks=(8, 16, 24), seeds=range(10)),),
}


def handed_over(simulated: Simulated, method: str, current: Config, trials: Sequence[Trial]) -> Config:
    """Return the config that a search ends with."""
    if method == "ours":
        best = best_known(simulated.space, workload=simulated.workload, current=current, trials=trials)
        return current if best is None else best.config
    ran = [trial for trial in trials if trial.measurement is not None]
    return max(ran, key=lambda trial: trial.measurement.samples_per_second or 0.0).config if ran else current


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search, to be made in a process of its own.

    Args:
        models: what is searched.
        family: of the simulated training.
        seed: of it.
        method: key of ``METHODS``.
        marks: launches after which it is judged.
    """

    models: Models
    family: str
    seed: int
    method: str
    marks: Sequence[int]

    def __call__(self) -> Found:
        """Search, and return what was found."""
        simulated = self.models.draw(self.seed, family=self.family)
        started, rng, optimum = time.process_time(), np.random.default_rng(1000 + self.seed), simulated.optimum()
        trials: list[Trial] = []
        shares = []
        for mark in self.marks:
            while len(trials) < mark:
                count = min(BATCH, mark - len(trials))
                configs = METHODS[self.method](simulated, simulated.current, trials, count, rng)
                numbers = range(len(trials), len(trials) + len(configs))
                trials += [
                    simulated.launch(each, rng=rng, number=at) for at, each in zip(numbers, configs, strict=True)
                ]
            chosen = handed_over(simulated, self.method, simulated.current, trials[:mark])
            shares.append(simulated.throughput(chosen) / optimum)
        oom = statistics.fmean(trial.state is State.OUT_OF_MEMORY for trial in trials)
        return Found(shares=shares, oom=oom, seconds=time.process_time() - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a search: shares of the optimum without noise, the share out of memory, and seconds of a core."""

    shares: Sequence[float]
    oom: float
    seconds: float


def table(plan: Plan, report: Callable[[str], None], pool: Executor) -> None:
    """Report the table of a plan's methods in each family and their mean, over its simulators, line by line."""
    report(f"{plan.models.title()}, simulated models {plan.seeds[0]} to {plan.seeds[-1]} of each family")
    head = f"{'family':10s}{'method':19s}" + "".join(f"{mark:>7d}" for mark in plan.marks)
    report(f"{head}  worst   OOM models     s")
    references = {family: _reference(plan, family) for family in plan.models.families}  # and the optima, once
    found: dict[tuple[str, str], list[Future[Found]]] = {}
    for family, method in product(plan.models.families, plan.methods):
        marks, seeds = plan.of(method)
        each = (Search(models=plan.models, family=family, seed=seed, method=method, marks=marks) for seed in seeds)
        found[family, method] = [pool.submit(search) for search in each]
    means: dict[str, list[NDArray[np.float64]]] = {method: [] for method in plan.methods}
    for family in plan.models.families:
        name, what = plan.models.reference
        report(f"{family:10s}{name:19s}{references[family]:7.3f}  {what}")
        for method in plan.methods:
            runs = [each.result() for each in found[family, method]]
            shares = np.array([run.shares for run in runs])
            means[method].append(shares.mean(axis=0))
            gap = " " * 7 * (len(plan.marks) - shares.shape[1])
            oom, seconds = (statistics.fmean(each) for each in ((r.oom for r in runs), (r.seconds for r in runs)))
            end = f"{gap}{shares[:, -1].min():7.3f}{oom:6.2f}{len(runs):7d}{seconds:6.0f}"
            report(_row(family, method, shares.mean(axis=0)) + end)
    for method in plan.methods:
        report(_row("mean", method, np.mean(means[method], axis=0)))
    report("")


def _reference(plan: Plan, family: str) -> float:
    """Return the share of the optimum that the best of the configs to compare with reaches, mean over simulators."""
    simulated = [plan.models.draw(seed, family=family) for seed in plan.seeds]
    return statistics.fmean(max(map(each.throughput, each.references())) / each.optimum() for each in simulated)


def _row(family: str, method: str, shares: NDArray[np.float64]) -> str:
    return f"{family:10s}{method:19s}" + "".join(f"{share:7.3f}" for share in shares)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=TABLES, default=None, help="which of the tables alone")
    parser.add_argument("--layers", type=int, default=None, help="layers of the models of one table instead of all")
    parser.add_argument("--plain", default=None, help="families of plain knobs of one table, with commas between")
    parser.add_argument("--seeds", type=int, default=5, help="its simulated models of each family to average over")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--sizes", action="store_true", help="tell peak memory, and the sizes of layers")
    parser.add_argument("--methods", default=",".join(METHODS), help="which, with commas between")
    parser.add_argument("--marks", default=",".join(map(str, MARKS)), help="launches after which a search is judged")
    parser.add_argument("--workers", type=int, default=1, help="processes that search at once")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    return parser.parse_args()


def main() -> None:
    """Print the tables."""
    args = _arguments()
    plans = [plan for name, each in TABLES.items() if args.table in {None, name} for plan in each]
    models: Models | None = Layered(n_layers=args.layers, facts=args.sizes) if args.layers is not None else None
    if args.plain is not None:
        models = Plain(facts=args.sizes, families=args.plain.split(","))
    if models is not None:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        marks = [int(mark) for mark in args.marks.split(",")]
        plans = [Plan(models=models, methods=args.methods.split(","), marks=marks, seeds=seeds)]
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text("")

    def report(line: str) -> None:
        print(line, flush=True)
        if args.output is not None:
            with args.output.open("a") as output:
                output.write(f"{line}\n")

    report(_HEAD)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for plan in plans:
            table(plan, report, pool)
    report(f"Optuna {version('optuna')}")


_HEAD = """\
Share of a strong optimum (layer-wise: 40 starts, then pairs; plain: the best of all configs) that the config handed
over reaches, without noise, after so many launches in batches of 5, mean over simulated models. Layer-wise: a strategy
per layer, 25 batch sizes, 9 reserves, 1 % noise. Plain: nine or ten knobs of the whole job, or one, 2 % noise.
Ours hands over what an ordinary launch would run: the highest posterior mean where it is surely faster than the user's
own config, else that one. The others: the highest measurement. Worst: of the runs, at last. s: of one core, a run.
Settings of ours were chosen with models 0 to 4 of 24 layers in view, and plain ones 0 to 13, 40 to 45 and 50 to 53;
others were seen once. A mean over five models of each family scatters by about 0.005 (plain: 0.01 to 0.02).
"""


if __name__ == "__main__":
    main()
