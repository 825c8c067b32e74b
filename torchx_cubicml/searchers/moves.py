"""Steps from config to config: layers of one parameter belong together, and numbers have neighbours."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.space import Dimension

Vector: TypeAlias = tuple[int, ...]
"""Choice index per dimension of a space."""

_STRIDES = (1, 2, 4)  # steps of a number tried around a good config


class Moves:
    """Mutations, crossings and neighbourhoods of vectors over one space's dimensions."""

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.sizes = [len(dimension.choices) for dimension in dimensions]
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, dimension in enumerate(dimensions):
            groups[dimension.parameter].append(index)
        self.groups = [group for group in groups.values() if any(self.sizes[index] > 1 for index in group)]
        self.layered = [group for group in self.groups if len(group) > 1]
        self._ladders = [ladder(dimension) for dimension in dimensions]

    def mutate(self, vector: Vector, rng: np.random.Generator) -> Vector:
        """Return ``vector`` with one to three random moves applied."""
        changed = list(vector)
        for _ in range(int(rng.choice([1, 1, 1, 2, 2, 3]))):
            group = self.groups[int(rng.integers(len(self.groups)))]
            if len(group) == 1:
                changed[group[0]] = self._step(group[0], changed[group[0]], rng)
            else:
                self._change_layers(changed, group, rng)
        return tuple(changed)

    def cross(self, one: Vector, other: Vector, rng: np.random.Generator) -> Vector:
        """Return a child: single values from either parent, of layers a run from the other."""
        child = list(one)
        for group in self.groups:
            start, stop = sorted(rng.integers(0, len(group) + 1, size=2).tolist())
            if len(group) == 1:
                start, stop = 0, int(rng.integers(2))
            for index in group[start:stop]:
                child[index] = other[index]
        return tuple(child)

    def mix(self, vector: Vector, rng: np.random.Generator) -> Vector:
        """Return ``vector`` with the layers of each parameter drawn anew, in shares that are drawn first.

        Layers that choose each for itself would nearly always take every choice about equally often.
        """
        changed = list(vector)
        for group in self.layered:
            shares = rng.dirichlet(np.full(self.sizes[group[0]], 0.5))
            for index, choice in zip(group, rng.choice(len(shares), size=len(group), p=shares).tolist(), strict=True):
                changed[index] = min(choice, self.sizes[index] - 1)
        return tuple(changed)

    def neighbours(self, vector: Vector, rng: np.random.Generator) -> Iterator[Vector]:
        """Yield all vectors one change away, and some that swap two layers (which keeps memory)."""
        for group in self.groups:
            for index in group:
                for choice in self._near(index, vector[index]):
                    yield (*vector[:index], choice, *vector[index + 1 :])
        for group in self.layered:
            for _ in range(len(group)):
                one, other = rng.choice(group, size=2, replace=False).tolist()
                swapped = list(vector)
                self._swap(swapped, one, other)
                yield tuple(swapped)

    def _change_layers(self, changed: list[int], group: list[int], rng: np.random.Generator) -> None:
        kind = rng.random()
        choice = int(rng.integers(self.sizes[group[0]]))
        if kind < 0.15:  # all alike
            chosen = group
        elif kind < 0.5:  # a run of neighbours
            start, stop = sorted(rng.integers(0, len(group) + 1, size=2).tolist())
            chosen = group[start:stop]
        elif kind < 0.75:  # two layers trade places
            one, other = rng.choice(group, size=2, replace=False).tolist()
            self._swap(changed, one, other)
            return
        else:  # a few
            chosen = rng.choice(group, size=min(len(group), int(rng.integers(1, 4))), replace=False).tolist()
        for index in chosen:
            changed[index] = min(choice, self.sizes[index] - 1)

    def _swap(self, changed: list[int], one: int, other: int) -> None:
        if self.sizes[one] == self.sizes[other]:
            changed[one], changed[other] = changed[other], changed[one]

    def _step(self, index: int, choice: int, rng: np.random.Generator) -> int:
        if self._ladders[index] is None or rng.random() < 0.3:
            return int(rng.integers(self.sizes[index]))
        near = self._near(index, choice)
        return near[int(rng.integers(len(near)))] if near else choice

    def _near(self, index: int, choice: int) -> list[int]:
        rungs = self._ladders[index]
        if rungs is None:
            return [other for other in range(self.sizes[index]) if other != choice]
        here = rungs.index(choice)
        reached = {here + sign * stride for stride in _STRIDES for sign in (-1, 1)}
        return [rungs[other] for other in sorted(reached) if 0 <= other < len(rungs)]


def ladder(dimension: Dimension) -> list[int] | None:
    """Return choice indices from the lowest number to the highest; ``None`` where the choices are no numbers."""
    choices = dimension.choices
    if all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices):
        return sorted(range(len(choices)), key=lambda choice: float(choices[choice]))
    return None
