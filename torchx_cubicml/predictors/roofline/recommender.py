"""Step time and memory of an embedding-heavy recommender: sparse tables split over devices, dense layers under FSDP.

After MAD-Max (arXiv 2310.02784): a step is a stream of computation and a stream of communication. Each dense layer has
a strategy of its own; its parameters are gathered while the layer before it computes, and its gradients are reduced
behind the backward pass. Embeddings are looked up where their table lives and exchanged all to all, forward and back.
The dense part may use a share of the memory; the rest belongs to the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.hardware import REFERENCE, find_hardware
from torchx_cubicml.predictors.roofline.constants import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.hardware import Hardware
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.trial import Value

_EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD")  # gathered for forward and again for backward
_ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
_WEIGHT, _GRADIENT, _OPTIMIZER = 2.0, 4.0, 12.0  # bytes per parameter, as for transformers
_NUMBER = 4.0  # bytes of an embedding's number, looked up or on the way


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
        forward = [2.0 * size * self.samples / self._flops_per_second(constants) for size in self.sizes]
        gather = [_WEIGHT * size * self._wire(constants) for size in self.sizes]
        compute = 3.0 * sum(forward)
        waited = self._streams(forward, gather) - compute
        held = sum(size / self.ranks if self._sharded(place) else size for place, size in enumerate(self.sizes))
        speed = self.hardware.memory_bandwidth * constants["memory_bandwidth"]
        looked_up = self.samples * self.tables * self.table_width * _NUMBER
        return {
            "compute": compute,
            "data_parallel": waited,
            # Read forward, read and written backward.
            "embedding_lookup": 3.0 * looked_up * self.pooling / speed,
            "embedding_exchange": 2.0 * looked_up * self._wire(constants),
            "optimizer": 16.0 * held / speed,
            "overhead": constants["step_s"],
        }

    def memory(self) -> dict[str, float]:
        """Return the bytes of one device: dense states, two gathered layers at a time, and its part of the tables."""
        weights = gradients = optimizer = 0.0
        gathered = [0.0, 0.0]
        for place, size in enumerate(self.sizes):
            share = 1.0 / self.ranks if self._sharded(place) else 1.0
            weights += _WEIGHT * size * (share if self.strategies[place] in _EACH_TIME else 1.0)
            gradients, optimizer = gradients + _GRADIENT * size * share, optimizer + _OPTIMIZER * size * share
            if self.strategies[place] in _EACH_TIME:
                gathered.append(_WEIGHT * size * (1.0 - share))
        return {
            "weights": weights,
            "gradients": gradients,
            "optimizer": optimizer,
            "gathered": sum(sorted(gathered)[-2:]),
            "embeddings": self.table_rows * self.table_width * _NUMBER / self.ranks,
        }

    def fits(self, memory: Mapping[str, float]) -> bool:
        """Return whether the dense part keeps to its share, and the tables to the rest."""
        dense = sum(size for name, size in memory.items() if name != "embeddings")
        reserved = self.reserved_share * self.hardware.memory
        return dense <= reserved and memory["embeddings"] <= self.hardware.memory - min(reserved, dense)

    def _streams(self, forward: Sequence[float], gather: Sequence[float]) -> float:
        """Return when the last of computation and communication ends, both streams in order."""
        wire = clock = 0.0
        for place in range(len(forward)):
            if self._sharded(place):
                wire += gather[place]
                clock = max(clock, wire)
            clock += forward[place]
        for place in reversed(range(len(forward))):
            if self.strategies[place] in _EACH_TIME:
                wire += gather[place]
                clock = max(clock, wire)
            clock += 2.0 * forward[place]
            # Gradients are scattered where sharded, else reduced on every rank: twice the bytes.
            wire = max(wire, clock) + gather[place] * (1.0 if self._sharded(place) else 2.0)
        return max(clock, wire)

    def _sharded(self, place: int) -> bool:
        return self.strategies[place] in (*_EACH_TIME, *_ONCE)

    def _flops_per_second(self, constants: Constants) -> float:
        filled = self.samples / (self.samples + constants["half_tokens"])
        return self.hardware.peak("bf16") * constants["gemm_efficiency"] * filled

    def _wire(self, constants: Constants) -> float:
        """Return seconds per byte of a collective over all devices."""
        near = self.hardware.link * constants["link_dp"]
        far = min(self.hardware.network * constants["network_dp"], near)
        return (self.ranks - 1.0) / self.ranks / (near if self.ranks <= self.hardware.per_node else far)


def _number(row: Mapping[str, Value], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
