"""Enumeration of legal choice vectors: count, list and draw them under checks that tie some entries together.

Entries that no check reads are independent: a hundred layers of three choices beside a few tied numbers cost no more
than the numbers. Tied entries become a decision diagram (``decision_diagram``), or are searched depth first if the
diagram would be too large.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.decision_diagram import MAX_READS, DecisionDiagram, DiagramBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np

    from torchx_cubicml.space.decision_diagram import Check

MAX_TRIES = 200  # draws that a check may reject before depth-first search takes over


class LegalChoices:
    """All choice vectors that meet every check, with entry ``d`` in ``range(sizes[d])``."""

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
        """Tied dimensions in order, and the ``targets`` of their diagram; ``None`` without a diagram."""
        tied = [part for part in self._parts if isinstance(part, _Tied)]
        return [(part.dimensions, part.targets) for part in tied]

    @property
    def is_empty(self) -> bool:
        """Return whether it is certain that no vector is legal; decided without counting."""
        return not self._possible or any(part.is_empty for part in self._parts)

    def size(self, *, limit: int | None = None) -> int:
        """Return the number of legal vectors, at most ``limit``; ``limit`` if there are too many to count.

        Raises:
            SpaceError: there are too many to count, and no limit is given.
        """
        total = int(self._possible)
        for part in self._parts:
            total *= part.count(limit) if total else 0
            if limit is not None:
                total = min(total, limit)
        return total

    def vectors(self) -> Iterator[tuple[int, ...]]:
        """Stream the legal vectors: groups of tied dimensions in order, the last group changing fastest."""
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
        """Return ``count`` legal vectors, each drawn uniformly if its tied parts can be counted.

        Raises:
            SpaceError: no vector is legal, or no legal one was found.
        """
        if self.is_empty:
            raise SpaceError("no config is legal: cannot draw one")
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
    """Dimensions that checks tie together, in the order of their assignment."""

    def __init__(self, dimensions: Sequence[int], sizes: Sequence[int], checks: Sequence[Check]) -> None:
        self.dimensions = _assignment_order(dimensions, checks)
        self._sizes = [sizes[dimension] for dimension in self.dimensions]
        self._checks = _by_last_dimension(self.dimensions, checks)
        self._reads = [1 + sum(len(check.dimensions) for check in level) for level in self._checks]
        self._length = len(sizes)
        self._is_countless = False
        self._reads_made = 0  # by the latest search
        self._long_reads = 0  # by all long searches
        self._long_found: list[tuple[int, ...]] = []

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
        most = None if limit is None else min(limit, sys.maxsize)
        if not self._is_countless:
            try:
                return sum(1 for _ in islice(self._walk(most=MAX_READS), most))
            except _TooManyReadsError:
                self._is_countless = True
        if limit is not None:
            return limit
        raise SpaceError(
            f"too many legal configs to count: constraints link {len(self.dimensions)} choices; "
            "count up to a limit, or set groups"
        )

    def assignments(self) -> Iterator[tuple[int, ...]]:
        return map(self._diagram.assignment, range(self._diagram.total)) if self._diagram else self._walk()

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        if self._diagram:
            return self._diagram.draw(count, rng)
        return list(self._search(count, rng))

    def _search(self, count: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
        """Draw by rejection, uniformly, while one draw in ``MAX_TRIES`` is legal; afterwards by depth-first search."""
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
        """Return the first result of a bounded search; after enough long searches, a result of an earlier one."""
        found = None
        if self._long_reads <= MAX_READS or not self._long_found:
            with suppress(_TooManyReadsError):
                found = next(self._walk(most=MAX_READS, rng=rng), None)
            if self._reads_made > MAX_READS // 20:
                self._long_reads += self._reads_made
                self._long_found += [found] if found is not None else []
        if found is None and self._long_found:
            found = self._long_found[int(rng.integers(len(self._long_found)))]
        if found is None:
            raise SpaceError(
                f"no legal config found in a bounded search: constraints link {len(self.dimensions)} choices"
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
            self._reads_made = reads
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
    def _diagram(self) -> DecisionDiagram | None:
        checks = [check for level in self._checks for check in level]
        return DiagramBuilder(self.dimensions, self._sizes, checks, self._length).build()


class _TooManyReadsError(Exception):
    """Raised when a search reaches its bound before it has an answer."""


def _tied_part(dimensions: Sequence[int], sizes: Sequence[int], checks: Sequence[Check]) -> _Part:
    return _Tied(dimensions, sizes, checks) if checks else _Free(dimensions[0], sizes[dimensions[0]])


def _components(length: int, checks: Iterable[Check]) -> list[list[int]]:
    """Return the connected components of dimensions under the checks, each sorted, ordered by first dimension."""
    group = [{dimension} for dimension in range(length)]
    for check in checks:
        merged = set().union(*(group[dimension] for dimension in check.dimensions))
        for dimension in merged:
            group[dimension] = merged
    return sorted(sorted(members) for members in {id(members): members for members in group}.values())


def _assignment_order(dimensions: Sequence[int], checks: Sequence[Check]) -> tuple[int, ...]:
    """Order dimensions greedily so that checks can be read early: the check with the fewest missing ones is next."""
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
