"""Legal configs: choice vectors to values and back, under derivations, constraints and facts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.constraints import (
    NOT_DATA_PARALLEL,
    IdleCanonicalChoice,
    derived_value,
    dp_degree_expression,
    in_dependency_order,
    make_idle_rules,
    make_rules,
    violation_text,
)
from torchx_cubicml.space.decision_diagram import Check, Symbolic
from torchx_cubicml.space.enumeration import LegalChoices

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.values import Config, Scalar, Value
    from torchx_cubicml.space.constraints import Conditional, Derivation, Rule
    from torchx_cubicml.space.expression import Expression


@dataclass(frozen=True, slots=True)
class FreeParameter:
    """A free parameter: its value is chosen, not derived.

    Args:
        name: name of the parameter.
        choices: legal values of one entry.
        blocks: for each choice, the entries of the value that it sets; ``None`` for a single value.
        conditional: condition under which it counts, with its idle value; ``None`` for always.
    """

    name: str
    choices: tuple[Scalar, ...]
    blocks: tuple[tuple[int, ...], ...] | None = None
    conditional: Conditional | None = None

    @property
    def chosen(self) -> str:
        """Name of the chosen value."""
        return self.name if self.conditional is None else self.conditional.chosen

    @property
    def first(self) -> Value:
        """Value at the first choices."""
        return (
            self.choices[0] if self.blocks is None else tuple(self.choices[0] for block in self.blocks for _ in block)
        )

    @property
    def n_dimensions(self) -> int:
        """Number of choices that make up the value."""
        return 1 if self.blocks is None else len(self.blocks)


class LegalConfigs:
    """Legal values of all free parameters together; a choice vector has their dimensions one after the other."""

    def __init__(
        self,
        free: Sequence[FreeParameter],
        *,
        derivations: Mapping[str, Derivation],
        constraints: Sequence[Expression],
        facts: Mapping[str, Value],
    ) -> None:
        """Build the rules of a bound space.

        Raises:
            SpaceError: a name is unknown, or a derivation is circular.
        """
        self._facts, self._constraints = dict(facts), tuple(constraints)
        self._free = {parameter.chosen: parameter for parameter in free}
        self._start, start = {}, 0
        for parameter in free:
            self._start[parameter.chosen] = start
            start += parameter.n_dimensions
        conditionals = {item.name: item.conditional for item in free if item.conditional is not None}
        derivations = {**derivations, **conditionals}
        tuned = {*derivations, *(item.name for item in free)}
        derivations = _with_dp_degree(derivations, tuned=tuned, known=tuned | facts.keys())
        known = tuned | facts.keys() | derivations.keys()
        _check_names([*derivations.values(), *constraints], known, chosen=set(self._free))
        self._derivations = in_dependency_order(derivations)
        firsts = {name: parameter.first for name, parameter in self._free.items()}
        self._rules = make_rules(self._free, self._derivations, constraints) + make_idle_rules(
            firsts, self._derivations
        )
        self._sizes = [len(item.choices) for item in free for _ in range(item.n_dimensions)]
        self._index = {
            item.name: {(kind(value), value): index for index, value in enumerate(item.choices)} for item in free
        }

    @cached_property
    def choices(self) -> LegalChoices:
        """Legal choice vectors."""
        return LegalChoices(self._sizes, [self._check(rule) for rule in self._rules])

    def values(self, choice: Sequence[int]) -> dict[str, Value]:
        """Return the facts and the values of the free parameters at a choice vector.

        Raises:
            SpaceError: there is not one index per dimension, or one is out of range.
        """
        if len(choice) != len(self._sizes) or any(
            not 0 <= index < size for index, size in zip(choice, self._sizes, strict=True)
        ):
            raise SpaceError(
                f"a choice vector needs {len(self._sizes)} indices, each below its dimension's number of choices"
            )
        return self._facts | {name: self._value(name, choice) for name in self._free}

    def complete(self, values: dict[str, Value]) -> str | None:
        """Add the derived values to ``values``; return ``None``, or a sentence on the first broken rule."""
        try:
            for name, derivation in self._derivations.items():
                values[name] = derived_value(name, derivation, values)
            for constraint in self._constraints:
                if not constraint.holds(values):
                    return violation_text(constraint, values)
        except SpaceError as error:
            return str(error)
        return None

    def reads(self, name: str) -> tuple[int, ...]:
        """Return the dimensions on which the value of a parameter depends, in order."""
        chosen = self._needed(name) & self._free.keys()
        spans = (range(self._start[item], self._start[item] + self._free[item].n_dimensions) for item in chosen)
        return tuple(sorted(dimension for span in spans for dimension in span))

    def value(self, name: str, choice: Sequence[int]) -> Value:
        """Return the value of one parameter at a legal choice vector, of which only the dimensions in ``reads`` count.

        Raises:
            SpaceError: the value cannot be derived there.
        """
        needed = self._needed(name)
        values = self._facts | {item: self._value(item, choice) for item in needed & self._free.keys()}
        for item, derivation in self._derivations.items():
            if item in needed:
                values[item] = derived_value(item, derivation, values)
        return values[name]

    def _needed(self, name: str) -> set[str]:
        needed = {name}
        for item in reversed(self._derivations):
            if item in needed:
                needed |= self._derivations[item].names
        return needed

    def encode(self, config: Config) -> tuple[int, ...]:
        """Return the choice vector of the free parameters in ``config``.

        Raises:
            SpaceError: one is missing, or its value is not among the choices.
        """
        indices: list[int] = []
        known = self.completed(config)
        for parameter in self._free.values():
            name = parameter.name
            if name not in config:
                raise SpaceError(f"{name} is missing; choose from {_listed(parameter.choices)}")
            if parameter.conditional is not None and not parameter.conditional.when.holds(known):
                _check_idle_value(parameter.conditional, config[name])
                indices.extend([0] * parameter.n_dimensions)
            else:
                indices.extend(self._encode_value(parameter, config[name]))
        return tuple(indices)

    def completed(self, config: Config) -> dict[str, Value]:
        """Return facts, the values of ``config``, and the missing derived values that can be calculated."""
        values: dict[str, Value] = {**self._facts, **config}
        for name, derivation in self._derivations.items():
            if name not in config:
                with suppress(SpaceError, KeyError):
                    values[name] = derived_value(name, derivation, values)
        return values

    def depends_on_choice(self, expression: Expression) -> bool:
        """Return whether all names of an expression are known, and its value depends on a free parameter."""
        known = self._facts.keys() | self._derivations.keys() | {item.name for item in self._free.values()}
        needed = set[str]().union(*(self._needed(name) for name in expression.names))
        return expression.names <= known and bool(needed & self._free.keys())

    def left_by_each_rule(self, *, limit: int) -> tuple[int, list[tuple[Rule, int]]]:
        """Return the number of combinations, and each rule that excludes some with the number that it leaves.

        A rule counts with the derivations that it needs, and is left out if these alone exclude as many. An idle
        parameter has one value. No number is above ``limit``.
        """
        idle = [rule for rule in self._rules if isinstance(rule.expression, IdleCanonicalChoice)]
        derived = {rule.derives: rule for rule in self._rules if rule.derives}

        def count(rules: Iterable[Rule]) -> int:
            return LegalChoices(self._sizes, [self._check(rule) for rule in (*idle, *rules)]).size(limit=limit)

        total, effects = count([]), []
        for rule in self._rules:
            needed = [derived[name] for name, _ in rule.before if name in derived]
            if not isinstance(rule.expression, IdleCanonicalChoice):
                left = count([*needed, rule])
                effects += [(rule, left)] if left < (count(needed) if needed else total) else []
        return total, effects

    def refuse_empty(self) -> None:
        """Check that at least one config is legal.

        Raises:
            SpaceError: none is; the message names the rules that exclude all of them.
        """
        if not self.choices.is_empty:
            return
        for rule in self._rules:
            if self._is_infeasible([rule]):
                reason = rule.broken(self.values([0] * len(self._sizes)))
                raise SpaceError(f"no config is legal: all break {rule.text}; the first: {reason}")
        together = "; ".join(rule.text for rule in self._conflict())
        raise SpaceError(f"no config is legal: none satisfies all of: {together}")

    def _conflict(self) -> list[Rule]:
        """Return a minimal conflict: rules that together exclude every config, and no longer without any one."""
        kept = list(self._rules)
        for rule in self._rules:
            others = [other for other in kept if other is not rule]
            if self._is_infeasible(others):
                kept = others
        return kept

    def _is_infeasible(self, rules: Sequence[Rule]) -> bool:
        return LegalChoices(self._sizes, [self._check(rule) for rule in rules]).is_empty

    def _check(self, rule: Rule) -> Check:
        dimensions = {
            self._start[name] + offset for name in rule.reads for offset in range(self._free[name].n_dimensions)
        }

        def holds(choice: Sequence[int]) -> bool:
            values = self._facts | {name: self._value(name, choice) for name in rule.reads}
            return rule.holds(values)

        def residual(choice: Sequence[int], assigned: Collection[int]) -> Hashable | None:
            return rule.residual(
                self._facts | {name: self._value_so_far(name, choice, assigned) for name in rule.reads}
            )

        return Check(frozenset(dimensions), holds, residual)

    def _value(self, name: str, choice: Sequence[int]) -> Value:
        parameter, start = self._free[name], self._start[name]
        if parameter.blocks is None:
            return parameter.choices[choice[start]]
        return tuple(
            parameter.choices[choice[start + number]] for number, block in enumerate(parameter.blocks) for _ in block
        )

    def _value_so_far(self, name: str, choice: Sequence[int], assigned: Collection[int]) -> Value | Symbolic:
        parameter, start = self._free[name], self._start[name]
        missing = [number for number in range(parameter.n_dimensions) if start + number not in assigned]
        if not missing:
            return self._value(name, choice)
        if parameter.blocks is None:
            return Symbolic(name, whole=all(type(item) is int for item in parameter.choices))
        known = tuple(
            (block[0], parameter.choices[choice[start + number]])
            for number, block in enumerate(parameter.blocks)
            if start + number in assigned
        )
        return Symbolic((name, known), list_name=name, entries=tuple(entry for _, entry in known))

    def _encode_value(self, parameter: FreeParameter, value: Value) -> list[int]:
        if parameter.blocks is None:
            return [self._index_of(parameter, value)]
        length = sum(len(block) for block in parameter.blocks)
        if not isinstance(value, tuple) or len(value) != length:
            raise SpaceError(f"{parameter.name} must have {length} entries, got {value!r:.80}")
        indices: list[int] = []
        for block in parameter.blocks:
            entries = {self._index_of(parameter, value[entry], entry) for entry in block}
            if len(entries) > 1:
                raise SpaceError(f"{parameter.name}: entries {block[0]} to {block[-1]} are one group and must be equal")
            indices.extend(entries)
        return indices

    def _index_of(self, parameter: FreeParameter, value: Value, entry: int | None = None) -> int:
        index = None if isinstance(value, list | tuple) else self._index[parameter.name].get((kind(value), value))
        if index is None:
            where = parameter.name if entry is None else f"{parameter.name}[{entry}]"
            raise SpaceError(f"{where} = {value!r:.80} is not legal; choose from {_listed(parameter.choices)}")
        return index


def _with_dp_degree(
    derivations: Mapping[str, Derivation], *, tuned: set[str], known: set[str]
) -> Mapping[str, Derivation]:
    """Add ``dp_degree`` if the config determines it: it is then derived like any other, and must divide exactly."""
    decided_by_config = bool(tuned & {"world_size", *NOT_DATA_PARALLEL})
    if "dp_degree" in known or "world_size" not in known or not decided_by_config:
        return derivations
    return {**derivations, "dp_degree": dp_degree_expression(known)}


def _check_idle_value(conditional: Conditional, value: Value) -> None:
    if value != conditional.idle or _kinds(value) != _kinds(conditional.idle):
        raise SpaceError(
            f"{conditional.name} = {value!r:.80} is not legal; it must be {conditional.idle!r:.80} unless "
            f"{conditional.when.source}"
        )


def _kinds(value: Value) -> object:
    return tuple(map(kind, value)) if isinstance(value, tuple) else kind(value)


def _check_names(expressions: Sequence[Derivation], known: set[str], *, chosen: set[str]) -> None:
    for expression in expressions:
        missing = sorted(expression.names - known - chosen)
        if missing:
            hint = (
                " (computed if the command sets micro_batch_size and the world size is known)"
                if "global_batch_size" in missing
                else ""
            )
            raise SpaceError(
                f"{expression.where}: {expression.source!r} needs {', '.join(missing)}, unknown for this "
                f"workload{hint}; known: {', '.join(sorted(known))}"
            )


def _listed(choices: Sequence[Scalar]) -> str:
    shown = ", ".join(repr(choice) for choice in choices[:12])
    return f"{shown}, ... ({len(choices)} in all)" if len(choices) > 12 else shown
