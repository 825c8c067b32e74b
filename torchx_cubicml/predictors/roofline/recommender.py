"""Roofline formulas of recommendation models with sharded embedding tables (DLRM), and their calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeGuard

import numpy as np

from torchx_cubicml.predictors.features.device_specs import REFERENCE, find_hardware
from torchx_cubicml.predictors.roofline.constants import CENTRE, DEFAULTS, NAMES, WIDTH
from torchx_cubicml.predictors.roofline.facts import MOST
from torchx_cubicml.predictors.roofline.least_squares import least_squares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.predictors.features.device_specs import Hardware
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array
    from torchx_cubicml.records.trial import Value


_GRADIENT, _OPTIMIZER = 4.0, 12.0  # bytes per parameter, as for transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommender:
    """Inputs of the formulas for one training of a recommender.

    Args:
        sizes: parameters of each dense layer.
        strategies: sharding strategy of each dense layer.
        samples: of one device and step.
        ranks: devices, >= 1.
        hardware: of one device.
        tables: number of tables that each sample looks up.
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
        """Return the training of a row; ``None`` without ``layer_n_params``, batch, devices and strategy."""
        sizes, strategy_fact = row.get("layer_n_params"), row.get("sharding_strategy")
        samples, ranks = _number(row, "micro_batch_size"), _number(row, "world_size")
        if not isinstance(sizes, tuple) or not sizes or strategy_fact is None or samples <= 0.0 or ranks < 1.0:
            return None
        if not all(_is_size(size) for size in sizes):
            return None
        strategies = strategy_fact if isinstance(strategy_fact, tuple) else (strategy_fact,) * len(sizes)
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
        """Return part -> bytes of one device: dense states, two gathered layers at a time, its part of the tables."""
        weights = gradients = optimizer = 0.0
        gathered = [0.0, 0.0]
        for index, size in enumerate(self.sizes):
            share = 1.0 / self.ranks if self._sharded(index) else 1.0
            weights += WEIGHT * size * (share if self.strategies[index] in EACH_TIME else 1.0)
            gradients, optimizer = gradients + _GRADIENT * size * share, optimizer + _OPTIMIZER * size * share
            if self.strategies[index] in EACH_TIME:
                gathered.append(WEIGHT * size * (1.0 - share))
        return {
            "weights": weights,
            "gradients": gradients,
            "optimizer": optimizer,
            "gathered": sum(sorted(gathered)[-2:]),
            "embeddings": self.table_rows * self.table_width * NUMBER / self.ranks,
        }

    def fits(self, memory: Mapping[str, float]) -> bool:
        """Return whether the dense part fits in its share of the memory, and the tables in the rest."""
        dense = sum(size for name, size in memory.items() if name != "embeddings")
        reserved = self.reserved_share * self.hardware.memory
        return dense <= reserved and memory["embeddings"] <= self.hardware.memory - min(reserved, dense)

    def _sharded(self, index: int) -> bool:
        return self.strategies[index] in (*EACH_TIME, *ONCE)


def _number(row: Mapping[str, Value], name: str) -> float:
    value = row.get(name)
    return float(value) if value is not None and _is_size(value) else 0.0


def _is_size(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST


EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD")  # gathered for forward and again for backward
ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
WEIGHT, NUMBER = 2.0, 4.0  # bytes of a parameter, and of a number of an embedding, looked up or in transfer
_FREE = ("gemm_efficiency", "half_tokens", "link_dp", "network_dp", "memory_bandwidth", "step_s")
_NOISE = 0.2  # log error up to which the loss is quadratic, beyond it linear
_STEPS = 30
_MOST_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainings:
    """Inputs of ``n`` trainings as arrays; missing layers are padded with size 0.

    Args:
        sizes: parameters of each dense layer, float64 ``[n, n_layers]``.
        layer: mask of the layers that exist, bool ``[n, n_layers]``, and so below.
        sharded: mask of the layers with sharded parameters.
        each_time: mask of the layers gathered for forward and again for backward.
        numbers: other facts by the names of ``Recommender`` and ``Hardware``, float64 ``[n]`` each.
    """

    sizes: Array
    layer: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    sharded: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    each_time: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    numbers: Mapping[str, Array]

    @classmethod
    def of(cls, trainings: Sequence[Recommender]) -> Self:
        shape = len(trainings), max(len(training.sizes) for training in trainings)
        sizes, layer, sharded, each_time = np.zeros(shape), *np.zeros((3, *shape), dtype=np.bool_)
        for row, training in enumerate(trainings):
            n_layers = len(training.sizes)
            sizes[row, :n_layers], layer[row, :n_layers] = training.sizes, True
            each_time[row, :n_layers] = [name in EACH_TIME for name in training.strategies]
            sharded[row, :n_layers] = [name in (*EACH_TIME, *ONCE) for name in training.strategies]
        names = ("samples", "ranks", "tables", "table_width", "pooling")
        numbers = {name: np.array([getattr(training, name) for training in trainings]) for name in names}
        for name in ("link", "network", "per_node", "memory_bandwidth"):
            numbers[name] = np.array([getattr(training.hardware, name) for training in trainings], dtype=np.float64)
        numbers["peak"] = np.array([training.hardware.peak("bf16") for training in trainings])
        return cls(sizes=sizes, layer=layer, sharded=sharded, each_time=each_time, numbers=numbers)


def step_seconds(trainings: Sequence[Recommender], constants: Constants) -> dict[str, Array]:
    """Return the seconds per step of each part, float64 ``[n]``; they add up to the step."""
    return _seconds(_Trainings.of(trainings), constants)


def calibrate_recommenders(trainings: Sequence[Recommender], seconds: Array, uncertainty: Array) -> Constants:
    """Return the MAP estimates of the constants from measured steps, with a robust loss.

    Args:
        trainings: ``n`` of them; with none at all, the defaults are returned.
        seconds: per step, float64 ``[n]``, > 0.
        uncertainty: of their logarithms, as each run reported it, float64 ``[n]``.
    """
    if not len(trainings):
        return DEFAULTS
    order = np.argsort(seconds, kind="stable")[:: int(np.ceil(len(seconds) / _MOST_ROWS))]
    table, measured = _Trainings.of([trainings[row] for row in order.tolist()]), np.log(seconds[order])
    noise = np.hypot(_NOISE, uncertainty[order])
    indices = [NAMES.index(name) for name in _FREE]
    centre, width = CENTRE[indices], WIDTH[indices]

    def constants_at(theta: Array) -> Constants:
        return {**DEFAULTS, **dict(zip(_FREE, np.exp(theta).tolist(), strict=True))}

    def misfit(theta: Array) -> Array:
        errors = measured - np.log(np.sum(list(_seconds(table, constants_at(theta)).values()), axis=0))
        robust = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + (errors / noise) ** 2) - 1.0))
        return np.concatenate([robust, (theta - centre) / width])

    return constants_at(least_squares(misfit, centre.copy(), steps=_STEPS))


def _seconds(table: _Trainings, constants: Constants) -> dict[str, Array]:
    numbers, seconds_per_byte = table.numbers, _seconds_per_byte(table, constants)
    samples, filled = numbers["samples"], numbers["samples"] / (numbers["samples"] + constants["half_tokens"])
    speed = numbers["peak"] * constants["gemm_efficiency"] * filled
    forward = 2.0 * table.sizes * (samples / speed)[:, None]
    compute = 3.0 * forward.sum(axis=1)
    memory = numbers["memory_bandwidth"] * constants["memory_bandwidth"]
    looked_up = samples * numbers["tables"] * numbers["table_width"] * NUMBER
    held = (table.sizes / np.where(table.sharded, numbers["ranks"][:, None], 1.0)).sum(axis=1)
    return {
        "compute": compute,
        "data_parallel": _last_end(table, forward, WEIGHT * table.sizes * seconds_per_byte[:, None]) - compute,
        # Read forward, read and written backward.
        "embedding_lookup": 3.0 * looked_up * numbers["pooling"] / memory,
        "embedding_exchange": 2.0 * looked_up * seconds_per_byte,
        "optimizer": 16.0 * held / memory,
        "overhead": np.full(len(compute), constants["step_s"]),
    }


def _last_end(table: _Trainings, forward: Array, gather: Array) -> Array:
    """Return the time at which the last of the computation and communication streams ends; each is in order."""
    communication, computation = np.zeros((2, len(forward)))
    for layer in range(forward.shape[1]):
        communication = communication + np.where(table.sharded[:, layer], gather[:, layer], 0.0)
        computation = (
            np.where(table.sharded[:, layer], np.maximum(computation, communication), computation) + forward[:, layer]
        )
    for layer in reversed(range(forward.shape[1])):
        gathered_again = table.each_time[:, layer]
        communication = communication + np.where(gathered_again, gather[:, layer], 0.0)
        computation = (
            np.where(gathered_again, np.maximum(computation, communication), computation) + 2.0 * forward[:, layer]
        )
        # Gradients are reduce-scattered where sharded, else all-reduced: twice the bytes.
        reduced = np.maximum(communication, computation) + gather[:, layer] * np.where(
            table.sharded[:, layer], 1.0, 2.0
        )
        communication = np.where(table.layer[:, layer], reduced, communication)
    return np.maximum(computation, communication)


def _seconds_per_byte(table: _Trainings, constants: Constants) -> Array:
    """Return the seconds per byte of a collective over all devices."""
    numbers = table.numbers
    in_node = numbers["link"] * constants["link_dp"]
    across_nodes = np.minimum(numbers["network"] * constants["network_dp"], in_node)
    ranks = numbers["ranks"]
    return np.asarray((ranks - 1.0) / ranks / np.where(ranks <= numbers["per_node"], in_node, across_nodes))
