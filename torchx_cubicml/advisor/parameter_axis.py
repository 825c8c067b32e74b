"""Axis of one parameter through a config: its values in order, while all others stay as in that config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.search_space import Dimension

MOST_STEPS = 13  # of one axis; more are sampled at equal strides


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterAxis:
    """Axis of one parameter.

    A value per layer or table has the number of entries that have one choice, ``counted``: to have more or fewer of
    them than the config, its first entries are changed.

    Args:
        name: of the parameter.
        indices: of its dimensions in the space.
        steps: choice indices of those dimensions, one tuple per step.
        labels: value at each step; a number of entries where they are counted.
        counted: choice whose entries are counted; ``None`` for a single value.
        n_entries: number of entries of a value; 0 for a single value.
        entries: what the entries belong to, in words.
        home: step of the config.
        is_sampled: whether some values have no step.
    """

    name: str
    indices: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    labels: tuple[Scalar, ...]
    counted: Scalar | None
    n_entries: int
    entries: str
    home: int
    is_sampled: bool

    def at(self, row: Sequence[int], step: int) -> tuple[int, ...]:
        """Return a row of choice indices with the parameter at one step."""
        moved = list(row)
        for index, choice in zip(self.indices, self.steps[step], strict=True):
            moved[index] = choice
        return tuple(moved)

    @property
    def is_number(self) -> bool:
        """True if its labels are numbers."""
        return all(isinstance(label, int | float) and not isinstance(label, bool) for label in self.labels)

    def place(self, config: Config) -> int | None:
        """Return the step of a config, the nearest one of numbers; ``None`` if it has none."""
        value = config.get(self.name)
        if self.counted is not None:
            value = value.count(self.counted) if isinstance(value, tuple) and len(value) == self.n_entries else None
        if value in self.labels:
            return self.labels.index(value)
        if not self.is_number or not isinstance(value, int | float) or isinstance(value, bool):
            return None
        distances = [abs(float(label) - float(value)) for label in self.labels]
        return distances.index(min(distances))

    def reordered(self, order: Sequence[int]) -> Self:
        """Return the axis with its steps in another order."""
        return replace(
            self,
            steps=tuple(self.steps[step] for step in order),
            labels=tuple(self.labels[step] for step in order),
            home=list(order).index(self.home),
        )


def plain_axis(space: SearchSpace, config: Config, name: str) -> ParameterAxis | None:
    """Return the axis of a single value; ``None`` where it has one choice, or a value per layer or table.

    Raises:
        SpaceError: the config is not one of the space.
    """
    found = _dimensions(space, name)
    if len(found) != 1 or next(iter(found.values())).positions:
        return None
    indices = tuple(found)
    choices = found[indices[0]].choices
    home = space.encode(config)[indices[0]]
    if len(choices) < 2:
        return None
    steps = sorted({*_strides(len(choices)), home})
    return ParameterAxis(
        name=name,
        indices=indices,
        steps=tuple((step,) for step in steps),
        labels=tuple(choices[step] for step in steps),
        counted=None,
        n_entries=0,
        entries="",
        home=steps.index(home),
        is_sampled=len(steps) < len(choices),
    )


def counted_axis(space: SearchSpace, config: Config, name: str, counted: Scalar) -> ParameterAxis | None:
    """Return the axis of the number of entries that have one choice; ``None`` for a single value.

    Raises:
        SpaceError: the config is not one of the space.
    """
    found = _dimensions(space, name)
    indices, dimensions = tuple(found), list(found.values())
    if not indices or not dimensions[0].positions or len(dimensions[0].choices) < 2:
        return None
    choices = dimensions[0].choices
    row = space.encode(config)
    now = [row[index] for index in indices]
    chosen = choices.index(counted)
    others = [choice for choice in now if choice != chosen]
    filler = max(set(others), key=lambda choice: (others.count(choice), -choice)) if others else int(chosen == 0)
    n_now = now.count(chosen)
    counts = sorted({*_strides(len(indices) + 1), n_now})
    steps = [_with_count(now, chosen, filler, count) for count in counts]
    sizes = [len(dimension.positions) for dimension in dimensions]
    labels = [sum(size for size, choice in zip(sizes, step, strict=True) if choice == chosen) for step in steps]
    return ParameterAxis(
        name=name,
        indices=indices,
        steps=tuple(steps),
        labels=tuple(labels),
        counted=counted,
        n_entries=sum(sizes),
        entries=dimensions[0].entries,
        home=counts.index(n_now),
        is_sampled=len(counts) <= len(indices),
    )


def config_at(space: SearchSpace, row: tuple[int, ...], moves: Iterable[tuple[ParameterAxis, int]]) -> Config | None:
    """Return the config of a row of choice indices moved to a step of each axis; ``None`` where that is not legal."""
    for axis, step in moves:
        row = axis.at(row, step)
    return space.decode(row)


def _dimensions(space: SearchSpace, name: str) -> dict[int, Dimension]:
    """Return index -> dimension of a parameter."""
    return {index: dimension for index, dimension in enumerate(space.dimensions) if dimension.parameter == name}


def _strides(count: int) -> list[int]:
    """Return at most ``MOST_STEPS`` of so many places, the first and the last among them.

    >>> _strides(3), _strides(25)
    ([0, 1, 2], [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24])
    """
    most = min(count, MOST_STEPS)
    return sorted({round(place * (count - 1) / max(most - 1, 1)) for place in range(most)})


def _with_count(now: Sequence[int], chosen: int, filler: int, count: int) -> tuple[int, ...]:
    """Return entries of which ``count`` are ``chosen``: the first others become so, or the first of them ``filler``.

    >>> _with_count([0, 1, 0, 2], 0, 1, 3), _with_count([0, 1, 0, 2], 0, 1, 1)
    ((0, 0, 0, 2), (1, 1, 0, 2))
    """
    missing = count - list(now).count(chosen)
    found = list(now)
    for place, choice in enumerate(found):
        if missing > 0 and choice != chosen:
            found[place], missing = chosen, missing - 1
        elif missing < 0 and choice == chosen:
            found[place], missing = filler, missing + 1
    return tuple(found)
