"""Store of a search for one sharding strategy and one activation checkpointing per layer, over 64 layers."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.browser.stores.tuned import HARDWARE, TUNE, WORKLOAD, Launcher, measured, note_own
from torchx_cubicml import State, TrialStore

if TYPE_CHECKING:
    from pathlib import Path

N_LAYERS, LAUNCHES = 64, 160
SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
CHECKPOINTING = ("none", "selective", "full")
_SPEED = {"FULL_SHARD": 0.84, "SHARD_GRAD_OP": 0.94, "NO_SHARD": 1.0, "none": 1.0, "selective": 0.94, "full": 0.78}
_GIB = {"FULL_SHARD": 0.2, "SHARD_GRAD_OP": 0.5, "NO_SHARD": 1.1, "none": 0.9, "selective": 0.5, "full": 0.1}


def fill(url: Path) -> tuple[str, ...]:
    """Fill a store with the user's own config, random ones and changed copies of the best so far."""
    store, rng = TrialStore(str(url)), random.Random(3)
    workload = {**WORKLOAD, "n_layers": N_LAYERS, "d_model": 8192, "n_heads": 64, "world_size": 256}
    launcher = Launcher(rng, workload=workload)
    best, best_rate = (("FULL_SHARD",) * N_LAYERS, ("full",) * N_LAYERS), 0.0
    for number in range(LAUNCHES):
        sharding, kept = best if number < 2 else _changed(best, rng, share=0.9 if number < 30 else 0.08)
        config = {"sharding_strategy": sharding, "activation_checkpointing": kept, "micro_batch_size": 2}
        rate, peak = _outcome(sharding, kept, rng)
        trial = launcher.launch(dict(_PLAIN), tune=TUNE)
        observed = {**HARDWARE, **workload, **config, "n_params": 52_000_000_000, "nnodes": 32, "n_gpus": 256}
        trial = replace(trial, config=config, observed=observed, state=State.COMPLETED, reason="")
        if peak > 78.0:
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory")
        else:
            trial = replace(trial, measurement=measured(rate, peak))
            best, best_rate = ((sharding, kept), rate) if rate > best_rate else (best, best_rate)
        store.add(trial)
    note_own(str(url))
    return ()


_PLAIN = {"micro_batch_size": 1, "sharding_strategy": "FULL_SHARD", "activation_checkpointing": "full", "compile": True}


def _changed(
    config: tuple[tuple[str, ...], tuple[str, ...]], rng: random.Random, *, share: float
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sharding, kept = config
    return (
        tuple(rng.choice(SHARDINGS) if rng.random() < share else each for each in sharding),
        tuple(rng.choice(CHECKPOINTING) if rng.random() < share else each for each in kept),
    )


def _outcome(sharding: tuple[str, ...], kept: tuple[str, ...], rng: random.Random) -> tuple[float, float]:
    """Return tokens per second and GiB: the step time and the memory are sums over the layers."""
    step = sum(1 / (_SPEED[shard] * _SPEED[keep]) for shard, keep in zip(sharding, kept, strict=True))
    gib = 6.0 + sum(_GIB[shard] + _GIB[keep] for shard, keep in zip(sharding, kept, strict=True))
    return 430_000 * N_LAYERS / step * math.exp(rng.gauss(0, 0.006)), gib
