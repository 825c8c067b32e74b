"""Measures how few launches a search takes on simulated layer-wise FSDP: share of a strong optimum handed over.

python benchmarks/search.py [--seeds 5] [--layers 24] [--sizes] [--methods ours,tpe] [--marks 8,10,15,25,50]

A strategy per layer, 25 batch sizes, 9 reserved shares; 1 % noise; batches of 5 launches. Told is the share of a strong
optimum (40 starts, then pairs) that the config handed over reaches without noise: ours hands over the config of highest
posterior mean, all others the highest measurement. Worst: of the runs, at last. With ``--sizes`` the sizes of the
layers and the peak memory of each launch are known, as they are in the records.

``tpe`` and ``gp`` are Optuna's, told of jobs out of memory as broken constraints; ``+ first batch`` are the same after
the eight launches with which ours begins. ``paper`` is a hundred random jobs, then REINFORCE on ranking networks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from simulator import FAMILIES, Simulator

from torchx_cubicml.advisor import best_known, suggest
from torchx_cubicml.trial import Config, State, Trial

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
    "gp": optuna_proposing("gp", first=0),
    "gp + first batch": optuna_proposing("gp", first=FIRST),
    "paper": propose_paper,
    "ours": propose_ours,
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


def table(methods: Sequence[str], *, marks: Sequence[int], seeds: Sequence[int], n_layers: int, facts: bool) -> str:
    """Return the table of ``methods`` in each family and their mean, over simulators drawn by ``seeds``."""
    told = "layer sizes and peak memory known" if facts else "black box"
    lines = [
        f"{n_layers} layers, {told}, {len(seeds)} simulated models of each family",
        f"{'family':10s}{'method':19s}"
        + "".join(f"{f'{mark} jobs':>9s}" for mark in marks)
        + f"{'worst':>9s}{'OOM':>7s}{'s a run':>9s}",
    ]
    means: dict[str, list[list[float]]] = {method: [] for method in methods}
    for family in FAMILIES:
        simulators = [Simulator.draw(seed, n_layers=n_layers, family=family, facts=facts) for seed in seeds]
        optima = [simulator.optimum() for simulator in simulators]
        uniform = statistics.fmean(
            max(map(simulator.throughput, simulator.uniform_configs())) / optimum
            for simulator, optimum in zip(simulators, optima, strict=True)
        )
        lines.append(f"{family:10s}{'uniform':19s}{uniform:9.3f}  the best with every layer alike")
        for method in methods:
            started = time.perf_counter()
            runs = [
                search(simulator, method, marks=marks, optimum=optimum, seed=1000 + seed)
                for seed, simulator, optimum in zip(seeds, simulators, optima, strict=True)
            ]
            seconds = (time.perf_counter() - started) / len(seeds)
            shares = np.array([shares for shares, _ in runs])
            means[method].append(shares.mean(axis=0).tolist())
            oom = statistics.fmean(share for _, share in runs)
            row = _row(family, method, shares.mean(axis=0))
            lines.append(f"{row}{shares[:, -1].min():9.3f}{oom:7.2f}{seconds:9.0f}")
            print(lines[-1], flush=True)
    lines += [_row("mean", method, np.mean(means[method], axis=0)) for method in methods]
    return "\n".join(lines)


def _row(family: str, method: str, shares: np.ndarray) -> str:
    return f"{family:10s}{method:19s}" + "".join(f"{share:9.3f}" for share in shares)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="simulated models of each family to average over")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--layers", type=int, default=24, help="layers of each")
    parser.add_argument("--sizes", action="store_true", help="tell the sizes of the layers and peak memory")
    parser.add_argument("--methods", default=",".join(METHODS), help="which, with commas between")
    parser.add_argument("--marks", default="8,10,15,25,50,100,200", help="launches after which a search is judged")
    parser.add_argument("--output", type=Path, default=None, help="file to append to besides")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    marks = [int(mark) for mark in args.marks.split(",")]
    text = table(args.methods.split(","), marks=marks, seeds=seeds, n_layers=args.layers, facts=args.sizes)
    print(f"\n{text}", flush=True)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a") as output:
            output.write(f"{text}\n\n")


if __name__ == "__main__":
    main()
