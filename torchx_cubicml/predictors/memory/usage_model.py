"""How much of the memory a config takes: a sum of positive parts, and factors on it.

What is always held, what grows with the micro batch, and what each layer keeps for its choice: a layer that is sharded
less never takes less, and neither does a larger batch, so that one outcome tells of all configs hungrier or more modest
than it. What is not known to be hungry may go either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.dominance import BATCH, memory_rank_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder

# Prior medians as shares of all memory, and standard deviations of logarithms.
_ALWAYS, _BATCH, _STATES = 0.1, 0.5, 0.8
_PART_SD = np.array([0.8, 1.2, 0.8])  # nobody knows how far a list of batch sizes reaches
_LAYER_SD = 0.8  # of one layer beside the others: sizes tell half, optimizers and activations differ
_STEP, _STEP_SD = 0.3, 0.5  # what a choice keeps that is one step less hungry than the hungriest
_HUNGRIEST = 2.0
_PER_HUNGER, _HUNGER_SD = 0.7, 0.5  # log factor on what grows with the batch, per step of hunger
_UNKNOWN_SD, _ROOM_SD = 0.5, 0.15  # log factor of an unknown choice on the memory taken, and on the memory there is
_PER_NUMBER = 1.5  # times as much from the lowest to the highest number
_LEAST_BATCH = 1e-9  # numbers that stand for a batch may be none: what takes no memory has no logarithm
_STATES_OF = "sharding_strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTerms:
    """What ``n`` configs take, as the appetite's parameters weigh it.

    Args:
        batch: micro batch as a share of the largest, ``[n]``; 1 where there is none.
        kept: which choice of sharding each layer has, ``[n, n_codes, n_layers]``; ``n_layers`` may be 0.
        hungry: columns of choices known to be hungry, ``[n, n_hungry]``.
        unknown: columns of all that is not known to be, ``[n, n_unknown]``.
    """

    batch: NDArray[np.float64]
    kept: NDArray[np.float64]
    hungry: NDArray[np.float64]
    unknown: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """Memory of configs as a function of ``theta``, whose entries are standard normal a priori.

    Args:
        places: how rows become points.
        states: place of the sharding among the layered parameters; ``None`` where no layer chooses.
        sharding: columns of its choices among the indicators, where there is one choice for all layers.
        layers: share of each layer in the states, ``[n_layers]``.
        kept: log share of its states that a layer keeps by each choice, ``[n_codes]``; ``-inf`` for none.
        hunger: steps of hunger of each column of the other choices, ``[n_others]``; 0 where nothing is known.
    """

    places: ConfigEncoder
    states: int | None
    sharding: tuple[int, ...]
    layers: NDArray[np.float64]
    kept: NDArray[np.float64]
    hunger: NDArray[np.float64]

    @classmethod
    def of(cls, places: ConfigEncoder, columns: Columns) -> Self:
        """Return the appetite of what ``places`` tells apart, ``columns`` being those of the rows."""
        names = [layered.name for layered in places.layered]
        states = names.index(_STATES_OF) if _STATES_OF in names else None
        sharding: tuple[int, ...] = ()
        layers, steps = np.empty(0), np.empty(0)
        if states is not None:
            layers, steps = places.layered[states].sizes, memory_rank_of_layers(places, columns, states)
        elif _STATES_OF in places.category_names:
            fact = places.category_names.index(_STATES_OF)
            sharding = tuple(np.flatnonzero(places.category_of == fact).tolist())
            layers, steps = np.ones(1), memory_rank_of_indicators(places, columns)[list(sharding)]
        others = [memory_rank_of_indicators(places, columns)]
        others += [memory_rank_of_layers(places, columns, at) for at in range(len(names)) if at != states]
        hunger = np.concatenate(others)
        hunger[list(sharding)] = np.nan
        kept = np.where(steps > 0, np.log(_STEP) * (_HUNGRIEST - steps), -np.inf)
        return cls(places=places, states=states, sharding=sharding, layers=layers, kept=kept, hunger=hunger)

    @property
    def n_theta(self) -> int:
        """How many parameters there are: three parts, layers, choices of sharding, hungry and unknown columns."""
        n_unknown = sum(number.name != BATCH for number in self.places.numbers) + int((self.hunger == 0).sum())
        return 3 + len(self.layers) + len(self.kept) + int((self.hunger > 0).sum()) + 2 * n_unknown

    @property
    def unknown(self) -> NDArray[np.intp]:
        """What each entry of ``theta`` belongs to that is of an unknown column, -1 for all others, ``[n_theta]``.

        The columns of one category are one thing, each number is another, and memory taken and room for it are two.
        """
        numbers = [at for at, number in enumerate(self.places.numbers) if number.name != BATCH]
        facts = self.places.category_of.tolist()
        for at, layered in enumerate(self.places.layered):
            facts += [-1 - at] * len(layered.codes) if at != self.states else []
        categories = [fact for fact, hunger in zip(facts, self.hunger.tolist(), strict=True) if hunger == 0]
        names = [("number", at) for at in numbers] + [("category", fact) for fact in categories]
        found = {each: place for place, each in enumerate(dict.fromkeys(names))}
        groups = [found[each] for each in names]
        told = [-1] * (self.n_theta - 2 * len(groups)) + groups + [len(found) + group for group in groups]
        return np.array(told, dtype=np.intp)

    def terms(self, features: NDArray[np.float64]) -> UsageTerms:
        """Return what encoded rows take, ``[n, n_columns]``."""
        points = self.places.points(features)
        batch, plain = np.ones(len(features)), []
        for number, values in zip(self.places.numbers, points.numbers.T, strict=True):
            if number.name == BATCH:
                batch = np.maximum(number.unscaled(values), _LEAST_BATCH) / max(
                    number.unscaled(np.ones(1)), _LEAST_BATCH
                )
            else:
                plain.append(values)
        shares = [each for at, each in enumerate(points.shares) if at != self.states]
        others = np.hstack([points.categories, *shares])
        kept = np.empty((len(features), 0, 0))
        if self.states is not None:
            kept = points.members[self.states]
        elif self.sharding:
            kept = points.categories[:, self.sharding, None]
        unknown = np.column_stack(
            [np.empty((len(features), 0)), *(_PER_NUMBER * each for each in plain), others[:, self.hunger == 0]]
        )
        hungry = others[:, self.hunger > 0] * self.hunger[self.hunger > 0]
        return UsageTerms(batch=batch, kept=kept, hungry=hungry, unknown=unknown)

    def taken(
        self, terms: UsageTerms, theta: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithm of the memory taken, ``[n]``, and how it and the room for it move with ``theta``.

        The first Jacobian, ``[n, n_theta]``, is of the memory taken, the second of the logarithm of the room.
        """
        parts, layers, codes, hungry, unknown, room = self._split(theta, terms)
        always, per_batch, states = np.log([_ALWAYS, _BATCH, _STATES]) + _PART_SD * parts
        grows = terms.hungry @ (_PER_HUNGER + _HUNGER_SD * hungry)
        batch = np.exp(per_batch + grows) * terms.batch
        keeps = np.exp(states) * np.exp(self.kept + _STEP_SD * codes)
        each = self.layers * np.exp(self._layer_sd * layers)
        held = terms.kept * keeps[:, None] * each  # [n, n_codes, n_layers]
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
                _HUNGER_SD * share * batch[:, None] * terms.hungry,
                factor,
                np.zeros_like(terms.unknown),
            ]
        )
        roomy = np.hstack([np.zeros((len(total), len(theta) - len(room))), _ROOM_SD * terms.unknown])
        return np.log(total) + factor @ unknown, jacobian, roomy

    @property
    def _layer_sd(self) -> float:
        return _LAYER_SD if len(self.layers) > 1 else 0.0

    def _split(self, theta: NDArray[np.float64], terms: UsageTerms) -> list[NDArray[np.float64]]:
        n_hungry, n_unknown = terms.hungry.shape[1], terms.unknown.shape[1]
        return np.split(theta, np.cumsum([3, len(self.layers), len(self.kept), n_hungry, n_unknown]))


def memory_rank_of_indicators(places: ConfigEncoder, columns: Columns) -> NDArray[np.float64]:
    """Return the hunger of each indicator, ``[n_indicators]``; 0 where nothing is known."""
    names = [places.category_names[fact] for fact in places.category_of]
    found = [_of_code(columns, name, *each) for name, each in zip(names, places.indicators, strict=True)]
    return np.array(found, dtype=np.float64)


def memory_rank_of_layers(places: ConfigEncoder, columns: Columns, at: int) -> NDArray[np.float64]:
    """Return the hunger of each choice of the layered parameter ``at``, ``[n_codes]``; 0 where nothing is known."""
    layered = places.layered[at]
    found = [_of_code(columns, layered.name, layered.columns[0], code) for code in layered.codes]
    return np.array(found, dtype=np.float64)


def _of_code(columns: Columns, name: str, column: int, code: float) -> float:
    for value, hunger in memory_rank_of(name).items():
        if columns.encode([{name: value}])[0, column] == code:
            return hunger
    return 0.0
