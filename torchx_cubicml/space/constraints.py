"""Constraints over configs and conditional parameters, compiled for checking many configs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.standard_names import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH
from torchx_cubicml.space.arithmetic import truth
from torchx_cubicml.space.decision_diagram import Symbolic, symbolic_result
from torchx_cubicml.space.expression import Expression, parse_expression

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.values import Value


@dataclass(frozen=True, slots=True)
class Conditional:
    """A conditional parameter: its chosen or derived value while a condition holds, else its idle value.

    Args:
        name: name of the parameter.
        when: the condition.
        derive: expression of its value; ``None`` if it is chosen.
        idle: its value while the condition does not hold.
    """

    name: str
    when: Expression
    derive: Expression | None
    idle: Value

    @property
    def chosen(self) -> str:
        """Name of its chosen value; no expression can read it."""
        return f"{self.name}, if used"

    @property
    def names(self) -> frozenset[str]:
        """Names that it reads."""
        return self.when.names | (self.derive.names if self.derive is not None else {self.chosen})

    @property
    def where(self) -> str:
        """Place in a space file, for messages."""
        return self.when.where

    @property
    def source(self) -> str:
        """Source text, for messages."""
        then = self.derive.source if self.derive is not None else self.name
        return f"{then} while {self.when.source}"

    def counts(self, values: Mapping[str, Value | Symbolic]) -> bool | Symbolic:
        """Return whether the condition holds, as a symbolic value while some of ``values`` are unknown.

        Raises:
            SpaceError: the condition cannot be calculated, or is neither true nor false.
        """
        holds = self.when.evaluate_partly(values)
        return holds if isinstance(holds, Symbolic) else truth(holds, self.when.source)

    def evaluate_partly(self, values: Mapping[str, Value | Symbolic]) -> Value | Symbolic:
        """Return the value, symbolic while it is unknown.

        Raises:
            SpaceError: the condition, or the derived value while it holds, cannot be calculated.
        """
        counts = self.counts(values)
        if isinstance(counts, Symbolic):
            then = Symbolic(self.name) if self.derive is not None else values[self.chosen]
            return symbolic_result("when", counts, then) or counts
        if not counts:
            return self.idle
        return values[self.chosen] if self.derive is None else self.derive.evaluate_partly(values)


@dataclass(frozen=True, slots=True)
class IdleCanonicalChoice:
    """Rule that allows an idle parameter its first choice only, so that each config is counted and drawn once.

    Args:
        conditional: the parameter, which is chosen and not derived.
        first: its value at the first choices.
    """

    conditional: Conditional
    first: Value

    def broken(self, values: Mapping[str, Value]) -> bool:
        """Return whether the parameter is idle and has another than the first choice.

        Raises:
            SpaceError: the condition cannot be calculated.
        """
        return self.conditional.counts(values) is False and values[self.conditional.chosen] != self.first

    def residual(self, values: Mapping[str, Value | Symbolic]) -> Hashable | None:
        """Return the residual rule while some of ``values`` are unknown, ``None`` if it is broken in any case.

        Raises:
            SpaceError: the condition cannot be calculated.
        """
        counts, chosen = self.conditional.counts(values), values[self.conditional.chosen]
        if counts is True:
            return ()
        if isinstance(chosen, Symbolic):
            entry = self.first[0] if isinstance(self.first, tuple) else self.first
            differs = any(known != entry for known in chosen.entries)
        else:
            differs = chosen != self.first
        if isinstance(counts, Symbolic):
            return (counts.key, differs)
        return None if differs else ("idle",)


Derivation: TypeAlias = Expression | Conditional

PREDEFINED_NAMES = ("world_size", "nnodes", "nproc_per_node", "dp_degree", "global_batch_size")
"""Names that every expression can read without declaring them; ``nnodes`` and ``nproc_per_node`` only if known."""

NOT_DATA_PARALLEL = ("tp_degree", "pp_degree", "cp_degree")
"""Mesh axes whose ranks share their samples; 1 if absent."""

IN_BATCH = frozenset({MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH, *NOT_DATA_PARALLEL})
"""Parameters on which the global batch size depends."""

MAX_DERIVED = 2**63 - 1  # a script could not read a larger value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule (a derivation, constraint or idle parameter) with everything that is needed to check it alone.

    Args:
        expression: expression of the derived value, or the condition that must hold.
        derives: name of the derived value; empty for a condition.
        before: derivations that it needs, in dependency order.
        reads: free parameters that it depends on, directly or through derivations.
    """

    expression: Derivation | IdleCanonicalChoice
    derives: str
    before: tuple[tuple[str, Derivation], ...]
    reads: frozenset[str]

    @property
    def text(self) -> str:
        """The rule with its place, for messages."""
        if isinstance(self.expression, IdleCanonicalChoice):
            return self.expression.conditional.source
        if self.derives:
            return f"{self.derives} = {self.expression.source}"
        return f"{self.expression.where}: {self.expression.source!r}"

    def residual(self, known: Mapping[str, Value | Symbolic]) -> Hashable | None:
        """Return the residual rule while some free values are unknown, ``None`` if the rule is broken in any case.

        Equal residuals are met by the same values of the unknowns.
        """
        values, undecided = dict(known), []
        try:
            for name, derivation in self.before:
                value = derivation.evaluate_partly(values)
                if isinstance(value, Symbolic):
                    # A chosen value cannot fail: only what is calculated from it is left to decide.
                    undecided += [value.key] if _can_fail(derivation) else []
                elif not _may_be_derived(derivation, value):
                    return None
                values[name] = value
            last = self._last_residual(values)
        except SpaceError:
            return None
        return None if last is None else (*undecided, last)

    def _last_residual(self, values: Mapping[str, Value | Symbolic]) -> Hashable | None:
        if isinstance(self.expression, IdleCanonicalChoice):
            return self.expression.residual(values)
        value = self.expression.evaluate_partly(values)
        if isinstance(value, Symbolic):
            return ("undecided", value.key)
        met = _may_be_derived(self.expression, value) if self.derives else value is True
        return "met" if met else None

    def holds(self, known: Mapping[str, Value]) -> bool:
        """Return whether facts and free values meet the rule; searches ask so often that a reason would cost much."""
        if self.before or self.derives or not isinstance(self.expression, Expression):
            return self.broken(known) is None
        try:
            return self.expression.holds(known)
        except SpaceError:
            return False

    def broken(self, known: Mapping[str, Value]) -> str | None:
        """Return the reason why facts and free values break the rule, ``None`` if they meet it."""
        values = dict(known)
        try:
            for name, derivation in self.before:
                values[name] = derived_value(name, derivation, values)
            return self._last_broken(values)
        except SpaceError as error:
            return str(error)

    def _last_broken(self, values: Mapping[str, Value]) -> str | None:
        if isinstance(self.expression, IdleCanonicalChoice):
            name = self.expression.conditional.name
            return f"{name} is idle and has another than its first choice" if self.expression.broken(values) else None
        if self.derives:
            derived_value(self.derives, self.expression, values)
            return None
        if isinstance(self.expression, Conditional) or self.expression.holds(values):
            return None
        return violation_text(self.expression, values)


def derived_value(name: str, derivation: Derivation, values: Mapping[str, Value]) -> Value:
    """Return the exact value of a derivation.

    Raises:
        SpaceError: the value does not divide, is not positive, is too large, or cannot be calculated.
    """
    value = derivation.evaluate_partly(values)
    if isinstance(value, Symbolic):
        raise SpaceError(f"{derivation.where}: {name} = {derivation.source}: the result is unknown")
    if not _may_be_derived(derivation, value):
        raise SpaceError(
            f"{derivation.where}: {name} = {derivation.source} must be above 0 and at most {MAX_DERIVED}, "
            f"got {value!r:.40}{_values_suffix(derivation, values)}"
        )
    return value


def violation_text(constraint: Expression, values: Mapping[str, Value]) -> str:
    """Return the message on a broken constraint, with its values."""
    return f"{constraint.where}: {constraint.source!r} does not hold{_values_suffix(constraint, values)}"


def make_rules(
    free: Iterable[str], derivations: Mapping[str, Derivation], constraints: Sequence[Expression]
) -> list[Rule]:
    """Return a rule for each derived value, in dependency order, and each constraint.

    Args:
        free: names of the chosen values.
        derivations: derived names and their derivations, in any order.
        constraints: predicates.

    Raises:
        SpaceError: a derivation is circular; the text names the cycle.
    """
    make, order = _RuleMaker(free, derivations), in_dependency_order(derivations)
    exact = {name: item for name, item in order.items() if isinstance(item, Expression) or item.derive is not None}
    return [make.rule(item, item.names, name) for name, item in exact.items()] + [
        make.rule(item, item.names) for item in constraints
    ]


def make_idle_rules(first: Mapping[str, Value], derivations: Mapping[str, Derivation]) -> list[Rule]:
    """Return a rule for each conditional parameter that is chosen: while idle, it has its first choice.

    Args:
        first: the first choice of each free parameter, by the name of its chosen value.
        derivations: derived names and their derivations, in any order.
    """
    make = _RuleMaker(first, derivations)
    chosen = [item for item in derivations.values() if isinstance(item, Conditional) and item.derive is None]
    return [make.rule(IdleCanonicalChoice(item, first[item.chosen]), item.names) for item in chosen]


class _RuleMaker:
    """Builder of rules with the derivations and the free parameters that they need."""

    def __init__(self, free: Iterable[str], derivations: Mapping[str, Derivation]) -> None:
        self._free, self._order = frozenset(free), in_dependency_order(derivations)

    def rule(self, expression: Derivation | IdleCanonicalChoice, names: Iterable[str], derives: str = "") -> Rule:
        needed = set(names)
        for name in reversed(self._order):
            if name in needed:
                needed |= self._order[name].names
        before = tuple((name, self._order[name]) for name in self._order if name in needed)
        return Rule(expression=expression, derives=derives, before=before, reads=self._free & needed)


def in_dependency_order(derivations: Mapping[str, Derivation]) -> dict[str, Derivation]:
    """Return the derivations in topological order: each comes after those that it reads.

    Raises:
        SpaceError: a derivation is circular; the text names the cycle.
    """
    ordered: dict[str, Derivation] = {}
    waiting = dict(derivations)
    while waiting:
        ready = [name for name, expression in waiting.items() if not expression.names & waiting.keys()]
        if not ready:
            raise SpaceError(f"circular derivation: {' <- '.join(_cycle(waiting))}")
        ordered |= {name: waiting.pop(name) for name in ready}
    return ordered


def data_parallel_degree(known: Mapping[str, Value]) -> int | None:
    """Return the world size divided by the mesh axes, ``None`` if it is unknown or does not divide.

    >>> data_parallel_degree({"world_size": 16, "tp_degree": 4})
    4
    """
    try:
        degree = dp_degree_expression(known).evaluate(known)
    except SpaceError:
        return None
    return degree if is_count(degree) else None


def stated_dp_degree(workload: Mapping[str, Value], config: Mapping[str, Value]) -> int | None:
    """Return the ``dp_degree`` that a config or its workload states, else the one that follows from the mesh axes.

    A workload's own one does not count where the config decides the ranks or an axis.

    >>> stated_dp_degree({"world_size": 4}, {"dp_degree": 2}), stated_dp_degree({"world_size": 4, "dp_degree": 2}, {})
    (2, 2)
    >>> stated_dp_degree({"world_size": 4, "dp_degree": 2}, {"tp_degree": 1})
    4
    """
    decided = not config.keys().isdisjoint({"world_size", "nnodes", "nproc_per_node", *NOT_DATA_PARALLEL})
    stated = config.get("dp_degree", None if decided else workload.get("dp_degree"))
    return stated if is_count(stated) else data_parallel_degree({**workload, **config})


def batch_derivation(micro_batch: str = MICRO_BATCH) -> str:
    """Return the derivation that makes the accumulation keep the global batch.

    >>> batch_derivation("sequences")
    'global_batch_size / (sequences * dp_degree)'
    """
    return f"{GLOBAL_BATCH} / ({micro_batch} * dp_degree)"


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def dp_degree_expression(known: Iterable[str]) -> Expression:
    """Return ``dp_degree`` as an expression of the mesh axes among ``known``.

    >>> dp_degree_expression(["world_size", "tp_degree", "cp_degree"]).source
    'world_size / (tp_degree * cp_degree)'
    """
    axes = [name for name in NOT_DATA_PARALLEL if name in set(known)]
    source = f"world_size / ({' * '.join(axes)})" if axes else "world_size"
    return parse_expression(source, where="dp_degree")


def _may_be_derived(derivation: Derivation, value: Value) -> bool:
    if isinstance(value, tuple | bool | str):
        return True
    if isinstance(derivation, Conditional) and (not _can_fail(derivation) or value == derivation.idle):
        return True
    return 0 < value <= MAX_DERIVED


def _can_fail(derivation: Derivation) -> bool:
    return isinstance(derivation, Expression) or derivation.derive is not None


def _cycle(waiting: Mapping[str, Derivation]) -> list[str]:
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(min(waiting[path[-1]].names & waiting.keys()))
    return path[path.index(path[-1]) :]


def _values_suffix(derivation: Derivation, values: Mapping[str, Value]) -> str:
    shown = ", ".join(f"{name}={_short(values[name])}" for name in sorted(derivation.names) if name in values)
    return f" with {shown}" if shown else ""


def _short(value: Value) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
