"""Roofline formulas of recommenders with sharded embedding tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeGuard

import numpy as np

from torchx_cubicml.predictors.features.hardware import REFERENCE, find_hardware
from torchx_cubicml.predictors.roofline.constants import CENTRE, DEFAULTS, NAMES, WIDTH
from torchx_cubicml.predictors.roofline.facts import MOST
from torchx_cubicml.predictors.roofline.least_squares import least_squares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.predictors.features.hardware import Hardware
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array
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


EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD")  # gathered for forward and again for backward
ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
WEIGHT, NUMBER = 2.0, 4.0  # bytes of a parameter, and of an embedding's number, looked up or on the way
_FREE = ("gemm_efficiency", "half_tokens", "link_dp", "network_dp", "memory_bandwidth", "step_s")
_NOISE = 0.2  # log error up to which a misfit counts squared, beyond it linearly
_STEPS = 30
_MOST_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainings:
    """``n`` trainings; layers that a training lacks have the size 0 and are no ``layer``.

    Args:
        sizes: parameters of each dense layer, float64 ``[n, n_layers]``.
        layer: which of them there are, bool, and so below.
        sharded: those whose parameters are.
        each_time: those gathered for forward and again for backward.
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
    """Return the constants that explain measured steps: most probable values under their priors, with a robust misfit.

    Args:
        trainings: ``n`` of them; with none at all, the defaults.
        seconds: per step, float64 ``[n]``, > 0.
        uncertainty: of their logarithms, as each run told it, float64 ``[n]``.
    """
    if not len(trainings):
        return DEFAULTS
    order = np.argsort(seconds, kind="stable")[:: int(np.ceil(len(seconds) / _MOST_ROWS))]
    table, measured = _Trainings.of([trainings[row] for row in order.tolist()]), np.log(seconds[order])
    noise = np.hypot(_NOISE, uncertainty[order])
    places = [NAMES.index(name) for name in _FREE]
    centre, width = CENTRE[places], WIDTH[places]

    def constants_at(theta: Array) -> Constants:
        return {**DEFAULTS, **dict(zip(_FREE, np.exp(theta).tolist(), strict=True))}

    def misfit(theta: Array) -> Array:
        errors = measured - np.log(np.sum(list(_seconds(table, constants_at(theta)).values()), axis=0))
        robust = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + (errors / noise) ** 2) - 1.0))
        return np.concatenate([robust, (theta - centre) / width])

    return constants_at(least_squares(misfit, centre.copy(), steps=_STEPS))


def _seconds(table: _Trainings, constants: Constants) -> dict[str, Array]:
    numbers, wire = table.numbers, _wire(table, constants)
    samples, filled = numbers["samples"], numbers["samples"] / (numbers["samples"] + constants["half_tokens"])
    speed = numbers["peak"] * constants["gemm_efficiency"] * filled
    forward = 2.0 * table.sizes * (samples / speed)[:, None]
    compute = 3.0 * forward.sum(axis=1)
    memory = numbers["memory_bandwidth"] * constants["memory_bandwidth"]
    looked_up = samples * numbers["tables"] * numbers["table_width"] * NUMBER
    held = (table.sizes / np.where(table.sharded, numbers["ranks"][:, None], 1.0)).sum(axis=1)
    return {
        "compute": compute,
        "data_parallel": _streams(table, forward, WEIGHT * table.sizes * wire[:, None]) - compute,
        # Read forward, read and written backward.
        "embedding_lookup": 3.0 * looked_up * numbers["pooling"] / memory,
        "embedding_exchange": 2.0 * looked_up * wire,
        "optimizer": 16.0 * held / memory,
        "overhead": np.full(len(compute), constants["step_s"]),
    }


def _streams(table: _Trainings, forward: Array, gather: Array) -> Array:
    """Return when the last of computation and communication ends, both streams in order."""
    wire, clock = np.zeros((2, len(forward)))
    for place in range(forward.shape[1]):
        wire = wire + np.where(table.sharded[:, place], gather[:, place], 0.0)
        clock = np.where(table.sharded[:, place], np.maximum(clock, wire), clock) + forward[:, place]
    for place in reversed(range(forward.shape[1])):
        again = table.each_time[:, place]
        wire = wire + np.where(again, gather[:, place], 0.0)
        clock = np.where(again, np.maximum(clock, wire), clock) + 2.0 * forward[:, place]
        # Gradients are scattered where sharded, else reduced on every rank: twice the bytes.
        reduced = np.maximum(wire, clock) + gather[:, place] * np.where(table.sharded[:, place], 1.0, 2.0)
        wire = np.where(table.layer[:, place], reduced, wire)
    return np.maximum(clock, wire)


def _wire(table: _Trainings, constants: Constants) -> Array:
    """Return seconds per byte of a collective over all devices."""
    numbers = table.numbers
    near = numbers["link"] * constants["link_dp"]
    far = np.minimum(numbers["network"] * constants["network_dp"], near)
    ranks = numbers["ranks"]
    return np.asarray((ranks - 1.0) / ranks / np.where(ranks <= numbers["per_node"], near, far))
