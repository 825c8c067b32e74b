"""Step time and memory of an embedding-heavy recommender: sparse tables split over devices, dense layers under FSDP.

After MAD-Max (arXiv 2310.02784): a step is a stream of computation and a stream of communication. Each dense layer has
a strategy of its own; its parameters are gathered while the layer before it computes, and its gradients are reduced
behind the backward pass. Embeddings are looked up where their table lives and exchanged all to all, forward and back.
The dense part may use a share of the memory; the rest belongs to the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from torchx_cubicml.predictors.features.hardware import REFERENCE, find_hardware
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import MOST
from torchx_cubicml.predictors.roofline.recommender_time import EACH_TIME, NUMBER, ONCE, WEIGHT, step_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.predictors.features.hardware import Hardware
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.records.trial import Value

_GRADIENT, _OPTIMIZER = 4.0, 12.0  # bytes per parameter, as for transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommender:
    """A training as the formulas see it.

    Args:
        sizes: parameters of each dense layer.
        strategies: of each dense layer.
        samples: of one device and step.
        ranks: devices, >= 1.
        hardware: of one device.
        tables: looked up by each sample.
        table_width: numbers of one embedding.
        pooling: rows of a table that one sample looks up, on average.
        table_rows: of all tables together.
        reserved_share: of the memory, for the dense part.
    """

    sizes: tuple[float, ...]
    strategies: tuple[str, ...]
    samples: float
    ranks: float
    hardware: Hardware
    tables: float = 0.0
    table_width: float = 0.0
    pooling: float = 1.0
    table_rows: float = 0.0
    reserved_share: float = 1.0

    @classmethod
    def of(cls, row: Mapping[str, Value]) -> Recommender | None:
        """Return the training that a row names; ``None`` without ``layer_n_params``, batch, devices and strategy."""
        sizes, chosen = row.get("layer_n_params"), row.get("sharding_strategy")
        samples, ranks = _number(row, "micro_batch_size"), _number(row, "world_size")
        if not isinstance(sizes, tuple) or not sizes or chosen is None or samples <= 0.0 or ranks < 1.0:
            return None
        if not all(_is_size(size) for size in sizes):
            return None
        strategies = chosen if isinstance(chosen, tuple) else (chosen,) * len(sizes)
        if len(strategies) != len(sizes):
            return None
        return cls(
            sizes=tuple(float(size) for size in sizes),
            strategies=tuple(map(str, strategies)),
            samples=samples,
            ranks=ranks,
            hardware=find_hardware(str(row.get("device", ""))) or REFERENCE,
            tables=_number(row, "n_embedding_tables"),
            table_width=_number(row, "embedding_dim"),
            pooling=_number(row, "embedding_pooling") or 1.0,
            table_rows=_number(row, "n_embedding_rows"),
            reserved_share=_number(row, "reserved_share") or 1.0,
        )

    def seconds(self, constants: Constants = DEFAULTS) -> dict[str, float]:
        """Return the seconds per step of each part; they add up to the step."""
        return {name: float(part[0]) for name, part in step_seconds([self], constants).items()}

    def memory(self) -> dict[str, float]:
        """Return the bytes of one device: dense states, two gathered layers at a time, and its part of the tables."""
        weights = gradients = optimizer = 0.0
        gathered = [0.0, 0.0]
        for place, size in enumerate(self.sizes):
            share = 1.0 / self.ranks if self._sharded(place) else 1.0
            weights += WEIGHT * size * (share if self.strategies[place] in EACH_TIME else 1.0)
            gradients, optimizer = gradients + _GRADIENT * size * share, optimizer + _OPTIMIZER * size * share
            if self.strategies[place] in EACH_TIME:
                gathered.append(WEIGHT * size * (1.0 - share))
        return {
            "weights": weights,
            "gradients": gradients,
            "optimizer": optimizer,
            "gathered": sum(sorted(gathered)[-2:]),
            "embeddings": self.table_rows * self.table_width * NUMBER / self.ranks,
        }

    def fits(self, memory: Mapping[str, float]) -> bool:
        """Return whether the dense part keeps to its share, and the tables to the rest."""
        dense = sum(size for name, size in memory.items() if name != "embeddings")
        reserved = self.reserved_share * self.hardware.memory
        return dense <= reserved and memory["embeddings"] <= self.hardware.memory - min(reserved, dense)

    def _sharded(self, place: int) -> bool:
        return self.strategies[place] in (*EACH_TIME, *ONCE)


def _number(row: Mapping[str, Value], name: str) -> float:
    value = row.get(name)
    return float(value) if value is not None and _is_size(value) else 0.0


def _is_size(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
