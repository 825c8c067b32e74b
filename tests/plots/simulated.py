"""A space and launches of it, whose throughput and memory follow simple formulas with known noise."""

from __future__ import annotations

import random

from torchx_cubicml import Measurement, Origin, SearchSpace, State, Trial
from torchx_cubicml.space import Parameter

WORKLOAD = {"program": "train.py", "world_size": 8, "n_layers": 24, "device": "NVIDIA H100 80GB HBM3"}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
        Parameter(name="sharding_strategy", choices=("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
        Parameter(name="activation_checkpointing", choices=("none", "full")),
        Parameter(name="compile", choices=(False, True)),
    )
)
CURRENT = {
    "micro_batch_size": 2,
    "sharding_strategy": "FULL_SHARD",
    "activation_checkpointing": "none",
    "compile": False,
}
GIVEN = {"workload": WORKLOAD, "current": CURRENT}
_STATE_GIB = {"FULL_SHARD": 8.0, "SHARD_GRAD_OP": 13.0, "NO_SHARD": 24.0}
_SAMPLE_GIB = {"none": 6.0, "full": 2.0}
_SPEED = {"FULL_SHARD": 1.0, "SHARD_GRAD_OP": 1.1, "NO_SHARD": 1.15, "none": 1.0, "full": 0.8, True: 1.15, False: 1.0}


def memory_gib(config: dict[str, object]) -> float:
    per_sample = _SAMPLE_GIB[config["activation_checkpointing"]]
    return _STATE_GIB[config["sharding_strategy"]] + config["micro_batch_size"] * per_sample


def throughput(config: dict[str, object]) -> float:
    rate = 20_000.0 * config["micro_batch_size"] ** 0.4
    for name in ("sharding_strategy", "activation_checkpointing", "compile"):
        rate *= _SPEED[config[name]]
    return rate


def launched(config: dict[str, object], place: int, rng: random.Random) -> Trial:
    """Return a launch with a prediction that is ten per cent off; more than 80 GiB does not fit."""
    rate = throughput(config) * rng.lognormvariate(0.0, 0.01)
    fits = memory_gib(config) <= 80.0
    return Trial(
        trial_id=f"trial-{place:03d}",
        workload=WORKLOAD,
        config=config,
        state=State.COMPLETED if fits else State.OUT_OF_MEMORY,
        reason="" if fits else "CUDA out of memory",
        measurement=Measurement(tokens_per_second=rate, peak_memory_gib=memory_gib(config)) if fits else None,
        origin=Origin.TUNE,
        suggestion={"throughput": rate * rng.lognormvariate(0.0, 0.1)},
        started_at=f"2026-01-01T{place // 60:02d}:{place % 60:02d}:00+00:00",
        ended_at=f"2026-01-01T{place // 60:02d}:{place % 60:02d}:50+00:00",
    )


def launches(count: int = 24) -> list[Trial]:
    rng = random.Random(0)
    configs = [{each.name: rng.choice(each.choices) for each in SPACE.parameters} for _ in range(count)]
    return [launched(config, place, rng) for place, config in enumerate(configs)]
