"""The first launches of a workload, as an engineer would choose them: nothing is predicted yet, so cover what matters.

On simulated layer-wise FSDP spaces this is worth more than ten per cent over random configs when eight launches are to
be had: begin with every layer alike, find the memory wall early, then vary one thing at a time around the best. Where
no layer chooses and there are many parameters, a few configs that differ in all of them at once tell more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.neighbourhood import ladder
from torchx_cubicml.space.encoding import drawn_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config, Scalar
    from torchx_cubicml.searchers.neighbourhood import Vector
    from torchx_cubicml.space import Dimension, SearchSpace

_MOST_COMPARED = 3  # parameters that are varied one at a time; of more, each launch is to tell of all
_SCREENED, _DRAWN = 12, 2000  # configs that screen them, and from how many they are picked
_MOST_CHOICES = 6  # of one parameter; a longer list of kernels or backends is left to the predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPoint:
    """A config worth measuring before anything is predicted.

    Args:
        config: legal in the space.
        why: what it is, in words that continue "untried first guess: ".
    """

    config: Config
    why: str


def first_batch(space: SearchSpace, *, current: Config, best: Config | None = None) -> list[DesignPoint]:
    """Return what to launch first on a workload, most telling first, each config once.

    Args:
        space: bound to the workload.
        current: the user's own config, which comes first where it is legal.
        best: the best config measured so far; where there is one, variations around it follow.
    """
    knobs = _knobs(space.dimensions)
    home = _vector(space, knobs, current)
    points = [(home, "your own config")] if current in space else []
    if _are_screened(knobs):
        return list(_decoded(space, [*points, *_screening(space, knobs, home)]))
    points += list(_uniform(_legal_from(space, knobs, home), home))
    if best is not None:
        start = _vector(space, knobs, best)
        points += list(_around(_legal_from(space, knobs, start), start))
    return list(_decoded(space, points))


def screens(space: SearchSpace) -> bool:
    """Return whether the first launches in the bound ``space`` differ in everything at once: many knobs, no layers."""
    return _are_screened(_knobs(space.dimensions))


def _are_screened(knobs: Mapping[str, _Factor]) -> bool:
    return len(knobs) > _MOST_COMPARED and not any(len(knob.indices) > 1 for knob in knobs.values())


@dataclass(frozen=True, slots=True)
class _Factor:
    name: str
    indices: list[int]
    dimension: Dimension
    rungs: list[int] | None  # choices of a number, from the lowest to the highest

    @property
    def choices(self) -> tuple[Scalar, ...]:
        return self.dimension.choices


def _knobs(dimensions: Iterable[Dimension]) -> dict[str, _Factor]:
    knobs: dict[str, _Factor] = {}
    for index, dimension in enumerate(dimensions):
        knob = knobs.setdefault(dimension.parameter, _Factor(dimension.parameter, [], dimension, ladder(dimension)))
        knob.indices.append(index)
    return {name: knob for name, knob in knobs.items() if len(knob.choices) > 1}


def _legal_from(space: SearchSpace, knobs: Mapping[str, _Factor], start: Vector) -> dict[str, _Factor]:
    """Return the knobs without the numbers that are not legal beside the other choices of ``start``.

    The largest micro batch is the largest that divides the global one.
    """
    narrowed = {}
    for name, knob in knobs.items():
        rungs = [rung for rung in knob.rungs or () if space.decode(_set(start, knob, rung)) is not None]
        narrowed[name] = replace(knob, rungs=rungs) if rungs else knob
    return narrowed


def _structure(knobs: Mapping[str, _Factor]) -> _Factor | None:
    """Return the knob whose uniform settings an engineer would compare first."""
    layered = [knob for knob in knobs.values() if len(knob.indices) > 1]
    named = [knobs[name] for name in ("sharding_strategy", "activation_checkpointing") if name in knobs]
    worded = [knob for knob in knobs.values() if knob.rungs is None]
    return next(iter([*layered, *named, *worded]), None)


def _driver(knobs: Mapping[str, _Factor], structure: _Factor | None) -> _Factor | None:
    """Return the number that moves throughput and memory most: the micro batch, else the one with most choices."""
    numbers = [knob for knob in knobs.values() if knob.rungs is not None and knob is not structure]
    if "micro_batch_size" in knobs and knobs["micro_batch_size"] in numbers:
        return knobs["micro_batch_size"]
    return max(numbers, key=lambda knob: len(knob.choices), default=None)


def _uniform(knobs: Mapping[str, _Factor], home: Vector) -> Iterator[tuple[Vector, str]]:
    structure = _structure(knobs)
    driver = _driver(knobs, structure)
    for level, where in (("middle", 0.5), ("largest", 1.0)) if driver else (("", 0.0),):
        start, told = home, ""
        if driver is not None:
            choice = _rung(driver, where)
            start, told = _set(home, driver, choice), f"the {level} {driver.name} ({driver.choices[choice]})"
        if structure is None:
            yield start, told or "the one legal config"
            continue
        each = "every layer" if len(structure.indices) > 1 else structure.name
        for choice, value in enumerate(structure.choices[:_MOST_CHOICES]):
            if level == "middle" and all(home[index] == choice for index in structure.indices):
                continue  # the user's own config tells as much
            yield _set(start, structure, choice), f"{each} {value}" + (f" at {told}" if told else "")


def _screening(space: SearchSpace, knobs: Mapping[str, _Factor], home: Vector) -> Iterator[tuple[Vector, str]]:
    """Yield configs that differ in everything at once, each level about as often, so that each tells of all parameters.

    The next is, of many that are drawn, the one whose levels were the rarest so far.
    """
    try:
        drawn = drawn_rows(space, _DRAWN, rng=np.random.default_rng(0))
    except SpaceError:  # nothing legal was found
        return
    places = [knob.indices[0] for knob in knobs.values()]
    levels = np.column_stack(
        [_levels(knob)[drawn[:, place]] for knob, place in zip(knobs.values(), places, strict=True)]
    )
    each = np.arange(len(places))
    seen = np.zeros((len(places), _MOST_CHOICES))
    seen[each, [_levels(knob)[home[place]] for knob, place in zip(knobs.values(), places, strict=True)]] = 1.0
    for _ in range(_SCREENED):
        rarest = int(np.argmin(seen[each, levels].sum(axis=1)))
        seen[each, levels[rarest]] += 1.0
        yield tuple(drawn[rarest].tolist()), "every parameter at a value little tried"


def _levels(knob: _Factor) -> NDArray[np.intp]:
    """Return the level of each choice: low, middle and high ones of a number, others by themselves."""
    if knob.rungs is None:
        return np.arange(len(knob.choices)) % _MOST_CHOICES
    ranks = np.argsort(knob.rungs)
    return np.asarray(ranks * 3 // len(ranks), dtype=np.intp)


def _around(knobs: Mapping[str, _Factor], best: Vector) -> Iterator[tuple[Vector, str]]:
    """Yield the best config with one thing changed."""
    structure = _structure(knobs)
    driver = _driver(knobs, structure)
    if driver is not None and driver.rungs is not None:
        now = float(driver.choices[best[driver.indices[0]]])
        above = [rung for rung in driver.rungs if float(driver.choices[rung]) > now]
        yield from _change(driver, best, above[len(above) // 2 :][:1])
    if structure is not None and len(structure.indices) > 1:
        yield from _runs(structure, best)
    for knob in knobs.values():
        if knob is not structure and knob is not driver:
            ends = range(len(knob.choices)) if knob.rungs is None else (knob.rungs[-1], knob.rungs[0])
            yield from _change(knob, best, list(ends)[:_MOST_CHOICES])


def _runs(knob: _Factor, best: Vector) -> Iterator[tuple[Vector, str]]:
    """Yield the best config with a run of layers one choice further: a bold step and a cautious one elsewhere."""
    middle, quarter = len(knob.indices) // 2, max(len(knob.indices) // 4, 1)
    for run, told in ((knob.indices[:middle], "first half"), (knob.indices[-quarter:], "last quarter")):
        now = best[run[0]]
        choice = now + 1 if now + 1 < len(knob.choices) else now - 1
        changed = tuple(choice if index in run else other for index, other in enumerate(best))
        yield changed, f"the best so far with the {told} of the layers {knob.choices[choice]}"


def _change(knob: _Factor, best: Vector, choices: list[int]) -> Iterator[tuple[Vector, str]]:
    for choice in choices:
        yield _set(best, knob, choice), f"the best so far with {knob.name} = {knob.choices[choice]}"


def _rung(knob: _Factor, where: float) -> int:
    rungs = knob.rungs or list(range(len(knob.choices)))
    return rungs[round(where * (len(rungs) - 1))]


def _set(vector: Vector, knob: _Factor, choice: int) -> Vector:
    chosen = set(knob.indices)
    return tuple(choice if index in chosen else other for index, other in enumerate(vector))


def _vector(space: SearchSpace, knobs: Mapping[str, _Factor], config: Config) -> Vector:
    """Return the choices of ``config``; a value that is not among them gives way to the nearest, or to the first."""
    vector = [0] * len(space.dimensions)
    for knob in knobs.values():
        value = config.get(knob.name)
        for index in knob.indices:
            entry = _entry(value, space.dimensions[index])
            vector[index] = _nearest(knob, entry)
    return tuple(vector)


def _entry(value: object, dimension: Dimension) -> object:
    if not isinstance(value, tuple):
        return value
    place = dimension.positions[0] if dimension.positions else 0
    return value[place] if place < len(value) else None


def _nearest(knob: _Factor, value: object) -> int:
    if value in knob.choices:
        return knob.choices.index(value)
    if knob.rungs is None or not isinstance(value, int | float):
        return 0
    return min(range(len(knob.choices)), key=lambda choice: abs(float(knob.choices[choice]) - value))


def _decoded(space: SearchSpace, points: Iterable[tuple[Vector, str]]) -> Iterator[DesignPoint]:
    told = set()
    for vector, why in points:
        config = space.decode(vector)
        if config is not None and (key := identity(config)) not in told:
            told.add(key)
            yield DesignPoint(config=config, why=why)
