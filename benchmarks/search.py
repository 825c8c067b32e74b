"""Measures how few launches a search takes on simulated layer-wise FSDP: share of a strong optimum handed over.

python benchmarks/search.py --table black-box [--output benchmarks/results/search_black_box.txt]
python benchmarks/search.py --layers 48 [--seeds 3] [--first-seed 30] [--sizes] [--methods ours,tpe] [--marks 8,15,25]

Tables: ``black-box``, ``long`` (to 200 launches), ``gp`` (Optuna's, to fewer launches for it takes long), ``known``
(sizes, peaks and the memory of a device), ``layers`` (models of 16, 32 and 64 layers that settings were not chosen
with); all of them where none is named.

A strategy per layer, 25 batch sizes, 9 reserved shares; 1 % noise; batches of 5 launches. Told is the share of a strong
optimum (40 starts, then pairs) that the config handed over reaches without noise: ours hands over the config of highest
posterior mean, all others the highest measurement. Worst: of the runs, at last; s is of one core. Where the sizes of
the layers, the peak memory of each launch and the memory of a device are known, it is because records hold them.

``tpe`` and ``gp`` are Optuna's, told of jobs out of memory as broken constraints; ``+ first batch`` are the same after
the eight launches with which ours begins. ``paper`` is a hundred random jobs, then REINFORCE on ranking networks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from simulator import FAMILIES, Simulator

from torchx_cubicml.advisor import best_known, suggest
from torchx_cubicml.trial import Config, State, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = 5  # launches at once
FIRST = 8  # launches of the designed first batch
Propose = Callable[[Simulator, Config, Sequence[Trial], int, np.random.Generator], list[Config]]


def propose_random(
    simulator: Simulator, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
) -> list[Config]:
    """Return configs drawn uniformly."""
    return simulator.space.bind(workload=simulator.workload, current=current).sample(count, rng=rng)


def propose_ours(
    simulator: Simulator, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
) -> list[Config]:
    """Return what the advisor suggests."""
    seed = int(rng.integers(2**31))
    found = suggest(
        simulator.space, workload=simulator.workload, current=current, trials=trials, count=count, seed=seed
    )
    return [suggestion.config for suggestion in found]


def optuna_proposing(sampler: str, *, first: int) -> Propose:
    """Return what asks Optuna's ``sampler``, and before ``first`` launches the advisor."""

    def propose_optuna(
        simulator: Simulator, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
    ) -> list[Config]:
        if len(trials) < first:
            return propose_ours(simulator, current, trials, min(count, first - len(trials)), rng)
        from opponents import propose

        return propose(sampler, trials, n_layers=simulator.n_layers, count=count, rng=rng)

    return propose_optuna


def propose_paper(
    simulator: Simulator, current: Config, trials: Sequence[Trial], count: int, rng: np.random.Generator
) -> list[Config]:
    """Return a round of the paper's recipe."""
    from paper import JOBS_A_ROUND, RANDOM_JOBS, propose

    space = simulator.space.bind(workload=simulator.workload, current=current)
    wanted = count if len(trials) < RANDOM_JOBS else JOBS_A_ROUND
    return propose(space, simulator.workload, trials, count=wanted, rng=rng)


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
# The last of the marks that a method is followed to, and of how many models: what costs much is followed less far.
LAST = {"ours": 100, "tpe": 100, "tpe + first batch": 100, "gp": 25, "gp + first batch": 25}
MOST_MODELS = {"paper": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One table.

    Args:
        methods: keys of ``METHODS``.
        marks: launches after which a search is judged.
        seeds: of the simulated models of each family.
        n_layers: of each.
        facts: whether layer sizes and peak memory are known.
    """

    methods: Sequence[str]
    marks: Sequence[int]
    seeds: Sequence[int]
    n_layers: int
    facts: bool

    @property
    def last(self) -> Mapping[str, int]:
        """The last marks of methods, where there are others."""
        return LAST if len(self.methods) > 1 else {}

    def of(self, method: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the marks and the seeds of one method."""
        marks = [mark for mark in self.marks if mark <= self.last.get(method, max(self.marks))]
        return marks, self.seeds[: MOST_MODELS.get(method, len(self.seeds))]


# Settings were chosen with models of seeds 0 to 4 and 24 layers in view; the rest were looked at once.
_SIMULATED = ("random", "tpe", "tpe + first batch", "ours", "paper")
TABLES = {
    "black-box": (Plan(methods=_SIMULATED, marks=MARKS, seeds=range(5), n_layers=24, facts=False),),
    "gp": (Plan(methods=("gp", "gp + first batch"), marks=MARKS[:-3], seeds=range(5), n_layers=24, facts=False),),
    "long": (Plan(methods=("ours",), marks=MARKS, seeds=range(2), n_layers=24, facts=False),),
    "known": (Plan(methods=("ours",), marks=MARKS[:-1], seeds=range(5), n_layers=24, facts=True),),
    "layers": tuple(
        Plan(methods=("ours",), marks=MARKS[:-2], seeds=range(20, 22), n_layers=n_layers, facts=facts)
        for n_layers in (16, 32, 64)
        for facts in (False, True)
    ),
}


def handed_over(simulator: Simulator, method: str, current: Config, trials: Sequence[Trial]) -> Config:
    """Return the config that a search ends with."""
    if method == "ours":
        best = best_known(simulator.space, workload=simulator.workload, current=current, trials=trials)
        return current if best is None else best.config
    ran = [trial for trial in trials if trial.measurement is not None]
    return max(ran, key=lambda trial: trial.measurement.samples_per_second or 0.0).config if ran else current


def search(
    simulator: Simulator, method: str, *, marks: Sequence[int], optimum: float, seed: int
) -> tuple[list[float], float]:
    """Return the share of ``optimum`` after each of ``marks``, without noise, and the share out of memory."""
    rng = np.random.default_rng(seed)
    current: Config = {
        "sharding_strategy": ("FULL_SHARD",) * simulator.n_layers,
        "micro_batch_size": 140,
        "reserved_share": 0.77,
    }
    trials: list[Trial] = []
    shares = []
    for mark in marks:
        while len(trials) < mark:
            configs = METHODS[method](simulator, current, trials, min(BATCH, mark - len(trials)), rng)
            trials += [
                simulator.launch(config, rng=rng, number=len(trials) + index) for index, config in enumerate(configs)
            ]
        shares.append(simulator.throughput(handed_over(simulator, method, current, trials[:mark])) / optimum)
    return shares, statistics.fmean(trial.state is State.OUT_OF_MEMORY for trial in trials)


def table(plan: Plan, tell: Callable[[str], None]) -> None:
    """Tell the table of a plan's methods in each family and their mean, over its simulators, line by line."""
    told = "layer sizes and peak memory known" if plan.facts else "black box"
    tell(f"{plan.n_layers} layers, {told}, simulated models {plan.seeds[0]} to {plan.seeds[-1]} of each family")
    head = f"{'family':9s}{'method':19s}" + "".join(f"{mark:>7d}" for mark in plan.marks)
    tell(f"{head}  worst   OOM models     s")
    means: dict[str, list[NDArray[np.float64]]] = {method: [] for method in plan.methods}
    for family in FAMILIES:
        draw = partial(Simulator.draw, n_layers=plan.n_layers, family=family, facts=plan.facts)
        simulators = {seed: draw(seed) for seed in plan.seeds}
        optima = {seed: simulator.optimum() for seed, simulator in simulators.items()}
        uniform = statistics.fmean(
            max(map(simulator.throughput, simulator.uniform_configs())) / optima[seed]
            for seed, simulator in simulators.items()
        )
        tell(f"{family:9s}{'uniform':19s}{uniform:7.3f}  the best with every layer alike")
        for method in plan.methods:
            started = time.process_time()
            marks, seeds = plan.of(method)
            runs = [
                search(simulators[seed], method, marks=marks, optimum=optima[seed], seed=1000 + seed) for seed in seeds
            ]
            shares = np.array([shares for shares, _ in runs])
            means[method].append(shares.mean(axis=0))
            oom = statistics.fmean(share for _, share in runs)
            seconds = (time.process_time() - started) / len(seeds)
            gap = " " * 7 * (len(plan.marks) - len(marks))
            end = f"{gap}{shares[:, -1].min():7.3f}{oom:6.2f}{len(seeds):7d}{seconds:6.0f}"
            tell(_row(family, method, shares.mean(axis=0)) + end)
    for method in plan.methods:
        tell(_row("mean", method, np.mean(means[method], axis=0)))
    tell("")


def _row(family: str, method: str, shares: NDArray[np.float64]) -> str:
    return f"{family:9s}{method:19s}" + "".join(f"{share:7.3f}" for share in shares)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=TABLES, default=None, help="which of the tables alone")
    parser.add_argument("--layers", type=int, default=None, help="layers of the models of one table instead of all")
    parser.add_argument("--seeds", type=int, default=5, help="its simulated models of each family to average over")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--sizes", action="store_true", help="tell the sizes of the layers and peak memory")
    parser.add_argument("--methods", default=",".join(METHODS), help="which, with commas between")
    parser.add_argument("--marks", default=",".join(map(str, MARKS)), help="launches after which a search is judged")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    plans = [plan for name, each in TABLES.items() if args.table in {None, name} for plan in each]
    if args.layers is not None:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        marks = [int(mark) for mark in args.marks.split(",")]
        methods = args.methods.split(",")
        plans = [Plan(methods=methods, marks=marks, seeds=seeds, n_layers=args.layers, facts=args.sizes)]
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text("")

    def tell(line: str) -> None:
        print(line, flush=True)
        if args.output is not None:
            with args.output.open("a") as output:
                output.write(f"{line}\n")

    tell(_HEAD)
    for plan in plans:
        table(plan, tell)


_HEAD = """\
Share of a strong optimum (40 starts, then pairs) that the config handed over reaches, without noise, after so many
launches in batches of 5, mean over simulated models: a strategy per layer, 25 batch sizes, 9 reserves, 1 % noise.
Ours hands over the config of highest posterior mean, the others the highest measurement. Worst: of the runs, at last.
s: of one core, a run. Settings of ours were chosen with models 0 to 4 of 24 layers in view; others were seen once.
A mean over five models of each family scatters by about 0.005, one over two by 0.01.
"""


if __name__ == "__main__":
    main()
