"""Dominance rules for memory: hard limits from outcomes, and the order of configs by the memory that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Value

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


@dataclass(frozen=True, slots=True)
class DominanceRules:
    """Dominance over the micro batch: the largest that ran and the smallest that did not, per config without it.

    Args:
        names: workload facts and parameters that must be equal for two rows to be compared.
        ran: key of the config without its micro batch -> largest micro batch that ran.
        failed: the same key -> smallest micro batch that ran out of memory.
    """

    names: tuple[str, ...]
    ran: Mapping[Hashable, float]
    failed: Mapping[Hashable, float]

    @classmethod
    def of(cls, outcomes: Iterable[tuple[Mapping[str, Value], bool]], *, names: Sequence[str]) -> Self:
        """Return the rules from pairs of a row and whether it fitted; without ``names`` there are none."""
        rules = cls(tuple(name for name in names if name != BATCH), {}, {})
        ran: dict[Hashable, float] = {}
        failed: dict[Hashable, float] = {}
        for row, fitted in outcomes if names else ():
            key, batch = rules._key_and_batch(row)
            if fitted:
                ran[key] = max(batch, ran.get(key, -math.inf))
            else:
                failed[key] = min(batch, failed.get(key, math.inf))
        return cls(rules.names, ran, failed)

    def verdicts(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return 0.0 for rows known not to fit, 1.0 for those known to fit, else NaN, float64 ``[n]``.

        A config that ran out of memory once counts as infeasible, even if it ran at another time.
        """
        if not (self.ran or self.failed):
            return np.full(len(rows), np.nan)
        return np.array([self._verdict(row) for row in rows], dtype=np.float64)

    def _verdict(self, row: Mapping[str, Value]) -> float:
        key, batch = self._key_and_batch(row)
        if batch >= self.failed.get(key, math.inf):
            return 0.0
        return 1.0 if batch <= self.ran.get(key, -math.inf) else math.nan

    def _key_and_batch(self, row: Mapping[str, Value]) -> tuple[Hashable, float]:
        # A missing fact is a value of its own, and a missing micro batch counts as 0.
        return tuple(row.get(name) for name in self.names), _number(row.get(BATCH))


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _mean_memory_rank(value: Value | None, table: Mapping[Value, float]) -> float:
    entries = value if isinstance(value, tuple) else (value,)
    known = [table[entry] for entry in entries if entry is not None and entry in table]
    return sum(known) / len(known) if known else 0.0
