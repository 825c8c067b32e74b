"""Partial order of configs by the memory that they need: at least as much in every respect.

A respect is a parameter of which it is known which values need more: micro batch, sequence, sharding, recomputation,
offload, allocation limit. A value is placed at coordinates; it needs at least as much memory as another if none of its
coordinates is smaller. All other parameters and facts must be equal for two configs to be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.records.standard_names import BATCH_FLAGS, standard_flag_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.records.values import Scalar, Value, Workload
    from torchx_cubicml.space import Parameter

Coordinates: TypeAlias = tuple[float, ...]

BATCH, SEQUENCE, ACCUMULATION = "micro_batch_size", "seq_len", "gradient_accumulation_steps"
# Ranks that shard gradients may keep them whole between micro batches, and need less memory with one micro batch.
SHARDED_ACCUMULATION = "gradient_accumulation_steps of sharded gradients"
_SHARDS = frozenset({"sharding_strategy", "zero_stage", "reshard_after_forward"})
_WHOLE_GRADIENTS = frozenset({"NO_SHARD", "DDP", "NONE"})

# Coordinates of values. Two that are smaller in one coordinate each cannot be compared.
_STRATEGIES: dict[str, Coordinates] = {
    "FULL_SHARD": (0.0, 0.0),
    "SHARD_GRAD_OP": (1.0, 1.0),
    "HYBRID_SHARD": (2.0, 0.0),  # all states, but over the ranks of one node
    "_HYBRID_SHARD_ZERO2": (3.0, 1.0),
    "SHARD_OPTIMIZER": (1.0, 2.0),
    "NO_SHARD": (4.0, 5.0),  # FSDP's, DDP's and no wrapper's buffers differ
    "DDP": (5.0, 4.0),
    "NONE": (6.0, 3.0),
}
_LIMITED = ("reserved_share", "memory_fraction", "per_process_memory_fraction", "gpu_memory_fraction")
_SWITCHES: dict[str, dict[str, Coordinates]] = {
    "sharding_strategy": _STRATEGIES,
    "zero_stage": {"3": (0.0,), "2": (1.0,), "1": (2.0,), "0": (3.0,)},
    "distributed_optimizer": {"true": (0.0,), "false": (1.0,)},
    "reshard_after_forward": {
        "true": (0.0,),
        "always": (0.0,),
        "default": (1.0,),
        "false": (2.0,),
        "never": (2.0,),
    },
    "activation_checkpointing": {
        **dict.fromkeys(("full", "true", "1"), (0.0,)),
        **dict.fromkeys(("none", "false", "0"), (2.0,)),
        "selective": (1.0,),
    },
    **{
        name: {"true": (0.0,), "false": (1.0,)}
        for name in ("offload", "cpu_offload", "offload_params", "offload_activations", "activation_offload")
    },
    "offload_optimizer": {"cpu": (0.0, 1.0), "nvme": (1.0, 0.0), "none": (2.0, 2.0)},
}
# Of a batch that is one of the whole step, more samples are more micro batches; a higher limit leaves more room.
_SIZES = dict.fromkeys((BATCH, SEQUENCE, "global_batch_size", *BATCH_FLAGS), 1.0) | dict.fromkeys(_LIMITED, -1.0)
_RESPECTS = frozenset({*_SWITCHES, *_SIZES, ACCUMULATION})


def respect_of(names: Iterable[str]) -> str:
    """Return the respect in which a parameter with these standard names is ordered; empty without one.

    >>> respect_of(["bs", "micro_batch_size"]), respect_of(["tp_degree"])
    ('micro_batch_size', '')
    """
    ordered = sorted(_RESPECTS.intersection(names), key=lambda name: (name in BATCH_FLAGS, name))
    return ordered[0] if ordered else ""


def coordinates(respect: str, value: Scalar) -> Coordinates | None:
    """Return the coordinates of one value; ``None`` where it is not known how much memory it needs.

    >>> coordinates("activation_checkpointing", False), coordinates("sharding_strategy", "full_shard auto_wrap")
    ((2.0,), (0.0, 0.0))
    """
    if respect in _SIZES:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return (_SIZES[respect] * float(value),) if is_number else None
    if respect in {ACCUMULATION, SHARDED_ACCUMULATION}:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return (float(respect == SHARDED_ACCUMULATION and float(value) > 1.0),) if is_number else None
    word = str(value).partition(" ")[0]
    word = word.upper() if respect == "sharding_strategy" else word.lower()
    return _SWITCHES[respect].get(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOrder:
    """Partial order of one workload's configs by the memory that they need.

    Args:
        workload: facts that two rows must share with it; a sequence length may differ, and is a respect.
        parameters: parameters that are compared.
        respects: those of them with a known order -> respect.
        own: the user's own config, which no rule excludes; empty without one.
    """

    workload: Workload = field(default_factory=lambda: MappingProxyType({}))
    parameters: tuple[str, ...] = ()
    respects: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    own: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of_names(cls, names: Iterable[str]) -> MemoryOrder:
        """Return the order of rows that are compared in ``names``, parameters and facts, known by their names alone."""
        found = {name: respect_of({name, standard_flag_name(name)}) for name in names}
        return cls(parameters=tuple(found), respects=_respects(found, {}, may_shard=False))

    @classmethod
    def of_space(cls, parameters: Iterable[Parameter], *, workload: Workload, own: Mapping[str, Value]) -> MemoryOrder:
        """Return the order of the configs of a space; a parameter is known by its own name and by those of its flag.

        A derived parameter without a known order follows from the others, and is not compared.
        """
        found = {item.name: (respect_of(item.known_names), item.derive is not None) for item in parameters}
        compared = {name: respect for name, (respect, derived) in found.items() if respect or not derived}
        if SEQUENCE in workload:
            compared.setdefault(SEQUENCE, SEQUENCE)
        return cls(
            workload=workload,
            parameters=tuple(compared),
            respects=_respects(compared, workload, may_shard=not _states_whole_gradients(workload)),
            own=own,
        )


def _states_whole_gradients(workload: Workload) -> bool:
    """Return whether the facts of a workload state that gradients are not sharded; one process shards none."""
    return workload.get("world_size") == 1 or str(workload.get("sharding_strategy", "")).upper() in _WHOLE_GRADIENTS


def _respects(found: Mapping[str, str], workload: Workload, *, may_shard: bool) -> dict[str, str]:
    """Return the parameters with a known order -> respect, of which accumulation depends on the others.

    Without a known micro batch, accumulation may divide the batch of a step: then its order is not known.

    Args:
        found: parameter -> respect; empty for none.
        workload: facts of the workload.
        may_shard: whether gradients may be sharded although no parameter says so.
    """
    is_sharded = may_shard or not _SHARDS.isdisjoint(found.values())
    accumulation = SHARDED_ACCUMULATION if is_sharded else ACCUMULATION
    if BATCH not in found.values() and BATCH not in workload:
        accumulation = ""
    respects = {name: accumulation if respect == ACCUMULATION else respect for name, respect in found.items()}
    return {name: respect for name, respect in respects.items() if respect}
