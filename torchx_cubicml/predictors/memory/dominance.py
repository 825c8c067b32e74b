"""What is known of memory without learning: hard limits from outcomes, and which config asks for more than another."""

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

# Doublings of memory between the values, roughly; what is not listed says nothing.
_HUNGER: dict[str, dict[Value, float]] = {
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
    """Return how hungry for memory a row is: one more is about one doubling of its activations or states.

    >>> hunger_of_row({"micro_batch_size": 8}) - hunger_of_row({"micro_batch_size": 4})
    1.0
    """
    sizes = sum(math.log2(size) for name in (BATCH, "seq_len") if (size := _number(row.get(name))) > 0)
    return sizes + sum(_mean_memory_rank(row.get(name), table) for name, table in _HUNGER.items())


def memory_rank_of(name: str) -> Mapping[Value, float]:
    """Return how hungry the choices of a parameter are, 0 for the least; empty where the name says nothing."""
    return _HUNGER.get(name, {})


@dataclass(frozen=True, slots=True)
class DominanceRules:
    """The largest micro batch that ran and the smallest that did not, for each rest of a config.

    Args:
        names: workload facts and parameters that must be alike for two rows to be compared.
        ran: key of the rest -> largest micro batch that ran.
        failed: key of the rest -> smallest micro batch that ran out of memory.
    """

    names: tuple[str, ...]
    ran: Mapping[Hashable, float]
    failed: Mapping[Hashable, float]

    @classmethod
    def of(cls, outcomes: Iterable[tuple[Mapping[str, Value], bool]], *, names: Sequence[str]) -> Self:
        """Return what rows and whether each fitted tell; no ``names``, no limits."""
        limits = cls(tuple(name for name in names if name != BATCH), {}, {})
        ran: dict[Hashable, float] = {}
        failed: dict[Hashable, float] = {}
        for row, fitted in outcomes if names else ():
            key, batch = limits._split(row)
            if fitted:
                ran[key] = max(batch, ran.get(key, -math.inf))
            else:
                failed[key] = min(batch, failed.get(key, math.inf))
        return cls(limits.names, ran, failed)

    def verdicts(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return 0.0 for rows known not to fit, 1.0 for those known to fit, else NaN, float64 ``[n]``.

        A config that ran out of memory once stays out, even where it ran at another time.
        """
        if not (self.ran or self.failed):
            return np.full(len(rows), np.nan)
        return np.array([self._verdict(row) for row in rows], dtype=np.float64)

    def _verdict(self, row: Mapping[str, Value]) -> float:
        key, batch = self._split(row)
        if batch >= self.failed.get(key, math.inf):
            return 0.0
        return 1.0 if batch <= self.ran.get(key, -math.inf) else math.nan

    def _split(self, row: Mapping[str, Value]) -> tuple[Hashable, float]:
        # What a row lacks is a value of its own; a config without a micro batch is compared with itself alone.
        return tuple(row.get(name) for name in self.names), _number(row.get(BATCH))


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _mean_memory_rank(value: Value | None, table: Mapping[Value, float]) -> float:
    entries = value if isinstance(value, tuple) else (value,)
    known = [table[entry] for entry in entries if entry is not None and entry in table]
    return sum(known) / len(known) if known else 0.0
