"""Decision diagrams of constraints: count and draw the legal configs of large spaces."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    import numpy as np

    from torchx_cubicml.records.values import Scalar

    _State: TypeAlias = dict[int, Hashable]


@dataclass(frozen=True, slots=True)
class Symbolic:
    """Symbolic result of an operation, while a name that it reads is unknown.

    Args:
        key: equal for two unknowns only if they will be equal for all values of the missing names.
        whole: whether the result will be a whole number.
        list_name: name of a per-layer value of which some entries are missing; empty for all else.
        entries: the known entries of that value.
    """

    key: Hashable
    whole: bool = False
    list_name: str = ""
    entries: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class _Folded:
    """Key of a product or a sum: its known part, and the sorted keys of the unknown operands."""

    operation: str
    known: int | Fraction
    others: tuple[Hashable, ...]


def symbolic_result(operation: str, *operands: object) -> Symbolic | None:
    """Return the symbolic result if an operand is unknown, else ``None``.

    >>> x = Symbolic("x", whole=True)
    >>> symbolic_result("Mult", 8, x) == symbolic_result("Mult", symbolic_result("Mult", 2, x), 4)
    True
    """
    if not any(isinstance(operand, Symbolic) for operand in operands):
        return None
    # Only exact numbers can be folded: floats round, so that their order matters.
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


MAX_READS = 1_000_000  # entries that checks may read to build a diagram, or in one search: a second or two


@dataclass(frozen=True, slots=True)
class Check:
    """A constraint that ties dimensions together.

    Args:
        dimensions: the dimensions that it reads.
        holds: returns whether a choice vector meets it; entries of other dimensions are ignored.
        residual: returns the residual check while only some dimensions are assigned, ``None`` if it is already broken;
            equal residuals are met by the same values of the other dimensions.
    """

    dimensions: frozenset[int]
    holds: Callable[[Sequence[int]], bool]
    residual: Callable[[Sequence[int], Collection[int]], Hashable | None]


@dataclass(frozen=True, slots=True)
class DecisionDiagram:
    """Decision diagram whose paths are the legal assignments, numbered by rank.

    Args:
        targets: per level, node and choice index: the node it leads to, -1 if illegal.
        ends: per level, node and choice index: cumulative number of legal completions, up to and with this choice.
        total: number of legal assignments.
    """

    targets: list[list[list[int]]]
    ends: list[list[list[int]]]
    total: int

    def assignment(self, rank: int) -> tuple[int, ...]:
        """Return the assignment of rank ``0 <= rank < total``, in the order of the choices."""
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
    """Builder of a diagram, level by level; prefixes whose open checks have the same residuals become one node."""

    def __init__(self, dimensions: Sequence[int], sizes: Sequence[int], checks: Iterable[Check], length: int) -> None:
        self._dimensions, self._sizes = dimensions, sizes
        level_of = {dimension: level for level, dimension in enumerate(dimensions)}
        self._open_until = [(check, max(level_of[item] for item in check.dimensions)) for check in checks]
        self._vector, self._assigned = [0] * length, set[int]()

    def build(self) -> DecisionDiagram | None:
        """Return the diagram, ``None`` if building it would take more than ``MAX_READS``."""
        targets: list[list[list[int]]] = []
        prefixes: list[tuple[tuple[int, ...], _State]] = [((), {})]
        reads = 0
        for level, dimension in enumerate(self._dimensions):
            touched = [(check, last) for check, last in self._open_until if dimension in check.dimensions]
            reads += len(prefixes) * self._sizes[level] * (1 + sum(len(check.dimensions) for check, _ in touched))
            if reads > MAX_READS:
                return None
            rows, prefixes = self._level(level, prefixes, touched)
            targets.append(rows)
        return _count_ends(targets, len(prefixes))

    def _level(
        self, level: int, prefixes: list[tuple[tuple[int, ...], _State]], touched: list[tuple[Check, int]]
    ) -> tuple[list[list[int]], list[tuple[tuple[int, ...], _State]]]:
        rows: list[list[int]] = []
        nodes: dict[Hashable, int] = {}
        next_prefixes: list[tuple[tuple[int, ...], _State]] = []
        self._assigned.add(self._dimensions[level])
        for indices, state in prefixes:
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
                if node == len(next_prefixes):
                    next_prefixes.append(((*indices, index), after))
                rows[-1].append(node)
        return rows, next_prefixes

    def _state_after(self, level: int, state: _State, touched: list[tuple[Check, int]]) -> _State | None:
        """Return the residual of each open check, ``None`` if one is broken."""
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
    n_bytes = total.bit_length() // 8 + 8  # 64 spare bits make the bias of the remainder negligible
    return [int.from_bytes(rng.bytes(n_bytes)) % total for _ in range(count)]
