"""What must hold in a legal config: derived values, in dependency order and exact, and constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.trial import Scalar, Value

ALWAYS_THERE = ("world_size", "nnodes", "nproc_per_node", "dp_degree", "global_batch_size")
"""Names that every expression can read without declaring them; ``nnodes`` and ``nproc_per_node`` where known."""

NOT_DATA_PARALLEL = ("tp_degree", "pp_degree", "cp_degree")
"""Mesh axes whose ranks share their samples; 1 where absent."""

MAX_DERIVED = 2**63 - 1  # more is no value that a script could read


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One derivation or constraint, and everything that is needed to check it alone.

    Args:
        expression: of the derived value, or the predicate.
        derives: name that it derives; empty for a constraint.
        before: derivations that it needs, in dependency order.
        reads: free parameters that it depends on, through derivations too.
    """

    expression: Expression
    derives: str
    before: tuple[tuple[str, Expression], ...]
    reads: frozenset[str]

    def remainder(self, known: Mapping[str, Value | Unknown]) -> Hashable | None:
        """Return what is left to decide while some free values are unknown, ``None`` where the rule is broken anyway.

        Equal remainders are met by the same values of what is unknown.
        """
        values, undecided = dict(known), []
        try:
            for name, expression in (*self.before, (self.derives, self.expression)):
                value = expression.evaluate_partly(values)
                values[name] = value
                if isinstance(value, Unknown):
                    undecided.append(value.key)
                elif (name and not _may_be_derived(value)) or (not name and value is not True):
                    return None
        except SpaceError:
            return None
        return tuple(undecided)

    def broken(self, known: Mapping[str, Value]) -> str | None:
        """Return why facts and free values break the rule, ``None`` where they meet it."""
        values = dict(known)
        try:
            for name, expression in self.before:
                values[name] = derived_value(name, expression, values)
            if self.derives:
                derived_value(self.derives, self.expression, values)
                return None
            return None if self.expression.holds(values) else does_not_hold(self.expression, values)
        except SpaceError as error:
            return str(error)


def derived_value(name: str, expression: Expression, values: Mapping[str, Value]) -> Scalar:
    """Return what ``expression`` gives, exactly.

    Raises:
        SpaceError: it does not divide, is not positive, is too large, or cannot be calculated.
    """
    value = expression.evaluate(values)
    if not _may_be_derived(value):
        raise SpaceError(
            f"{expression.where}: {name} = {expression.source} must be above 0 and at most {MAX_DERIVED}, "
            f"got {value!r:.40}{_seen(expression, values)}"
        )
    return value


def does_not_hold(constraint: Expression, values: Mapping[str, Value]) -> str:
    """Return the sentence that says which values break a constraint."""
    return f"{constraint.where}: {constraint.source!r} does not hold{_seen(constraint, values)}"


def make_rules(
    free: Iterable[str], derivations: Mapping[str, Expression], constraints: Sequence[Expression]
) -> list[Rule]:
    """Return a rule for each derivation, in dependency order, and each constraint.

    Args:
        free: names of the free parameters.
        derivations: derived names and their expressions, in any order.
        constraints: predicates.

    Raises:
        SpaceError: a derivation is circular; the text names the cycle.
    """
    free, order = frozenset(free), in_dependency_order(derivations)

    def rule(expression: Expression, derives: str = "") -> Rule:
        needed = set(expression.names)
        for name in reversed(order):
            if name in needed:
                needed |= order[name].names
        before = tuple((name, order[name]) for name in order if name in needed)
        return Rule(expression=expression, derives=derives, before=before, reads=free & needed)

    return [rule(expression, name) for name, expression in order.items()] + [rule(item) for item in constraints]


def in_dependency_order(derivations: Mapping[str, Expression]) -> dict[str, Expression]:
    """Return the derivations so that each comes after those that it reads.

    Raises:
        SpaceError: a derivation is circular; the text names the cycle.
    """
    ordered: dict[str, Expression] = {}
    waiting = dict(derivations)
    while waiting:
        ready = [name for name, expression in waiting.items() if not expression.names & waiting.keys()]
        if not ready:
            raise SpaceError(f"a derivation is circular: {' <- '.join(_cycle(waiting))}")
        ordered |= {name: waiting.pop(name) for name in ready}
    return ordered


def data_parallel_degree(known: Mapping[str, Value]) -> int | None:
    """Return the world size over the mesh axes, ``None`` where it is unknown or does not divide.

    >>> data_parallel_degree({"world_size": 16, "tp_degree": 4})
    4
    """
    try:
        degree = dp_degree_expression(known).evaluate(known)
    except SpaceError:
        return None
    return degree if is_count(degree) else None


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def dp_degree_expression(known: Iterable[str]) -> Expression:
    """Return ``dp_degree`` as an expression of the mesh axes among ``known``.

    >>> dp_degree_expression(["world_size", "tp_degree", "cp_degree"]).source
    'world_size / (tp_degree * cp_degree)'
    """
    axes = [name for name in NOT_DATA_PARALLEL if name in set(known)]
    source = f"world_size / ({' * '.join(axes)})" if axes else "world_size"
    return parse_expression(source, where="dp_degree")


def _may_be_derived(value: Scalar) -> bool:
    return isinstance(value, bool | str) or 0 < value <= MAX_DERIVED


def _cycle(waiting: Mapping[str, Expression]) -> list[str]:
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(min(waiting[path[-1]].names & waiting.keys()))
    return path[path.index(path[-1]) :]


def _seen(expression: Expression, values: Mapping[str, Value]) -> str:
    shown = ", ".join(f"{name}={_short(values[name])}" for name in sorted(expression.names) if name in values)
    return f" with {shown}" if shown else ""


def _short(value: Value) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
