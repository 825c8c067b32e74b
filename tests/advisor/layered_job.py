"""Launches of a made-up job that runs out of memory where its batch and its unsharded layers are too many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

WORKLOAD = {"program": "train.py", "world_size": 8}
STRATEGIES = ("FULL_SHARD", "NO_SHARD")
LIMIT_GIB = 60.0
CURRENT: Config = {"micro_batch_size": 1, "sharding_strategy": ("FULL_SHARD",) * 6, "compile": False, "backend": "a"}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=6),
        Parameter(name="compile", choices=(False, True)),
        Parameter(name="backend", choices=("a", "b")),
    )
)


def memory_gib(config: Config) -> float:
    """Return the memory that a config needs."""
    return 3.0 * config["micro_batch_size"] + 6.0 * config["sharding_strategy"].count("NO_SHARD") + 4.0


def throughput(config: Config) -> float:
    """Return tokens per second."""
    rate = 1000.0 * config["micro_batch_size"] ** 0.5 * (1.2 if config["compile"] else 1.0)
    return rate * (1.0 + 0.04 * config["sharding_strategy"].count("NO_SHARD"))


def launched(config: Config, number: int, *, rng: np.random.Generator) -> Trial:
    """Return the trial of a launch; it fails where memory runs out."""
    fits = memory_gib(config) <= LIMIT_GIB
    rate = throughput(config) * float(np.exp(rng.normal(0.0, 0.01)))
    trial = Trial.completed(
        workload=WORKLOAD, config=config, tokens_per_second=rate, peak_memory_gib=memory_gib(config) if fits else None
    )
    trial = replace(trial, trial_id=f"t{number}", started_at=f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00Z")
    if fits:
        return trial
    return replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory")


def launches(count: int = 40, *, seed: int = 3) -> list[Trial]:
    """Return the user's own config twice, random ones, the best one, and one that differs from it in one value."""
    rng = np.random.default_rng(seed)
    drawn = SPACE.bind(workload=WORKLOAD, current=CURRENT).sample(count, rng=rng)
    best = max(filter(lambda config: memory_gib(config) <= LIMIT_GIB, drawn), key=throughput)
    configs = [CURRENT, CURRENT, *drawn, best, {**best, "compile": not best["compile"]}]
    return [launched(config, number, rng=rng) for number, config in enumerate(configs)]
