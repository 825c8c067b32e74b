"""Parametric model of the memory that a config takes: a sum of positive parts, times factors.

The parts are a constant, a part that grows with the micro batch, and the states that each layer keeps by its sharding.
The model is monotonic: less sharding or a larger batch never takes less memory. So one outcome informs about all
configs that take more or less than it. A parameter without a memory rank may have an effect in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.memory_rank import BATCH, memory_rank_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder

# Prior medians as shares of the whole memory, and standard deviations of logarithms.
_ALWAYS, _BATCH, _STATES = 0.1, 0.5, 0.8
_PART_SD = np.array([0.6, 0.9, 0.6])  # of constant, batch and states; the largest batch size of a space may be anything
_LAYER_SD = 0.8  # of one layer relative to the others: sizes explain half, optimizers and activations differ
_PER_STEP, _STEP_SD = 0.3, 0.5  # share of its states that a layer keeps, per memory rank below the largest
_LARGEST_RANK = 2.0
_PER_RANK, _RANK_SD = 0.7, 0.5  # log factor on the part that grows with the batch, per memory rank
_UNKNOWN_SD, _CAPACITY_SD = 0.5, 0.15  # log factor of a choice without a rank on the memory taken, and on the capacity
_PER_NUMBER = 1.5  # of those deviations from the lowest to the highest number
_LEAST_BATCH = 1e-9  # a batch may be 0, which has no logarithm
_SHARDING = "sharding_strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTerms:
    """Design matrices of ``n`` configs for ``MemoryUsage``.

    Args:
        batch: micro batch as a share of the largest, ``[n]``; 1 where there is none.
        kept: one-hot choice of sharding of each layer, ``[n, n_codes, n_layers]``; ``n_layers`` may be 0.
        ranked: columns of choices with a memory rank, times that rank, ``[n, n_ranked]``.
        unknown: columns of choices and numbers without a memory rank, ``[n, n_unknown]``.
    """

    batch: NDArray[np.float64]
    kept: NDArray[np.float64]
    ranked: NDArray[np.float64]
    unknown: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """Model of memory usage with parameters ``theta``, whose prior is standard normal.

    Args:
        places: encoder of rows as points.
        states: index of the sharding among the layered parameters; ``None`` if it is not chosen per layer.
        sharding: columns of its choices among the indicators, where there is one choice for all layers.
        layers: share of each layer in the states, ``[n_layers]``.
        kept: log share of its states that a layer keeps by each choice, ``[n_codes]``; ``-inf`` for none.
        memory_rank: memory rank of each column of the other choices, ``[n_others]``; 0 if unknown, NaN for sharding.
    """

    places: ConfigEncoder
    states: int | None
    sharding: tuple[int, ...]
    layers: NDArray[np.float64]
    kept: NDArray[np.float64]
    memory_rank: NDArray[np.float64]

    @classmethod
    def of(cls, places: ConfigEncoder, columns: Columns) -> Self:
        """Return the model for the points of ``places``; ``columns`` are those of the rows."""
        names = [layered.name for layered in places.layered]
        states = names.index(_SHARDING) if _SHARDING in names else None
        sharding: tuple[int, ...] = ()
        layers, steps = np.empty(0), np.empty(0)
        if states is not None:
            layers, steps = places.layered[states].sizes, memory_rank_of_layers(places, columns, states)
        elif _SHARDING in places.category_names:
            fact = places.category_names.index(_SHARDING)
            sharding = tuple(np.flatnonzero(places.category_of == fact).tolist())
            layers, steps = np.ones(1), memory_rank_of_indicators(places, columns)[list(sharding)]
        others = [memory_rank_of_indicators(places, columns)]
        others += [memory_rank_of_layers(places, columns, at) for at in range(len(names)) if at != states]
        memory_rank = np.concatenate(others)
        memory_rank[list(sharding)] = np.nan
        kept = np.where(steps > 0, np.log(_PER_STEP) * (_LARGEST_RANK - steps), -np.inf)
        return cls(places=places, states=states, sharding=sharding, layers=layers, kept=kept, memory_rank=memory_rank)

    @property
    def n_theta(self) -> int:
        """Number of parameters: three parts, layers, choices of sharding, ranked columns, twice the unknown columns."""
        n_unknown = sum(number.name != BATCH for number in self.places.numbers) + int((self.memory_rank == 0).sum())
        return 3 + len(self.layers) + len(self.kept) + int((self.memory_rank > 0).sum()) + 2 * n_unknown

    @property
    def unknown(self) -> NDArray[np.intp]:
        """Group of each entry of ``theta`` that belongs to a column without a rank, -1 for all others, ``[n_theta]``.

        The columns of one category form a group, each number forms its own, and usage and capacity have separate ones.
        """
        numbers = [at for at, number in enumerate(self.places.numbers) if number.name != BATCH]
        facts = self.places.category_of.tolist()
        for at, layered in enumerate(self.places.layered):
            facts += [-1 - at] * len(layered.codes) if at != self.states else []
        categories = [
            fact for fact, memory_rank in zip(facts, self.memory_rank.tolist(), strict=True) if memory_rank == 0
        ]
        names = [("number", at) for at in numbers] + [("category", fact) for fact in categories]
        numbering = {each: place for place, each in enumerate(dict.fromkeys(names))}
        group_of_column = [numbering[each] for each in names]
        group_of_entry = (
            [-1] * (self.n_theta - 2 * len(group_of_column))
            + group_of_column
            + [len(numbering) + group for group in group_of_column]
        )
        return np.array(group_of_entry, dtype=np.intp)

    def terms(self, features: NDArray[np.float64]) -> UsageTerms:
        """Return the design matrices of encoded rows, ``[n, n_columns]``."""
        points = self.places.points(features)
        batch, other_numbers = np.ones(len(features)), []
        for number, values in zip(self.places.numbers, points.numbers.T, strict=True):
            if number.name == BATCH:
                batch = np.maximum(number.unscaled(values), _LEAST_BATCH) / max(
                    number.unscaled(np.ones(1)), _LEAST_BATCH
                )
            else:
                other_numbers.append(values)
        shares = [each for at, each in enumerate(points.shares) if at != self.states]
        others = np.hstack([points.categories, *shares])
        kept = np.empty((len(features), 0, 0))
        if self.states is not None:
            kept = points.members[self.states]
        elif self.sharding:
            kept = points.categories[:, self.sharding, None]
        unknown = np.column_stack(
            [
                np.empty((len(features), 0)),
                *(_PER_NUMBER * each for each in other_numbers),
                others[:, self.memory_rank == 0],
            ]
        )
        ranked = others[:, self.memory_rank > 0] * self.memory_rank[self.memory_rank > 0]
        return UsageTerms(batch=batch, kept=kept, ranked=ranked, unknown=unknown)

    def taken(
        self, terms: UsageTerms, theta: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithm of the memory taken, ``[n]``, with the Jacobians of it and of the log capacity.

        Both Jacobians are with respect to ``theta``, ``[n, n_theta]``. The log capacity is linear in ``theta``.
        """
        parts, layers, codes, ranked, unknown, capacity = self._split(theta, terms)
        always, per_batch, states = np.log([_ALWAYS, _BATCH, _STATES]) + _PART_SD * parts
        log_factor = terms.ranked @ (_PER_RANK + _RANK_SD * ranked)
        batch = np.exp(per_batch + log_factor) * terms.batch
        kept_share = np.exp(states) * np.exp(self.kept + _STEP_SD * codes)
        layer_states = self.layers * np.exp(self._layer_sd * layers)
        held = terms.kept * kept_share[:, None] * layer_states  # [n, n_codes, n_layers]
        total = np.exp(always) + batch + held.sum(axis=(1, 2))
        share = (1.0 / total)[:, None]
        factor = _UNKNOWN_SD * terms.unknown
        jacobian = np.hstack(
            [
                _PART_SD[0] * share * np.exp(always),
                _PART_SD[1] * share * batch[:, None],
                _PART_SD[2] * share * held.sum(axis=(1, 2))[:, None],
                self._layer_sd * share * held.sum(axis=1),
                _STEP_SD * share * held.sum(axis=2),
                _RANK_SD * share * batch[:, None] * terms.ranked,
                factor,
                np.zeros_like(terms.unknown),
            ]
        )
        capacity_jacobian = np.hstack(
            [np.zeros((len(total), len(theta) - len(capacity))), _CAPACITY_SD * terms.unknown]
        )
        return np.log(total) + factor @ unknown, jacobian, capacity_jacobian

    @property
    def _layer_sd(self) -> float:
        return _LAYER_SD if len(self.layers) > 1 else 0.0

    def _split(self, theta: NDArray[np.float64], terms: UsageTerms) -> list[NDArray[np.float64]]:
        n_ranked, n_unknown = terms.ranked.shape[1], terms.unknown.shape[1]
        return np.split(theta, np.cumsum([3, len(self.layers), len(self.kept), n_ranked, n_unknown]))


def memory_rank_of_indicators(places: ConfigEncoder, columns: Columns) -> NDArray[np.float64]:
    """Return the memory rank of each indicator, ``[n_indicators]``; 0 where it is unknown."""
    names = [places.category_names[fact] for fact in places.category_of]
    found = [_rank_of_code(columns, name, *each) for name, each in zip(names, places.indicators, strict=True)]
    return np.array(found, dtype=np.float64)


def memory_rank_of_layers(places: ConfigEncoder, columns: Columns, at: int) -> NDArray[np.float64]:
    """Return the memory rank of each choice of the layered parameter ``at``, ``[n_codes]``; 0 where it is unknown."""
    layered = places.layered[at]
    found = [_rank_of_code(columns, layered.name, layered.columns[0], code) for code in layered.codes]
    return np.array(found, dtype=np.float64)


def _rank_of_code(columns: Columns, name: str, column: int, code: float) -> float:
    for value, memory_rank in memory_rank_of(name).items():
        if columns.encode([{name: value}])[0, column] == code:
            return memory_rank
    return 0.0
