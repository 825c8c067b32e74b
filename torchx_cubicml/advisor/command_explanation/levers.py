"""Changes of a command that are usual levers of its speed and memory, as rows of changed facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.predictors.features.device_specs import CPU, find_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.records.values import Value

_FACTOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Change of some facts of a command.

    Args:
        values: fact -> value after the change.
        note: what else it does to the training, for people; empty for nothing.
    """

    values: Mapping[str, Value]
    note: str = ""


def usual_levers(row: Mapping[str, Value]) -> list[Lever]:
    """Return the usual levers that the formulas cover for a command with the facts ``row``.

    >>> [dict(lever.values) for lever in usual_levers({"micro_batch_size": 4, "device": "cpu"})]
    [{'micro_batch_size': 8}, {'micro_batch_size': 2}]
    """
    levers = [*_of_batch(row), *_of_recomputation(row)]
    if _number(row, "world_size") > 1:
        levers += _of_sharding(row)
    if find_hardware(str(row.get("device", ""))) is not CPU:
        levers += _of_kernels(row)
        levers += _of_devices(row)
    return levers


def _of_batch(row: Mapping[str, Value]) -> Iterator[Lever]:
    micro, rounds = _number(row, "micro_batch_size"), _number(row, "gradient_accumulation_steps")
    other = "the batch of a step changes"
    if micro > 0:
        larger: dict[str, Value] = {"micro_batch_size": micro * _FACTOR}
        if rounds > 1 and rounds % _FACTOR == 0:
            yield Lever(values={**larger, "gradient_accumulation_steps": rounds // _FACTOR})
        else:
            yield Lever(values=larger, note="" if "global_batch_size" in row and not rounds else other)
    if micro > 1 and micro % _FACTOR == 0:
        smaller: dict[str, Value] = {"micro_batch_size": micro // _FACTOR}
        if rounds:
            yield Lever(values={**smaller, "gradient_accumulation_steps": rounds * _FACTOR})
        else:
            yield Lever(values=smaller, note="" if "global_batch_size" in row else other)


def _of_recomputation(row: Mapping[str, Value]) -> Iterator[Lever]:
    name = "activation_checkpointing"
    if name in row:
        others = {"none": "full", "full": "none", "selective": "full"}
        if (other := others.get(str(row[name]))) is not None:
            yield Lever(values={name: other})


def _of_sharding(row: Mapping[str, Value]) -> Iterator[Lever]:
    name, others = "sharding_strategy", {"DDP": "FULL_SHARD", "NO_SHARD": "FULL_SHARD", "FULL_SHARD": "SHARD_GRAD_OP"}
    if (other := others.get(str(row.get(name)))) is not None:
        yield Lever(values={name: other})


def _of_kernels(row: Mapping[str, Value]) -> Iterator[Lever]:
    if row.get("precision") == "fp32":
        yield Lever(values={"precision": "bf16"}, note="the training's rounding changes")
    if row.get("compile") is False:
        yield Lever(values={"compile": True})
    if row.get("attention_kernel") == "math":
        yield Lever(values={"attention_kernel": "sdpa"})


def _of_devices(row: Mapping[str, Value]) -> Iterator[Lever]:
    world, nodes = _number(row, "world_size"), _number(row, "nnodes")
    if world > 0:
        values: dict[str, Value] = {"world_size": world * _FACTOR}
        if nodes:
            values["nnodes"] = nodes * _FACTOR
        note = "twice the devices" + ("" if "global_batch_size" in row else " and twice the batch of a step")
        yield Lever(values=values, note=note)


def _number(row: Mapping[str, Value], name: str) -> int:
    value = row.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0
