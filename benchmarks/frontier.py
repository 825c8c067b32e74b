"""Measures how much of a known frontier of two objectives a tune finds on simulated trainings.

python benchmarks/frontier.py [--seeds 6] [--launches 32] [--workers 1] [--output benchmarks/results/frontier.txt]

Each made-up model runs on 1 to 64 devices of two kinds, the newer one faster and dearer; 1 % to 3 % noise. Told is the
hypervolume: the area, in logarithms, of what the launched configs dominate, over that of all configs; both reach down
to the median of all configs that run. It is computed from the throughputs without noise. Told too is the throughput of
the config that would be handed over for the first objective, over the best.

``first`` is the tune with two objectives, which searches by the first one; ``second`` searches by the second one;
``random`` draws legal configs.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.tuner.proposer import Snapshot, StudyProposer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace

PAIRS = (("tokens_per_second", "tokens_per_device_hour"), ("tokens_per_second", "tokens_per_currency"))
MARKS = (8, 16, 24, 32)
NODES, PROCESSES, BATCHES = (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16)
SHARDINGS, CHECKPOINTING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"), ("none", "selective", "full")
PRICES = {"old": 1.8, "new": 3.9}
MEMORY_GIB = {"old": 40.0, "new": 80.0}
SPACE = """
objective = ["{}", "{}"]
[prices]
partition = {{ old = 1.8, new = 3.9 }}
[parameters.partition]
choices = ["old", "new"]
scheduler = "partition"
[parameters.nnodes]
choices = [1, 2, 4, 8]
torchrun = "--nnodes"
changes_training = true
[parameters.nproc_per_node]
choices = [1, 2, 4, 8]
torchrun = "--nproc_per_node"
changes_training = true
[parameters.micro_batch_size]
choices = [1, 2, 4, 8, 16]
flag = "--batch"
changes_training = true
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
flag = "--sharding"
[parameters.activation_checkpointing]
choices = ["none", "selective", "full"]
flag = "--recompute"
"""
CURRENT: Config = {
    "partition": "old",
    "nnodes": 1,
    "nproc_per_node": 4,
    "world_size": 4,
    "micro_batch_size": 1,
    "sharding_strategy": "FULL_SHARD",
    "activation_checkpointing": "full",
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A made-up training.

    Args:
        seed: of its constants.
        objectives: the pair that is searched.
    """

    seed: int
    objectives: tuple[str, str]

    @property
    def workload(self) -> dict[str, object]:
        """Return its facts."""
        return {"program": f"simulated-frontier-{self.seed}"}

    @cached_property
    def space(self) -> SearchSpace:
        """Return the search space, not bound."""
        return parse_space(SPACE.format(*self.objectives), where="frontier.toml")

    @cached_property
    def _constants(self) -> dict[str, float]:
        rng = np.random.default_rng([self.seed, 7])
        ranges = {
            "state_gib": (20.0, 90.0),
            "sample_gib": (1.0, 5.0),
            "sample_s": (0.02, 0.2),
            "launch_s": (0.01, 0.1),
            "wire_s": (0.02, 0.3),
            "new": (1.6, 3.0),
            "between": (2.0, 8.0),
            "noise": (0.01, 0.03),
        }
        return {name: float(np.exp(rng.uniform(*np.log(ends)))) for name, ends in ranges.items()}

    def rate(self, config: Config) -> float:
        """Return tokens per second without noise; 0.0 where memory runs out."""
        of = self._constants
        world, batch = int(str(config["world_size"])), int(str(config["micro_batch_size"]))
        sharding, recompute = (
            str(config["sharding_strategy"]),
            CHECKPOINTING.index(str(config["activation_checkpointing"])),
        )
        shards = {"FULL_SHARD": world, "SHARD_GRAD_OP": 0.5 * world + 0.5, "NO_SHARD": 1.0}[sharding]
        memory = of["state_gib"] / max(shards, 1.0) + of["sample_gib"] * batch * (1.0, 0.55, 0.2)[recompute]
        if memory > MEMORY_GIB[str(config["partition"])]:
            return 0.0
        faster = of["new"] if config["partition"] == "new" else 1.0
        computed = (of["launch_s"] + of["sample_s"] * batch * (1.0, 1.08, 1.3)[recompute]) / faster
        wire = of["wire_s"] * (1.0 - 1.0 / world) * {"FULL_SHARD": 1.5, "SHARD_GRAD_OP": 1.0, "NO_SHARD": 1.0}[sharding]
        wire *= of["between"] if int(str(config["nnodes"])) > 1 else 1.0
        wire *= 1.0 + 0.05 * np.log2(world)
        return float(2048 * batch * world / (max(computed, wire) + 0.3 * min(computed, wire)))

    def launch(self, config: Config, *, rng: np.random.Generator, number: int) -> Trial:
        """Return the trial of one launch."""
        rate, facts = self.rate(config), self.workload
        if not rate:
            trial = Trial.infeasible(workload=facts, config=config)
        else:
            noisy = rate * float(np.exp(rng.normal(0.0, self._constants["noise"])))
            trial = Trial.completed(workload=facts, config=config, tokens_per_second=noisy)
        observed = {"world_size": config["world_size"], "partition": config["partition"]}
        minute = f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00"
        trial = replace(trial, trial_id=f"t{number:03d}", observed=observed, started_at=minute, ended_at=minute)
        return trial.priced(self.space.prices)

    def values(self, config: Config) -> NDArray[np.float64]:
        """Return the logarithms of both objectives, ``[2]``; ``-inf`` where memory runs out."""
        rate = self.rate(config)
        if not rate:
            return np.full(2, -np.inf)
        trial = Trial.completed(workload=self.workload, config=config, tokens_per_second=rate)
        found = [trial.priced(self.space.prices).throughput(name) for name in self.objectives]
        return np.log(np.array(found, dtype=np.float64))

    @cached_property
    def all_values(self) -> NDArray[np.float64]:
        """Return the logarithms of both objectives of all configs that run, ``[n, 2]``."""
        names = ("partition", "nnodes", "nproc_per_node", "micro_batch_size", "sharding_strategy")
        names = (*names, "activation_checkpointing")
        rows = product(PRICES, NODES, PROCESSES, BATCHES, SHARDINGS, CHECKPOINTING)
        configs = (dict(zip(names, row, strict=True)) for row in rows)
        values = [self.values({**each, "world_size": each["nnodes"] * each["nproc_per_node"]}) for each in configs]
        return np.array([each for each in values if np.isfinite(each).all()])

    def share(self, configs: Sequence[Config]) -> float:
        """Return the hypervolume of some configs over that of all."""
        floor = np.median(self.all_values, axis=0)
        found = np.array([self.values(config) for config in configs]).reshape(-1, 2)
        return hypervolume(found, floor) / hypervolume(self.all_values, floor)


def hypervolume(points: NDArray[np.float64], floor: NDArray[np.float64]) -> float:
    """Return the area that points ``[n, 2]`` dominate above ``floor``, ``[2]``."""
    above = points[(points > floor).all(axis=1)] - floor
    area = reached = 0.0
    for first, second in above[np.argsort(-above[:, 0], kind="stable")].tolist():
        area += first * max(second - reached, 0.0)
        reached = max(reached, second)
    return area


def run(case: tuple[str, int, tuple[str, str], int]) -> tuple[list[float], list[float]]:
    """Return the shares of hypervolume and of the best throughput at each mark."""
    method, seed, objectives, launches = case
    model, rng = Model(seed=seed, objectives=objectives), np.random.default_rng([seed, 1])
    objective = objectives[method == "second"]
    space = replace(model.space, objective=objective)
    bound = space.bind(workload=model.workload, current=CURRENT)
    proposer = StudyProposer(predictor="") if method != "random" else None
    trials: list[Trial] = []
    best, shares, handed = float(np.exp(model.all_values[:, 0].max())), [], []
    for number in range(launches):
        if proposer is None:
            config = bound.sample(1, rng=rng)[0] if number else CURRENT
        else:
            snapshot = Snapshot(space=space, workload=model.workload, current=CURRENT, trials=list(trials), seed=number)
            config = proposer.suggest(snapshot)[0].config
        trials.append(model.launch(config, rng=rng, number=number))
        if number + 1 in MARKS:
            shares.append(model.share([trial.config for trial in trials]))
            measured = [trial for trial in trials if trial.state is State.COMPLETED]
            top = max(measured, key=lambda trial: trial.throughput("tokens_per_second") or 0.0)
            handed.append(model.rate(top.config) / best)
    return shares, handed


def table(methods: Sequence[str], *, seeds: range, launches: int, workers: int) -> Iterator[str]:
    """Yield the lines of the table of both pairs."""
    marks = [mark for mark in MARKS if mark <= launches]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for pair in PAIRS:
            yield f"{pair[0]} and {pair[1]}, {len(seeds)} models"
            head = "".join(f"{mark:>8}" for mark in marks)
            yield f"{'share of hypervolume after':28}{head}   best throughput after {launches}"
            for method in methods:
                cases = [(method, seed, pair, launches) for seed in seeds]
                rows = list(pool.map(run, cases))
                shares = "".join(f"{statistics.fmean(row[0][k] for row in rows):8.2f}" for k in range(len(marks)))
                last = statistics.fmean(row[1][-1] for row in rows)
                yield f"{method:28}{shares}   {last:.2f}"


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first model")
    parser.add_argument("--launches", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--methods", default="first,second,random")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    lines, seeds = [], range(args.first_seed, args.first_seed + args.seeds)
    for line in table(args.methods.split(","), seeds=seeds, launches=args.launches, workers=args.workers):
        print(line, flush=True)
        lines.append(line)
        if args.output is not None:
            args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
