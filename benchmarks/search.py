"""Measures how few launches a search takes on simulated layer-wise FSDP: share of a strong optimum handed over.

python benchmarks/search.py [--seeds 5] [--output benchmarks/results/search.txt]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from simulator import Simulator

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


def table(*, seeds: int, n_layers: int) -> str:
    """Return the table of all methods, mean over ``seeds`` simulators of ``n_layers``."""
    simulators = [Simulator.draw(seed, n_layers=n_layers) for seed in range(seeds)]
    optima = [simulator.optimum() for simulator in simulators]
    uniform = statistics.fmean(
        max(map(simulator.throughput, simulator.uniform_configs())) / optimum
        for simulator, optimum in zip(simulators, optima, strict=True)
    )
    lines = [
        f"{n_layers} layers, {seeds} simulated models; every layer alike reaches {uniform:.3f} at best.",
        f"{'method':10s}"
        + "".join(f"{f'{mark} jobs':>9s}" for mark in MARKS)
        + f"{'worst':>9s}{'OOM':>7s}{'per run':>10s}",
    ]
    for method in METHODS:
        started = time.perf_counter()
        runs = [
            search(simulator, method, optimum=optimum, seed=1000 + seed)
            for seed, (simulator, optimum) in enumerate(zip(simulators, optima, strict=True))
        ]
        seconds = (time.perf_counter() - started) / seeds
        means = np.array([shares for shares, _ in runs]).mean(axis=0)
        worst = min(shares[-1] for shares, _ in runs)
        oom = statistics.fmean(share for _, share in runs)
        lines.append(
            f"{method:10s}" + "".join(f"{mean:9.3f}" for mean in means) + f"{worst:9.3f}{oom:7.2f}{seconds:8.0f} s"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="simulated models to average over")
    parser.add_argument("--layers", type=int, default=24, help="layers of each")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    text = "\n".join(
        [
            "Simulated layer-wise FSDP: a strategy per layer, 25 batch sizes, 9 reserved shares; 1 % noise.",
            f"Share of a strong optimum (40 starts) that the config handed over reaches; batches of {BATCH} launches.",
            "random hands over the highest measurement, ours the highest posterior mean. Worst: of the runs, at last.",
            "",
            table(seeds=args.seeds, n_layers=args.layers),
        ]
    )
    print(text)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
