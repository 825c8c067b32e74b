"""Steps from config to config: layers of one parameter belong together, and numbers have neighbours."""

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
"""The same for many configs, ``[n, n_dimensions]``."""

_STRIDES = (1, 2, 4)  # steps of a number tried around a good config
_MOVES = (1, 1, 1, 2, 2, 3)  # of one mutation, each as likely
_LEAP = 0.3  # share of changed numbers that go anywhere


class Neighbourhood:
    """Mutations, crossings and neighbourhoods of rows of choice indices over one space's dimensions."""

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.sizes = np.array([len(dimension.choices) for dimension in dimensions], dtype=np.intp)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, dimension in enumerate(dimensions):
            groups[dimension.parameter].append(index)
        self.groups = [np.array(group) for group in groups.values() if (self.sizes[group] > 1).any()]
        self.layered = [group for group in self.groups if len(group) > 1]
        self._ladders = [ladder(dimension) for dimension in dimensions]
        self._near = [[self._beside(index, choice) for choice in range(size)] for index, size in enumerate(self.sizes)]

    def mutated(self, vectors: Vectors, rng: np.random.Generator) -> Vectors:
        """Return each row with one to three random moves applied."""
        changed = vectors.copy()
        counts = rng.choice(_MOVES, size=len(vectors))
        for number in range(max(_MOVES)):
            moved = rng.integers(len(self.groups), size=len(vectors)) if self.groups else counts
            for place, group in enumerate(self.groups):
                rows = np.flatnonzero((moved == place) & (counts > number))
                if len(rows) and len(group) == 1:
                    self._step(changed, rows, int(group[0]), rng)
                elif len(rows):
                    changed[np.ix_(rows, group)] = self._layers_changed(changed[np.ix_(rows, group)], group, rng)
        return changed

    def crossed(self, ones: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        """Return a child of each two rows: single values from either parent, of layers a run from the other."""
        children = ones.copy()
        for group in self.groups:
            taken = _runs(len(ones), len(group), rng) if len(group) > 1 else rng.random((len(ones), 1)) < 0.5
            children[:, group] = np.where(taken, others[:, group], ones[:, group])
        return children

    def mixed(self, vectors: Vectors, rng: np.random.Generator) -> Vectors:
        """Return each row with the layers of each parameter drawn anew, in shares that are drawn first.

        Layers that choose each for itself would nearly always take every choice about equally often.
        """
        changed = vectors.copy()
        for group in self.layered:
            shares = rng.dirichlet(np.full(self.sizes[group[0]], 0.5), size=len(vectors))
            chances = rng.random((len(vectors), len(group)))
            drawn = (chances[:, :, None] > np.cumsum(shares, axis=1)[:, None, :-1]).sum(axis=2)
            changed[:, group] = np.minimum(drawn, self.sizes[group] - 1)
        return changed

    def neighbours(self, vector: Sequence[int] | Vectors, rng: np.random.Generator) -> Vectors:
        """Return all rows one change away, and some that swap two layers (which keeps memory)."""
        here = np.asarray(vector, dtype=np.intp)
        changes = [
            (index, choice)
            for group in self.groups
            for index in group.tolist()
            for choice in self._near[index][here[index]]
        ]
        flipped = np.repeat(here[None], len(changes), axis=0)
        if changes:
            at = np.array(changes)
            flipped[np.arange(len(changes)), at[:, 0]] = at[:, 1]
        swapped = [
            self._swapped(np.repeat(here[None, group], len(group), axis=0), group, rng) for group in self.layered
        ]
        rows = [np.repeat(here[None], len(each), axis=0) for each in swapped]
        for row, group, each in zip(rows, self.layered, swapped, strict=True):
            row[:, group] = each
        return np.vstack([flipped, *rows])

    def _layers_changed(self, layers: Vectors, group: NDArray[np.intp], rng: np.random.Generator) -> Vectors:
        """Return rows of layers: all alike, a run of neighbours alike, two that trade places, or a few changed."""
        kind = rng.random((len(layers), 1))
        run = _runs(len(layers), len(group), rng)
        order = np.argsort(rng.random(layers.shape), axis=1)
        few = order < rng.integers(1, 4, size=(len(layers), 1))
        chosen = np.where(kind < 0.15, True, np.where(kind < 0.5, run, few))
        choice = rng.integers(self.sizes[group[0]], size=(len(layers), 1))
        drawn = np.where(chosen, np.minimum(choice, self.sizes[group] - 1), layers)
        trades = (kind >= 0.5) & (kind < 0.75)
        return np.where(trades, self._swapped(layers, group, rng), drawn)

    def _swapped(self, layers: Vectors, group: NDArray[np.intp], rng: np.random.Generator) -> Vectors:
        """Return each row with two of its entries exchanged, where both have the same choices."""
        swapped, rows = layers.copy(), np.arange(len(layers))
        one = rng.integers(len(group), size=len(layers))
        other = (one + rng.integers(1, len(group), size=len(layers))) % len(group)
        alike = self.sizes[group[one]] == self.sizes[group[other]]
        rows, one, other = rows[alike], one[alike], other[alike]
        swapped[rows, one], swapped[rows, other] = layers[rows, other], layers[rows, one]
        return swapped

    def _step(self, changed: Vectors, rows: NDArray[np.intp], index: int, rng: np.random.Generator) -> None:
        leaps = rng.integers(self.sizes[index], size=len(rows))
        near = [beside or [choice] for choice, beside in enumerate(self._near[index])]
        pairs = zip(changed[rows, index].tolist(), rng.random(len(rows)).tolist(), strict=True)
        steps = [near[choice][int(chance * len(near[choice]))] for choice, chance in pairs]
        free = np.full(len(rows), self._ladders[index] is None) | (rng.random(len(rows)) < _LEAP)
        changed[rows, index] = np.where(free, leaps, steps)

    def _beside(self, index: int, choice: int) -> list[int]:
        rungs = self._ladders[index]
        if rungs is None:
            return [other for other in range(self.sizes[index]) if other != choice]
        here = rungs.index(choice)
        reached = {here + sign * stride for stride in _STRIDES for sign in (-1, 1)}
        return [rungs[other] for other in sorted(reached) if 0 <= other < len(rungs)]


def _runs(n_rows: int, n_layers: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which layers lie in a run drawn for each row, ``[n_rows, n_layers]``; a run may be empty."""
    ends = np.sort(rng.integers(0, n_layers + 1, size=(n_rows, 2)), axis=1)
    place = np.arange(n_layers)
    return np.asarray((place >= ends[:, :1]) & (place < ends[:, 1:]), dtype=np.bool_)


def ladder(dimension: Dimension) -> list[int] | None:
    """Return choice indices from the lowest number to the highest; ``None`` where the choices are no numbers."""
    choices = dimension.choices
    if all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices):
        return sorted(range(len(choices)), key=lambda choice: float(choices[choice]))
    return None
