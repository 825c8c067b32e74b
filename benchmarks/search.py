"""Measures how few launches a search takes on simulated layer-wise FSDP: share of a strong optimum handed over.

python benchmarks/search.py [--seeds 5] [--layers 24] [--sizes] [--output benchmarks/results/search.txt]

A strategy per layer, 25 batch sizes, 9 reserved shares; 1 % noise; batches of 5 launches. Told is the share of a strong
optimum that the config handed over reaches without noise: random hands over the highest measurement, ours the config of
highest posterior mean. Worst: of the runs, at last.
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

MARKS = (8, 15, 25, 50)  # launches after which the config handed over is judged
BATCH = 5  # launches at once
Propose = Callable[[Simulator, Config, Sequence[Trial], int, np.random.Generator], list[Config]]
HandOver = Callable[[Simulator, Config, Sequence[Trial]], Config]


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


def hand_over_fastest(simulator: Simulator, current: Config, trials: Sequence[Trial]) -> Config:
    """Return the config of the highest measurement."""
    ran = [trial for trial in trials if trial.measurement is not None]
    return max(ran, key=lambda trial: trial.measurement.samples_per_second or 0.0).config if ran else current


def hand_over_ours(simulator: Simulator, current: Config, trials: Sequence[Trial]) -> Config:
    """Return what the advisor would run in an ordinary launch."""
    best = best_known(simulator.space, workload=simulator.workload, current=current, trials=trials)
    return current if best is None else best.config


METHODS: dict[str, tuple[Propose, HandOver]] = {
    "random": (propose_random, hand_over_fastest),
    "ours": (propose_ours, hand_over_ours),
}


def search(simulator: Simulator, method: str, *, optimum: float, seed: int) -> tuple[list[float], float]:
    """Return the share of ``optimum`` after each of ``MARKS``, without noise, and the share out of memory."""
    propose, hand_over = METHODS[method]
    rng = np.random.default_rng(seed)
    current: Config = {
        "sharding_strategy": ("FULL_SHARD",) * simulator.n_layers,
        "micro_batch_size": 140,
        "reserved_share": 0.77,
    }
    trials: list[Trial] = []
    shares = []
    for mark in MARKS:
        while len(trials) < mark:
            configs = propose(simulator, current, trials, min(BATCH, mark - len(trials)), rng)
            trials += [
                simulator.launch(config, rng=rng, number=len(trials) + index) for index, config in enumerate(configs)
            ]
        shares.append(simulator.throughput(hand_over(simulator, current, trials)) / optimum)
    return shares, statistics.fmean(trial.state is State.OUT_OF_MEMORY for trial in trials)


def table(*, seeds: Sequence[int], n_layers: int, facts: bool) -> str:
    """Return the table of all methods in each family, mean over simulators of ``n_layers`` drawn by ``seeds``."""
    told = "their sizes told" if facts else "their sizes not told"
    lines = [
        f"{n_layers} layers ({told}), {len(seeds)} simulated models of each family",
        f"{'family':10s}{'method':8s}"
        + "".join(f"{f'{mark} jobs':>9s}" for mark in MARKS)
        + f"{'worst':>9s}{'OOM':>7s}",
    ]
    for family in FAMILIES:
        simulators = [Simulator.draw(seed, n_layers=n_layers, family=family, facts=facts) for seed in seeds]
        optima = [simulator.optimum() for simulator in simulators]
        uniform = [
            max(map(simulator.throughput, simulator.uniform_configs())) / optimum
            for simulator, optimum in zip(simulators, optima, strict=True)
        ]
        lines.append(f"{family:10s}{'uniform':8s}{statistics.fmean(uniform):9.3f}  the best with every layer alike")
        for method in METHODS:
            started = time.perf_counter()
            runs = [
                search(simulator, method, optimum=optimum, seed=1000 + seed)
                for seed, simulator, optimum in zip(seeds, simulators, optima, strict=True)
            ]
            seconds = (time.perf_counter() - started) / len(seeds)
            lines.append(f"{family:10s}{method:8s}{_told(runs)}   {seconds:.0f} s a run")
    return "\n".join(lines)


def _told(runs: Sequence[tuple[list[float], float]]) -> str:
    means = np.array([shares for shares, _ in runs]).mean(axis=0)
    worst = min(shares[-1] for shares, _ in runs)
    oom = statistics.fmean(share for _, share in runs)
    return "".join(f"{mean:9.3f}" for mean in means) + f"{worst:9.3f}{oom:7.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="simulated models of each family to average over")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--layers", type=int, default=24, help="layers of each")
    parser.add_argument("--sizes", action="store_true", help="tell the sizes of the layers")
    parser.add_argument("--output", type=Path, default=None, help="file to append to besides")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    text = table(seeds=seeds, n_layers=args.layers, facts=args.sizes)
    print(text, flush=True)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a") as output:
            output.write(f"{text}\n\n")


if __name__ == "__main__":
    main()
