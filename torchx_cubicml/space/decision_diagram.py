"""Decision diagram of a constraint: counts and draws legal configs of large spaces."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    import numpy as np

    from torchx_cubicml.records.trial import Scalar

    _State: TypeAlias = dict[int, Hashable]


@dataclass(frozen=True, slots=True)
class Symbolic:
    """What an operation gives while a name that it reads is not known yet.

    Args:
        key: equal for two unknowns only if they turn out alike, whatever the missing names will be.
        whole: whether it will be a whole number.
        list_name: name of a per-layer value of which some entries are missing; empty for all else.
        entries: those that are known already.
    """

    key: Hashable
    whole: bool = False
    list_name: str = ""
    entries: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class _Folded:
    """Key of a product or a sum: its known part, and the keys of the others in an order of their own."""

    operation: str
    known: int | Fraction
    others: tuple[Hashable, ...]


def postponed(operation: str, *operands: object) -> Symbolic | None:
    """Return the unknown result where an operand is unknown, else ``None``.

    >>> x = Unknown("x", whole=True)
    >>> postponed("Mult", 8, x) == postponed("Mult", postponed("Mult", 2, x), 4)
    True
    """
    if not any(isinstance(operand, Symbolic) for operand in operands):
        return None
    # Floats round, so that their order matters; exact numbers can be folded.
    if operation in _NEUTRAL and all(_is_whole(operand) for operand in operands):
        return Symbolic(_fold(operation, operands), whole=True)
    return Symbolic((operation, *(_key(operand) for operand in operands)))


def _fold(operation: str, operands: Sequence[object]) -> _Folded:
    known: int | Fraction = _NEUTRAL[operation]
    others: list[Hashable] = []
    for operand in operands:
        part: int | Fraction = _NEUTRAL[operation]
        key = operand.key if isinstance(operand, Symbolic) else operand
        if isinstance(key, _Folded) and key.operation == operation:
            part = key.known
            others.extend(key.others)
        elif isinstance(operand, int | Fraction):
            part = operand
        else:
            others.append(_key(operand))
        known = known * part if operation == "Mult" else known + part
    return _Folded(operation, known, tuple(sorted(others, key=repr)))


def _is_whole(operand: object) -> bool:
    if isinstance(operand, Symbolic):
        return operand.whole
    return isinstance(operand, int | Fraction) and not isinstance(operand, bool)


def _key(operand: object) -> Hashable:
    if isinstance(operand, Symbolic):
        return operand.key
    if isinstance(operand, tuple):
        return ("tuple", *map(_key, operand))
    return (type(operand).__name__, operand if isinstance(operand, bool | int | float | str | Fraction) else None)


_NEUTRAL = {"Mult": 1, "Add": 0}


MAX_READS = 1_000_000  # entries that checks read to build a diagram, or in one search: a second or two


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
    residual: Callable[[Sequence[int], Collection[int]], Hashable | None]


@dataclass(frozen=True, slots=True)
class DecisionDiagram:
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

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Return ``count`` assignments, each drawn uniformly."""
        return [self.assignment(rank) for rank in drawn_ranks(self.total, count, rng)]


class DiagramBuilder:
    """Builds the diagram level by level; beginnings whose open checks leave the same to decide become one node."""

    def __init__(self, dimensions: Sequence[int], sizes: Sequence[int], checks: Iterable[Check], length: int) -> None:
        self._dimensions, self._sizes = dimensions, sizes
        level_of = {dimension: level for level, dimension in enumerate(dimensions)}
        self._open_until = [(check, max(level_of[item] for item in check.dimensions)) for check in checks]
        self._vector, self._assigned = [0] * length, set[int]()

    def build(self) -> DecisionDiagram | None:
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
                residual = check.residual(self._vector, self._assigned)
                if residual is None:
                    return None
                after[id(check)] = residual
        return after


def _count_ends(targets: list[list[list[int]]], finals: int) -> DecisionDiagram:
    ends: list[list[list[int]]] = []
    below = [1] * finals
    for rows in reversed(targets):
        ends.append([list(accumulate(below[node] if node >= 0 else 0 for node in row)) for row in rows])
        below = [row[-1] if row else 0 for row in ends[-1]]
    ends.reverse()
    return DecisionDiagram(targets, ends, below[0])


def drawn_ranks(total: int, count: int, rng: np.random.Generator) -> list[int]:
    """Return ``count`` numbers in ``range(total)``, each drawn uniformly however large ``total`` is."""
    if total < 2**63:
        drawn: list[int] = rng.integers(total, size=count).tolist()
        return drawn
    n_bytes = total.bit_length() // 8 + 8  # 64 bits to spare, so that the remainder is uniform for all purposes
    return [int.from_bytes(rng.bytes(n_bytes)) % total for _ in range(count)]
