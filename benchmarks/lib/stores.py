"""Writes stores of made-up launches, object by object as the recorder does, for benchmarks of what reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torchx_cubicml.records.values import Config, Workload

N_LAYERS = 4
OWN: Workload = {
    "program": "examples/train_gpt.py",
    "world_size": 2,
    "n_layers": N_LAYERS,
    "n_heads": 4,
    "d_model": 128,
    "vocab_size": 512,
    "seq_len": 64,
}
OTHERS: list[Workload] = [
    {**OWN, "program": program, "d_model": d_model, "seq_len": seq_len, "world_size": world_size}
    for program, d_model, seq_len, world_size in product(
        ("pretrain.py", "train.py", "sft.py"), (256, 512), (64, 256), (2, 8, 64)
    )
]
_MEASURED = 5  # events of a launch of a hundred steps between its start and its end
_PER_DAY = 100  # launches
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def fill(folder: Path, n_trials: int, *, own_share: float = 0.02, fewest_own: int = 20) -> int:
    """Write ``n_trials`` launches of many workloads below ``folder``, and return the number of objects.

    Args:
        folder: of the store.
        n_trials: how many launches.
        own_share: of them that are of the workload ``OWN``.
        fewest_own: likewise, at least.
    """
    rng = np.random.default_rng(n_trials)
    n_own = min(n_trials, max(fewest_own, round(own_share * n_trials)))
    own = set(rng.choice(n_trials, n_own, replace=False).tolist())
    return sum(add_launch(folder, number, rng, own=number in own) for number in range(n_trials))


def add_launch(folder: Path, number: int, rng: np.random.Generator, *, own: bool) -> int:
    """Write one launch, of the workload ``OWN`` or of another, and return the number of its objects."""
    workload = OWN if own else OTHERS[number % len(OTHERS)]
    started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=1 / _PER_DAY) * number
    day = folder / "events" / f"{started:%Y-%m-%d}"
    day.mkdir(parents=True, exist_ok=True)
    events = list(_events(number, workload, _config(rng), started, rng))
    for event in events:
        text = json.dumps(event.to_json(), separators=(",", ":"))
        stamp = datetime.fromisoformat(event.time).strftime("%Y%m%dT%H%M%S.%fZ")
        (day / f"{stamp}-{rng.bytes(8).hex()}.json").write_text(f"{text}\n")
    return len(events)


def _config(rng: np.random.Generator) -> Config:
    batch = int(rng.choice([1, 2, 4, 8, 16]))
    return {
        "micro_batch_size": batch,
        "gradient_accumulation_steps": 16 // batch,
        "sharding_strategy": tuple(str(item) for item in rng.choice(_STRATEGIES, N_LAYERS)),
        "activation_checkpointing": str(rng.choice(["none", "full"])),
    }


def _events(
    number: int, workload: Workload, config: Config, started: datetime, rng: np.random.Generator
) -> Iterator[Event]:
    bare = {
        "trial_id": f"local_cwd-train-{number:08x}",
        "writer": "rank0",
        "workload": workload,
        "config": config,
        "origin": Origin.USER,
    }
    environment = {"world_size": workload["world_size"], "nnodes": 1, "host": "node", "python_version": "3.11.7"}
    environment |= {"scheduler": "local_cwd", "torch_version": "2.13.0"}
    seen = environment | _observed(workload, config)
    out_of_memory = config["micro_batch_size"] == 16 and config["activation_checkpointing"] == "none"
    kinds = [EventKind.STARTED, *[EventKind.MEASURED] * (0 if out_of_memory else _MEASURED), EventKind.ENDED]
    throughput = _throughput(workload, config) * float(np.exp(rng.normal(0, 0.02)))
    for sequence, kind in enumerate(kinds):
        measured = sequence > 0 and not out_of_memory
        state = None if kind is not EventKind.ENDED else State.OUT_OF_MEMORY if out_of_memory else State.COMPLETED
        yield Event(
            kind=kind,
            **bare,
            sequence=sequence,
            time=(started + timedelta(seconds=2**sequence)).isoformat(timespec="milliseconds"),
            observed=seen if sequence else environment,
            measurement=_measurement(throughput, 2**sequence) if measured else None,
            state=state,
        )


def _observed(workload: Workload, config: Config) -> dict[str, object]:
    world_size, d_model = int(workload["world_size"]), int(workload["d_model"])
    batch, steps = int(config["micro_batch_size"]), int(config["gradient_accumulation_steps"])
    ones = dict.fromkeys(("tp_degree", "cp_degree", "ep_degree", "pp_degree", "dp_replicate_degree"), 1)
    facts = {name: workload[name] for name in ("n_layers", "n_heads", "d_model", "vocab_size", "seq_len")}
    n_params = 12 * N_LAYERS * d_model**2
    return {
        **ones,
        **facts,
        **config,
        "root_sharding_strategy": "FULL_SHARD",
        "dp_degree": world_size,
        "dp_shard_degree": world_size,
        "n_params": n_params,
        "n_trainable_params": n_params,
        "compile": False,
        "d_ff": 4 * d_model,
        "precision": "fp32",
        "optimizer": "AdamW",
        "device": "cpu",
        "global_batch_size": batch * steps * world_size,
    }


def _throughput(workload: Workload, config: Config) -> float:
    shards = sum(_STRATEGIES.index(item) for item in config["sharding_strategy"])
    batch = float(config["micro_batch_size"])
    slower = 1.3 if config["activation_checkpointing"] == "full" else 1.0
    scale = 1e9 * float(workload["world_size"]) ** 0.9 / float(workload["d_model"]) ** 2
    return scale * batch**0.3 * (1 + 0.05 * shards) / slower


def _measurement(throughput: float, steps: int) -> Measurement:
    seconds = 1000 / throughput
    return Measurement(
        tokens_per_second=throughput,
        samples_per_second=throughput / 64,
        steps_counted=steps,
        warmup_steps=3,
        step_time_s=(0.9 * seconds, seconds, 1.1 * seconds),
        peak_memory_gib=0.37,
        mean_step_time_s=seconds,
        drift=0.01,
        share_outside_steps=0.003,
    )
