"""Seconds per step of recommenders, part by part and many at once, and their constants calibrated on measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.roofline.constants import CENTRE, DEFAULTS, NAMES, WIDTH
from torchx_cubicml.predictors.roofline.least_squares import least_squares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.recommender import Recommender
    from torchx_cubicml.predictors.roofline.training_layout import Array

EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD")  # gathered for forward and again for backward
ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
WEIGHT, NUMBER = 2.0, 4.0  # bytes of a parameter, and of an embedding's number, looked up or on the way
_FREE = ("gemm_efficiency", "half_tokens", "link_dp", "network_dp", "memory_bandwidth", "step_s")
_NOISE = 0.2  # log error up to which a misfit counts squared, beyond it linearly
_STEPS = 30
_MOST_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
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
    return _seconds(_Table.of(trainings), constants)


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
    table, measured = _Table.of([trainings[row] for row in order.tolist()]), np.log(seconds[order])
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


def _seconds(table: _Table, constants: Constants) -> dict[str, Array]:
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


def _streams(table: _Table, forward: Array, gather: Array) -> Array:
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


def _wire(table: _Table, constants: Constants) -> Array:
    """Return seconds per byte of a collective over all devices."""
    numbers = table.numbers
    near = numbers["link"] * constants["link_dp"]
    far = np.minimum(numbers["network"] * constants["network_dp"], near)
    ranks = numbers["ranks"]
    return np.asarray((ranks - 1.0) / ranks / np.where(ranks <= numbers["per_node"], near, far))
