"""Counts, lists and draws the legal vectors of choice indices under checks that tie some of their entries together.

Entries that no check ties to others are independent, so that a hundred layers of three choices beside a few tied
numbers cost no more than the numbers. Tied entries become a layered diagram: a node stands for all beginnings that
the open checks cannot tell apart, and knows how many legal ends it has. That makes counts exact and draws uniform.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torchx_cubicml.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence

    import numpy as np

    _State: TypeAlias = dict[int, Hashable]

MAX_READS = 1_000_000  # entries that checks read to build a diagram, or in one search: a second or two
MAX_TRIES = 200  # draws that a check may refuse before depth-first search takes over


@dataclass(frozen=True, slots=True)
class Check:
    """A rule that ties dimensions together.

    Args:
        dimensions: those that it reads.
        holds: whether a vector meets it; entries of other dimensions mean nothing.
        remainder: what is left to decide while only some dimensions are assigned, ``None`` where it is broken
            already; equal remainders are met by the same values of the others.
    """

    dimensions: frozenset[int]
    holds: Callable[[Sequence[int]], bool]
    remainder: Callable[[Sequence[int], Collection[int]], Hashable | None]


class LegalChoices:
    """All vectors of choice indices, entry ``d`` in ``range(sizes[d])``, that meet every check."""

    def __init__(self, sizes: Sequence[int], checks: Iterable[Check]) -> None:
        self.checks = checks = tuple(checks)
        self._length = len(sizes)
        self._possible = all(check.holds([0] * len(sizes)) for check in checks if not check.dimensions)
        self._parts: list[_Part] = [
            _tied_part(dimensions, sizes, [check for check in checks if check.dimensions & set(dimensions)])
            for dimensions in _components(len(sizes), checks)
        ]

    @property
    def ties(self) -> list[tuple[tuple[int, ...], list[list[list[int]]] | None]]:
        """Tied dimensions in order, and the node after each of a level's nodes and choices (see ``_Diagram``)."""
        tied = [part for part in self._parts if isinstance(part, _Tied)]
        return [(part.dimensions, part.targets) for part in tied]

    @property
    def is_empty(self) -> bool:
        """Whether it is certain that nothing is legal; decided without counting."""
        return not self._possible or any(part.is_empty for part in self._parts)

    def size(self, *, limit: int | None = None) -> int:
        """Return how many vectors are legal, no more than ``limit``; what is too many to count is ``limit``.

        Raises:
            SpaceError: too many to count, and no limit is given.
        """
        total = int(self._possible)
        for part in self._parts:
            total *= part.count(limit) if total else 0
            if limit is not None:
                total = min(total, limit)
        return total

    def vectors(self) -> Iterator[tuple[int, ...]]:
        """Stream the legal vectors: groups of tied dimensions in order, the last of them changing fastest."""
        vector = [0] * self._length
        if not self._possible or self.is_empty:
            return
        if not self._parts:
            yield ()
            return
        open_parts = [self._parts[0].assignments()]
        while open_parts:
            assignment = next(open_parts[-1], None)
            if assignment is None:
                open_parts.pop()
                continue
            part = self._parts[len(open_parts) - 1]
            for dimension, index in zip(part.dimensions, assignment, strict=True):
                vector[dimension] = index
            if len(open_parts) == len(self._parts):
                yield tuple(vector)
            else:
                open_parts.append(self._parts[len(open_parts)].assignments())

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Return ``count`` legal vectors, each drawn uniformly where its tied parts can be counted.

        Raises:
            SpaceError: nothing is legal, or nothing legal was found.
        """
        if self.is_empty:
            raise SpaceError("no config is legal, so none can be drawn")
        columns: list[Sequence[int]] = [()] * self._length
        for part in self._parts:
            drawn = part.draw(count, rng)
            for position, dimension in enumerate(part.dimensions):
                columns[dimension] = [assignment[position] for assignment in drawn]
        return [tuple(column[row] for column in columns) for row in range(count)]


class _Part(Protocol):
    """Dimensions that are independent of all others."""

    dimensions: tuple[int, ...]

    @property
    def is_empty(self) -> bool: ...

    def count(self, limit: int | None) -> int: ...

    def assignments(self) -> Iterator[tuple[int, ...]]: ...

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]: ...


class _Free:
    """One dimension that no check reads."""

    def __init__(self, dimension: int, size: int) -> None:
        self.dimensions: tuple[int, ...] = (dimension,)
        self._size = size

    @property
    def is_empty(self) -> bool:
        return self._size == 0

    def count(self, limit: int | None) -> int:
        return self._size

    def assignments(self) -> Iterator[tuple[int, ...]]:
        return ((index,) for index in range(self._size))

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        return [(index,) for index in rng.integers(self._size, size=count).tolist()]


class _Tied:
    """Dimensions that checks tie together, in the order in which they are assigned."""

    def __init__(self, dimensions: Sequence[int], sizes: Sequence[int], checks: Sequence[Check]) -> None:
        self.dimensions = _assignment_order(dimensions, checks)
        self._sizes = [sizes[dimension] for dimension in self.dimensions]
        self._checks = _by_last_dimension(self.dimensions, checks)
        self._reads = [1 + sum(len(check.dimensions) for check in level) for level in self._checks]
        self._length = len(sizes)

    @property
    def targets(self) -> list[list[list[int]]] | None:
        return self._diagram.targets if self._diagram else None

    @cached_property
    def is_empty(self) -> bool:
        try:
            return next(self._walk(most=MAX_READS // 10), None) is None
        except _TooManyReadsError:
            return self._diagram is not None and self._diagram.total == 0

    def count(self, limit: int | None) -> int:
        if self._diagram:
            return self._diagram.total
        try:
            most = None if limit is None else min(limit, sys.maxsize)
            return sum(1 for _ in islice(self._walk(most=MAX_READS), most))
        except _TooManyReadsError:
            if limit is not None:
                return limit
        raise SpaceError(
            f"there are too many legal configs to count: constraints tie {len(self.dimensions)} choices together; "
            "count up to a limit, or tune layers in groups"
        )

    def assignments(self) -> Iterator[tuple[int, ...]]:
        return map(self._diagram.assignment, range(self._diagram.total)) if self._diagram else self._walk()

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        if self._diagram:
            return [self._diagram.assignment(rank) for rank in _draw_ranks(self._diagram.total, count, rng)]
        return list(self._search(count, rng))

    def _search(self, count: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
        """Draw what is too large to count: uniformly while one draw in ``MAX_TRIES`` is legal, else as found."""
        tries = MAX_TRIES
        for _ in range(count):
            drawn = next((item for item in self._guesses(tries, rng) if self._is_legal(item)), None)
            if drawn is None:
                tries = 0
                drawn = self._find(rng)
            yield drawn

    def _guesses(self, count: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
        for _ in range(count):
            yield tuple(rng.integers(self._sizes).tolist())

    def _is_legal(self, assignment: Sequence[int]) -> bool:
        vector = [0] * self._length
        for dimension, index in zip(self.dimensions, assignment, strict=True):
            vector[dimension] = index
        return all(check.holds(vector) for level in self._checks for check in level)

    def _find(self, rng: np.random.Generator) -> tuple[int, ...]:
        try:
            found = next(self._walk(most=MAX_READS, rng=rng), None)
        except _TooManyReadsError:
            found = None
        if found is None:
            raise SpaceError(
                "no legal config was found in a bounded search: "
                f"constraints tie {len(self.dimensions)} choices together"
            )
        return found

    def _walk(self, *, most: int | None = None, rng: np.random.Generator | None = None) -> Iterator[tuple[int, ...]]:
        """Yield legal assignments depth first, at random with ``rng``; each check prunes as soon as it can be read."""
        vector, reads = [0] * self._length, 0
        open_levels = [self._indices(0, rng)]
        while open_levels:
            level = len(open_levels) - 1
            index = next(open_levels[-1], None)
            if index is None:
                open_levels.pop()
                continue
            reads += self._reads[level]
            if most is not None and reads > most:
                raise _TooManyReadsError
            vector[self.dimensions[level]] = index
            if not all(check.holds(vector) for check in self._checks[level]):
                continue
            if len(open_levels) == len(self.dimensions):
                yield tuple(vector[dimension] for dimension in self.dimensions)
            else:
                open_levels.append(self._indices(level + 1, rng))

    def _indices(self, level: int, rng: np.random.Generator | None) -> Iterator[int]:
        return iter(range(self._sizes[level]) if rng is None else rng.permutation(self._sizes[level]).tolist())

    @cached_property
    def _diagram(self) -> _Diagram | None:
        checks = [check for level in self._checks for check in level]
        return _DiagramBuilder(self.dimensions, self._sizes, checks, self._length).build()


class _TooManyReadsError(Exception):
    """A search ended at its bound before it could tell."""


@dataclass(frozen=True, slots=True)
class _Diagram:
    """Legal assignments by rank.

    Args:
        targets: per level, node and choice index: the node it leads to, -1 where illegal.
        ends: per level, node and choice index: legal ends up to and with this choice.
        total: legal ends in all.
    """

    targets: list[list[list[int]]]
    ends: list[list[list[int]]]
    total: int

    def assignment(self, rank: int) -> tuple[int, ...]:
        """Return the assignment of rank ``0 <= rank < total`` in the order of the choices."""
        node, indices = 0, []
        for targets, ends in zip(self.targets, self.ends, strict=True):
            index = bisect_right(ends[node], rank)
            rank -= ends[node][index - 1] if index else 0
            indices.append(index)
            node = targets[node][index]
        return tuple(indices)


class _DiagramBuilder:
    """Builds the diagram level by level; beginnings whose open checks leave the same to decide become one node."""

    def __init__(self, dimensions: Sequence[int], sizes: Sequence[int], checks: Iterable[Check], length: int) -> None:
        self._dimensions, self._sizes = dimensions, sizes
        level_of = {dimension: level for level, dimension in enumerate(dimensions)}
        self._open_until = [(check, max(level_of[item] for item in check.dimensions)) for check in checks]
        self._vector, self._assigned = [0] * length, set[int]()

    def build(self) -> _Diagram | None:
        """Return the diagram, ``None`` where building it would take more than ``MAX_READS``."""
        targets: list[list[list[int]]] = []
        beginnings: list[tuple[tuple[int, ...], _State]] = [((), {})]
        reads = 0
        for level, dimension in enumerate(self._dimensions):
            touched = [(check, last) for check, last in self._open_until if dimension in check.dimensions]
            reads += len(beginnings) * self._sizes[level] * (1 + sum(len(check.dimensions) for check, _ in touched))
            if reads > MAX_READS:
                return None
            rows, beginnings = self._level(level, beginnings, touched)
            targets.append(rows)
        return _count_ends(targets, len(beginnings))

    def _level(
        self, level: int, beginnings: list[tuple[tuple[int, ...], _State]], touched: list[tuple[Check, int]]
    ) -> tuple[list[list[int]], list[tuple[tuple[int, ...], _State]]]:
        rows: list[list[int]] = []
        nodes: dict[Hashable, int] = {}
        next_beginnings: list[tuple[tuple[int, ...], _State]] = []
        self._assigned.add(self._dimensions[level])
        for indices, state in beginnings:
            for dimension, index in zip(self._dimensions, indices, strict=False):
                self._vector[dimension] = index
            rows.append([])
            for index in range(self._sizes[level]):
                self._vector[self._dimensions[level]] = index
                after = self._state_after(level, state, touched)
                if after is None:
                    rows[-1].append(-1)
                    continue
                node = nodes.setdefault(frozenset(after.items()), len(nodes))
                if node == len(next_beginnings):
                    next_beginnings.append(((*indices, index), after))
                rows[-1].append(node)
        return rows, next_beginnings

    def _state_after(self, level: int, state: _State, touched: list[tuple[Check, int]]) -> _State | None:
        """Return what each open check leaves to decide, ``None`` where one is broken."""
        after = dict(state)
        for check, last in touched:
            if last == level:
                after.pop(id(check), None)
                if not check.holds(self._vector):
                    return None
            else:
                remainder = check.remainder(self._vector, self._assigned)
                if remainder is None:
                    return None
                after[id(check)] = remainder
        return after


def _count_ends(targets: list[list[list[int]]], finals: int) -> _Diagram:
    ends: list[list[list[int]]] = []
    below = [1] * finals
    for rows in reversed(targets):
        ends.append([list(accumulate(below[node] if node >= 0 else 0 for node in row)) for row in rows])
        below = [row[-1] if row else 0 for row in ends[-1]]
    ends.reverse()
    return _Diagram(targets, ends, below[0])


def _tied_part(dimensions: Sequence[int], sizes: Sequence[int], checks: Sequence[Check]) -> _Part:
    return _Tied(dimensions, sizes, checks) if checks else _Free(dimensions[0], sizes[dimensions[0]])


def _components(length: int, checks: Iterable[Check]) -> list[list[int]]:
    """Return the groups of dimensions that checks tie together, each in order and by its first dimension."""
    group = [{dimension} for dimension in range(length)]
    for check in checks:
        merged = set().union(*(group[dimension] for dimension in check.dimensions))
        for dimension in merged:
            group[dimension] = merged
    return sorted(sorted(members) for members in {id(members): members for members in group}.values())


def _assignment_order(dimensions: Sequence[int], checks: Sequence[Check]) -> tuple[int, ...]:
    """Order dimensions so that checks can be read early: those that need the fewest more come first."""
    order: list[int] = []
    waiting = list(checks)
    while waiting:
        check = min(waiting, key=lambda item: len(item.dimensions.difference(order)))
        waiting.remove(check)
        order.extend(sorted(check.dimensions.difference(order)))
    return tuple(order)


def _by_last_dimension(order: Sequence[int], checks: Sequence[Check]) -> list[list[Check]]:
    level_of = {dimension: level for level, dimension in enumerate(order)}
    levels: list[list[Check]] = [[] for _ in order]
    for check in checks:
        levels[max(level_of[dimension] for dimension in check.dimensions)].append(check)
    return levels


def _draw_ranks(total: int, count: int, rng: np.random.Generator) -> list[int]:
    if total < 2**63:
        drawn: list[int] = rng.integers(total, size=count).tolist()
        return drawn
    n_bytes = total.bit_length() // 8 + 8  # 64 bits to spare, so that the remainder is uniform for all purposes
    return [int.from_bytes(rng.bytes(n_bytes)) % total for _ in range(count)]
