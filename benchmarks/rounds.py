"""Measures how long the suggestions of a round take: five launches over a history of ten thousand trials.

python benchmarks/rounds.py [--repeats 3] [--output benchmarks/results/rounds.txt]

Trials are of simulated layer-wise FSDP, each workload a model of its own. All is in memory: reading a store is measured
by ``dry_run.py``. Wall time is of one process; give the machine to it alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from lib.simulator import BATCH_SIZES, RESERVES, STRATEGIES, Simulator

from torchx_cubicml.advisor import suggest
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

N_TRIALS = 10_000
COUNT = 5  # launches of a round
BOUND_S = 5.0
_A_MODEL = 100  # trials of each of the other workloads


def trials_of(simulator: Simulator, count: int, rng: np.random.Generator) -> Iterator[Trial]:
    """Yield trials of configs drawn at random, whose layers take each strategy in shares that are drawn, too."""
    shares = rng.dirichlet(np.full(len(STRATEGIES), 0.5), size=count)
    chances = rng.random((count, simulator.n_layers, 1))
    chosen = (chances > np.cumsum(shares, axis=1)[:, None, :-1]).sum(axis=2)
    batch, reserve = rng.choice(BATCH_SIZES, count), rng.choice(RESERVES, count)
    speeds = simulator.throughputs(chosen, batch.astype(np.float64), reserve) * np.exp(rng.normal(0.0, 0.01, count))
    for number, (layers, size, share, speed) in enumerate(zip(chosen, batch, reserve, speeds, strict=True)):
        config = {
            "sharding_strategy": tuple(STRATEGIES[choice] for choice in layers.tolist()),
            "micro_batch_size": int(size),
            "reserved_share": float(share),
        }
        fits = speed > 0
        yield Trial(
            trial_id=f"{number:05d}-{simulator.workload['program']}",
            workload=simulator.workload,
            config=config,
            state=State.COMPLETED if fits else State.OUT_OF_MEMORY,
            measurement=Measurement(samples_per_second=float(speed)) if fits else None,
        )


def measured(n_own: int, n_trials: int, n_layers: int, repeats: int) -> tuple[float, float, float]:
    """Return wall seconds of a round, median and largest, and seconds of processors, median."""
    rng = np.random.default_rng(0)
    simulator = Simulator.draw(0, n_layers=n_layers, facts=True)
    trials = [*trials_of(simulator, n_own, rng)]
    for seed in range(1, 1 + (n_trials - n_own) // _A_MODEL):
        trials += trials_of(Simulator.draw(seed, n_layers=n_layers, facts=True), _A_MODEL, rng)
    current = {"sharding_strategy": ("FULL_SHARD",) * n_layers, "micro_batch_size": 140, "reserved_share": 0.77}
    walls, processors = [], []
    for seed in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        found = suggest(
            simulator.space, workload=simulator.workload, current=current, trials=trials, count=COUNT, seed=seed
        )
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
        if len(found) != COUNT:
            raise SystemExit(f"{len(found)} suggestions")
    return median(walls), max(walls), median(processors)


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where the bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each kind")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        f"{COUNT} suggestions by `suggest`, {args.repeats} times each; wall s of one process, the first with imports",
        f"{'own trials':>10s}{'of other workloads':>20s}{'layers':>8s}{'wall s':>8s}{'most':>7s}{'CPU s':>7s}",
    ]
    most = 0.0
    for n_own, n_trials, n_layers in (
        (10, N_TRIALS, 24),
        (100, N_TRIALS, 24),
        (N_TRIALS, N_TRIALS, 24),
        (100, 100, 100),
    ):
        wall, largest, processor = measured(n_own, n_trials, n_layers, args.repeats)
        most = max(most, largest)
        lines.append(f"{n_own:10d}{n_trials - n_own:20d}{n_layers:8d}{wall:8.2f}{largest:7.2f}{processor:7.2f}")
        print(lines[-1], flush=True)
    lines += [
        f"a space of 100 layers holds {3.0**100 * len(BATCH_SIZES) * len(RESERVES):.0e} configs",
        f"each round of each size within {BOUND_S:.0f} s: {'held' if most < BOUND_S else 'BROKEN'}",
        f"{os.cpu_count()} cores; load before {load:.1f}, after {os.getloadavg()[0]:.1f}",
    ]
    text = "\n".join(lines)
    print(text)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(f"{text}\n")
    return 0 if most < BOUND_S else 1


if __name__ == "__main__":
    sys.exit(main())
