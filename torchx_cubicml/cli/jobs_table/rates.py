"""Throughput of a row, from a rate or from the time of a step with its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.column_roles import (
    DEVICE_BATCH,
    GLOBAL_BATCH_TOKENS,
    MICRO_BATCH_TIMES,
    RATES_PER_SECOND,
    STEP_TIMES,
)
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchx_cubicml.records.values import Scalar

_DEGREES = ("tp_degree", "pp_degree", "cp_degree")


def job_rates(unit: str, value: float, facts: Mapping[str, Scalar]) -> dict[str, float]:
    """Return objective -> throughput of the whole job.

    Args:
        unit: one of ``UNITS``.
        value: in that unit, > 0; a step time in seconds.
        facts: of the row, under their standard names.

    Where the batch of a step is unknown, its steps alone are counted.

    Raises:
        RecordError: a fact is missing that turns the value into a throughput.

    >>> job_rates("tokens_per_second_per_device", 100.0, {"world_size": 8})
    {'tokens_per_second': 800.0}
    >>> job_rates("seconds_per_step", 2.0, {"global_batch_size": 64, "seq_len": 1024})
    {'tokens_per_second': 32768.0}
    >>> job_rates("seconds_per_micro_batch", 0.5, {"global_batch_size": 64, "gradient_accumulation_steps": 4})
    {'samples_per_second': 32.0}
    >>> job_rates("seconds_per_step", 2.0, {"micro_batch_size": 4, "world_size": 8})
    {'steps_per_second': 0.5}
    """
    if unit in RATES_PER_SECOND and not unit.startswith("steps"):
        objective = unit.removesuffix("_per_device")
        return {objective: value * (world_size(facts) if unit.endswith("_per_device") else 1.0)}
    if unit in MICRO_BATCH_TIMES.values():
        value *= accumulation(facts)
    steps_per_second = 1.0 / value if unit in STEP_TIMES else value
    sequence = count(facts, "seq_len")
    tokens = facts.get(GLOBAL_BATCH_TOKENS)
    if isinstance(tokens, int | float) and not isinstance(tokens, bool) and tokens > 0:
        return {"tokens_per_second": tokens * steps_per_second}
    if (samples := samples_per_step(facts)) is None:
        return {"steps_per_second": steps_per_second}
    if sequence is None:
        return {"samples_per_second": samples * steps_per_second}
    return {"tokens_per_second": samples * sequence * steps_per_second}


def samples_per_step(facts: Mapping[str, Scalar]) -> float | None:
    """Return the global batch: as stated, or micro batch x accumulation x data-parallel degree; ``None`` if unknown."""
    stated = count(facts, "global_batch_size")
    if stated is not None:
        return stated
    micro, rounds, dp = count(facts, "micro_batch_size"), count(facts, "gradient_accumulation_steps"), dp_degree(facts)
    return None if micro is None or rounds is None or dp is None else micro * rounds * dp


def accumulation(facts: Mapping[str, Scalar]) -> float:
    """Return the micro batches of a step on one rank: as stated, or what the other facts leave of the global batch.

    Raises:
        RecordError: they do not say it.
    """
    stated = count(facts, "gradient_accumulation_steps")
    batch, micro, dp = count(facts, "global_batch_size"), count(facts, "micro_batch_size"), dp_degree(facts)
    if stated is None and (batch is None or micro is None or dp is None):
        raise RecordError("a time of a micro batch needs gradient_accumulation_steps to become a throughput")
    return stated if stated is not None else (batch or 0.0) / ((micro or 1.0) * (dp or 1.0))


def missing_for_steps(names: Collection[str]) -> str:
    """Return the facts that a table lacks to turn steps into samples; empty if it lacks none.

    >>> missing_for_steps({"micro_batch_size", "world_size"})
    'global_batch_size, or gradient_accumulation_steps'
    >>> missing_for_steps({"global_batch_size"})
    ''
    """
    if {"global_batch_size", GLOBAL_BATCH_TOKENS} & set(names):
        return ""
    missing = [name for name in ("micro_batch_size", "gradient_accumulation_steps") if name not in names]
    missing = [] if DEVICE_BATCH in names else missing
    if not {"dp_degree", "dp_shard_degree", "world_size"} & set(names) and not {"nnodes", "nproc_per_node"} <= set(
        names
    ):
        missing.append("dp_degree or world_size")
    return f"global_batch_size, or {' and '.join(missing)}" if missing else ""


def dp_degree(facts: Mapping[str, Scalar]) -> float | None:
    """Return the data-parallel degree: as stated, or what the other degrees leave of the world size."""
    stated = stated_dp_degree(facts)
    if stated is not None:
        return stated
    world = known_world_size(facts)
    return None if world is None else world / model_parallel(facts)


def stated_dp_degree(facts: Mapping[str, Scalar]) -> float | None:
    """Return the data-parallel degree where the facts state it, or its parts; ``None`` elsewhere."""
    shard = count(facts, "dp_shard_degree")
    parts = None if shard is None else shard * (count(facts, "dp_replicate_degree") or 1.0)
    return count(facts, "dp_degree") or parts


def model_parallel(facts: Mapping[str, Scalar]) -> float:
    """Return the devices that share one batch: the product of tensor, pipeline and context parallelism."""
    product = 1.0
    for name in _DEGREES:
        product *= count(facts, name) or 1.0
    return product


def known_world_size(facts: Mapping[str, Scalar]) -> float | None:
    """Return the number of devices: as stated, or nodes times devices per node, or the product of all degrees."""
    stated = count(facts, "world_size")
    if stated is not None:
        return stated
    nodes, per_node = count(facts, "nnodes"), count(facts, "nproc_per_node")
    if nodes is not None and per_node is not None:
        return nodes * per_node
    dp = count(facts, "dp_degree")
    return dp * model_parallel(facts) if dp is not None and {"tp_degree", "pp_degree"} <= facts.keys() else None


def world_size(facts: Mapping[str, Scalar]) -> float:
    """Return the number of devices.

    Raises:
        RecordError: it is unknown.
    """
    known = known_world_size(facts)
    if known is None:
        raise RecordError("a throughput per device needs world_size, a whole number >= 1")
    return known


def count(facts: Mapping[str, Scalar], name: str) -> float | None:
    """Return a positive number among the facts, ``None`` where there is none."""
    value = facts.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if value > 0 else None
