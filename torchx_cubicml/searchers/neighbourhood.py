"""Neighbourhood of configs (local search): layers of one parameter change together, numbers by steps."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.space import Dimension

Vector: TypeAlias = tuple[int, ...]
"""Choice index per dimension of a space."""

Vectors: TypeAlias = NDArray[np.intp]
"""Choice indices of many configs, ``[n, n_dimensions]``."""

_STEPS = (-4, -2, -1, 1, 2, 4)  # steps of a number tried around a good config
_MOVE_COUNTS = (1, 1, 1, 2, 2, 3)  # counts of one mutation, all equally likely
_LEAP_SHARE = 0.3  # share of changed numbers set to a uniformly random choice


class Neighbourhood:
    """Mutation, crossover and neighbours of rows of choice indices over one space's dimensions.

    All dimensions of one parameter have the same choices.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.sizes = np.array([len(dimension.choices) for dimension in dimensions], dtype=np.intp)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, dimension in enumerate(dimensions):
            groups[dimension.parameter].append(index)
        self.groups = [np.array(group) for group in groups.values() if (self.sizes[group] > 1).any()]
        self.layered = [group for group in self.groups if len(group) > 1]
        self._orders = [ascending_choices(dimension) for dimension in dimensions]
        self._neighbour_choices = [
            [self._choices_near(index, choice) for choice in range(size)] for index, size in enumerate(self.sizes)
        ]

    def mutated(self, vectors: Vectors, rng: np.random.Generator) -> Vectors:
        """Return each row with one to three random moves applied."""
        changed = vectors.copy()
        counts = rng.choice(_MOVE_COUNTS, size=len(vectors))
        for number in range(max(_MOVE_COUNTS)):
            moved = rng.integers(len(self.groups), size=len(vectors)) if self.groups else counts
            for index, group in enumerate(self.groups):
                rows = np.flatnonzero((moved == index) & (counts > number))
                if len(group) == 1:
                    self._step(changed, rows, int(group[0]), rng)
                else:
                    changed[np.ix_(rows, group)] = self._layers_changed(changed[np.ix_(rows, group)], group, rng)
        return changed

    def crossed(self, ones: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        """Return a child per pair of rows (crossover): single values from either, a run of layers from the other."""
        children = ones.copy()
        for group in self.groups:
            from_other = _runs(len(ones), len(group), rng) if len(group) > 1 else rng.random((len(ones), 1)) < 0.5
            children[:, group] = np.where(from_other, others[:, group], ones[:, group])
        return children

    def mixed(self, vectors: Vectors, rng: np.random.Generator) -> Vectors:
        """Return each row with all layers of each parameter resampled, by random shares of the choices.

        Independent uniform layers would nearly always have each choice about equally often.
        """
        changed = vectors.copy()
        for group in self.layered:
            shares = rng.dirichlet(np.full(self.sizes[group].max(), 0.5), size=len(vectors))
            chances = rng.random((len(vectors), len(group)))
            changed[:, group] = (chances[:, :, None] > np.cumsum(shares, axis=1)[:, None, :-1]).sum(axis=2)
        return changed

    def neighbours(self, vector: Sequence[int] | Vectors, rng: np.random.Generator) -> Vectors:
        """Return all rows one change away, and some with two layers swapped (which preserves memory)."""
        origin = np.asarray(vector, dtype=np.intp)
        changes = [
            (index, choice)
            for group in self.groups
            for index in group.tolist()
            for choice in self._neighbour_choices[index][origin[index]]
        ]
        flipped = np.repeat(origin[None], len(changes), axis=0)
        if changes:
            at = np.array(changes)
            flipped[np.arange(len(changes)), at[:, 0]] = at[:, 1]
        swapped = [_swapped(np.repeat(origin[None, group], len(group), axis=0), rng) for group in self.layered]
        rows = [np.repeat(origin[None], len(each), axis=0) for each in swapped]
        for row, group, each in zip(rows, self.layered, swapped, strict=True):
            row[:, group] = each
        return np.vstack([flipped, *rows])

    def _layers_changed(self, layers: Vectors, group: NDArray[np.intp], rng: np.random.Generator) -> Vectors:
        """Return rows of layers after one move: all alike, a run alike, two swapped, or up to three changed."""
        kind = rng.random((len(layers), 1))
        run = _runs(len(layers), len(group), rng)
        order = np.argsort(rng.random(layers.shape))
        few = order < rng.integers(1, 4, size=(len(layers), 1))
        chosen = np.where(kind < 0.15, True, np.where(kind < 0.5, run, few))
        choice = rng.integers(self.sizes[group].max(), size=(len(layers), 1))
        is_swap = (kind >= 0.5) & (kind < 0.75)
        return np.where(is_swap, _swapped(layers, rng), np.where(chosen, choice, layers))

    def _step(self, changed: Vectors, rows: NDArray[np.intp], index: int, rng: np.random.Generator) -> None:
        leaps = rng.integers(self.sizes[index], size=len(rows))
        neighbours = self._neighbour_choices[index]
        pairs = zip(changed[rows, index].tolist(), rng.random(len(rows)).tolist(), strict=True)
        steps = [neighbours[choice][int(chance * len(neighbours[choice]))] for choice, chance in pairs]
        free = np.full(len(rows), self._orders[index] is None) | (rng.random(len(rows)) < _LEAP_SHARE)
        changed[rows, index] = np.where(free, leaps, steps)

    def _choices_near(self, index: int, choice: int) -> list[int]:
        order = self._orders[index]
        if order is None:
            return [other for other in range(self.sizes[index]) if other != choice]
        rank = order.index(choice)
        return [order[rank + step] for step in _STEPS if 0 <= rank + step < len(order)]


def _swapped(layers: Vectors, rng: np.random.Generator) -> Vectors:
    """Return each row with two of its entries exchanged."""
    n_rows, n_layers = layers.shape
    swapped, rows = layers.copy(), np.arange(n_rows)
    one = rng.integers(n_layers, size=n_rows)
    other = (one + rng.integers(1, n_layers, size=n_rows)) % n_layers
    swapped[rows, one], swapped[rows, other] = layers[rows, other], layers[rows, one]
    return swapped


def _runs(n_rows: int, n_layers: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return whether each layer is in a random run of its row, ``[n_rows, n_layers]``; a run may be empty."""
    ends = np.sort(rng.integers(0, n_layers + 1, size=(n_rows, 2)))
    layer = np.arange(n_layers)
    return np.asarray((layer >= ends[:, :1]) & (layer < ends[:, 1:]), dtype=np.bool_)


def ascending_choices(dimension: Dimension) -> list[int] | None:
    """Return the choice indices of a numeric dimension in ascending order; ``None`` where a choice is no number."""
    choices = dimension.choices
    if all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices):
        return sorted(range(len(choices)), key=lambda choice: float(choices[choice]))
    return None
