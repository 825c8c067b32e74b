"""Memory ranks: rough doublings of the memory that a config takes, by its batch, sequence, sharding and the like."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Value

BATCH = "micro_batch_size"

# Memory ranks: rough doublings of memory above the least value; parameters not listed have no rank.
_MEMORY_RANKS: dict[str, dict[Value, float]] = {
    "sharding_strategy": {
        "FULL_SHARD": 0.0,
        "HYBRID_SHARD": 0.5,
        "SHARD_GRAD_OP": 1.0,
        "_HYBRID_SHARD_ZERO2": 1.5,
        "NO_SHARD": 2.0,
        "DDP": 2.0,
        "NONE": 2.0,
    },
    "activation_checkpointing": {"full": 0.0, "selective": 1.0, "none": 2.0},
    "precision": {"bf16": 0.0, "fp16": 0.0, "fp32": 1.0},
}


def memory_rank_of_row(row: Mapping[str, Value]) -> float:
    """Return the memory rank of a row: 1 more is about one doubling of its activations or states.

    >>> memory_rank_of_row({"micro_batch_size": 8}) - memory_rank_of_row({"micro_batch_size": 4})
    1.0
    """
    sizes = sum(math.log2(size) for name in (BATCH, "seq_len") if (size := _number(row.get(name))) > 0)
    return sizes + sum(_mean_memory_rank(row.get(name), table) for name, table in _MEMORY_RANKS.items())


def memory_rank_of(name: str) -> Mapping[Value, float]:
    """Return the memory ranks of the choices of a parameter, 0 for the least; empty for a parameter without ranks."""
    return _MEMORY_RANKS.get(name, {})


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _mean_memory_rank(value: Value | None, table: Mapping[Value, float]) -> float:
    entries = value if isinstance(value, tuple) else (value,)
    known = [table[entry] for entry in entries if entry is not None and entry in table]
    return sum(known) / len(known) if known else 0.0
