"""Evaluation of expressions as abstract values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    FunctionValue,
    Instance,
    LibraryName,
    ModuleValue,
)
from torchx_cubicml.launch.source_models.value_operations import (
    MOST_CHARACTERS,
    MOST_ROUNDS,
    either,
    get_item,
    items_of,
    n_entries,
    operate,
    same,
    truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Names: TypeAlias = dict[str, object]
AROUND = "__around__"
"""Name under which a scope has the scope around it."""
_MOST_STEPS = 400_000  # statements and expressions of one program: a second or so

_ENTRIES_A_STEP = 10  # that an operation passes in the time of a step


class OutOfSteps(Exception):  # noqa: N818 - it ends an interpretation, and is no error
    """End of an interpretation that takes too long."""


class Evaluator:
    """Evaluator of expressions; what calls and attributes are is left to its subclasses."""

    def __init__(self) -> None:
        self._steps = 0
        self._spoiled: dict[int, object] = {}

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > _MOST_STEPS:
            raise OutOfSteps

    def value(self, node: ast.expr, names: Names) -> object:
        """Return the value of an expression; unknown where the text does not tell it."""
        self._step()
        method = _EXPRESSIONS.get(type(node))
        found = UNKNOWN if method is None else getattr(self, method)(node, names)
        if isinstance(found, list | tuple | dict):
            self._step(n_entries(found) // _ENTRIES_A_STEP)
        return UNKNOWN_OBJECT if id(found) in self._spoiled else found

    def _spoil(self, owner: object) -> None:
        """Make unknown what an object holds: it is changed in a way that is not followed."""
        if isinstance(owner, ModuleValue):
            owner.is_open = True
        elif isinstance(owner, Instance):
            owner.kind, owner.attributes = None, {}
        elif isinstance(owner, list | dict):
            self._spoiled[id(owner)] = owner

    def _call(self, node: ast.Call, names: Names) -> object:
        raise NotImplementedError

    def _attribute(self, node: ast.Attribute, names: Names) -> object:
        raise NotImplementedError

    def _bind(self, target: ast.expr, value: object, names: Names) -> None:
        raise NotImplementedError

    def _constant(self, node: ast.Constant, names: Names) -> object:
        return node.value

    def _name(self, node: ast.Name, names: Names) -> object:
        scope: object = names
        while isinstance(scope, dict):
            if node.id in scope:
                return scope[node.id]
            scope = scope.get(AROUND)
        return LibraryName(node.id)

    def _binary(self, node: ast.BinOp, names: Names) -> object:
        return operate(type(node.op), self.value(node.left, names), self.value(node.right, names))

    def _unary(self, node: ast.UnaryOp, names: Names) -> object:
        operand = self.value(node.operand, names)
        if isinstance(node.op, ast.Not):
            known = truth(operand)
            return UNKNOWN if known is None else not known
        return -operand if isinstance(node.op, ast.USub) and isinstance(operand, int | float) else UNKNOWN

    def _bool(self, node: ast.BoolOp, names: Names) -> object:
        is_and, unknown = isinstance(node.op, ast.And), False
        value: object = UNKNOWN
        for each in node.values:
            value = self.value(each, names)
            known = truth(value)
            if known is not None and known != is_and:
                return value if not unknown else not is_and
            unknown = unknown or known is None
        return UNKNOWN if unknown else value

    def _compare(self, node: ast.Compare, names: Names) -> object:
        if len(node.ops) != 1:
            return UNKNOWN
        return operate(type(node.ops[0]), self.value(node.left, names), self.value(node.comparators[0], names))

    def _conditional(self, node: ast.IfExp, names: Names) -> object:
        test = truth(self.value(node.test, names))
        if test is not None:
            return self.value(node.body if test else node.orelse, names)
        one, other = self.value(node.body, names), self.value(node.orelse, names)
        return one if same(one, other) else either(one, other)

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set, names: Names) -> object:
        entries: list[object] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                items = items_of(self.value(each.value, names))
                if items is None:
                    return UNKNOWN
                entries += items
            else:
                entries.append(self.value(each, names))
        return tuple(entries) if isinstance(node, ast.Tuple) else entries

    def _dict(self, node: ast.Dict, names: Names) -> object:
        table: dict[object, object] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each, names)
            if key is None and isinstance(value, dict):
                table |= value
                continue
            name = self.value(key, names) if key is not None else UNKNOWN
            if not isinstance(name, str | int | float | bool):
                return UNKNOWN
            table[name] = value
        return table

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, names: Names) -> object:
        found: list[object] = []
        return (
            found
            if self._generate(node.generators, names, lambda inner: found.append(self.value(node.elt, inner)))
            else UNKNOWN
        )

    def _dict_comprehension(self, node: ast.DictComp, names: Names) -> object:
        found: dict[object, object] = {}

        def add(inner: Names) -> None:
            key = self.value(node.key, inner)
            if isinstance(key, str | int):
                found[key] = self.value(node.value, inner)

        return found if self._generate(node.generators, names, add) else UNKNOWN

    def _generate(self, generators: Sequence[ast.comprehension], names: Names, add: Callable[[Names], None]) -> bool:
        """Call ``add`` with the names of each round; return whether all rounds are known."""
        first, *rest = generators
        items = items_of(self.value(first.iter, names))
        if items is None or len(items) > MOST_ROUNDS:
            return False
        for item in items:
            inner: Names = {AROUND: names}
            self._bind(first.target, item, inner)
            tests = [truth(self.value(each, inner)) for each in first.ifs]
            if None in tests:
                return False
            if all(tests):
                if rest and not self._generate(rest, inner, add):
                    return False
                if not rest:
                    add(inner)
        return True

    def _subscript(self, node: ast.Subscript, names: Names) -> object:
        owner, key = self.value(node.value, names), self.value(node.slice, names)
        return get_item(owner, key)

    def _slice(self, node: ast.Slice, names: Names) -> object:
        ends = [None if each is None else self.value(each, names) for each in (node.lower, node.upper, node.step)]
        return slice(*ends) if all(each is None or isinstance(each, int) for each in ends) else UNKNOWN

    def _lambda(self, node: ast.Lambda, names: Names) -> object:
        return FunctionValue(node=node, names=names)

    def _named(self, node: ast.NamedExpr, names: Names) -> object:
        value = self.value(node.value, names)
        self._bind(node.target, value, names)
        return value

    def _joined(self, node: ast.JoinedStr, names: Names) -> object:
        pieces = []
        for piece in node.values:
            value = (
                self.value(piece.value, names) if isinstance(piece, ast.FormattedValue) else self.value(piece, names)
            )
            if not isinstance(value, str | int | float):
                return UNKNOWN
            pieces.append(str(value))
        return "".join(pieces) if sum(map(len, pieces)) <= MOST_CHARACTERS else UNKNOWN


_EXPRESSIONS: Mapping[type[ast.expr], str] = {
    ast.Constant: "_constant",
    ast.Name: "_name",
    ast.Attribute: "_attribute",
    ast.BinOp: "_binary",
    ast.UnaryOp: "_unary",
    ast.BoolOp: "_bool",
    ast.Compare: "_compare",
    ast.IfExp: "_conditional",
    ast.List: "_sequence",
    ast.Tuple: "_sequence",
    ast.Set: "_sequence",
    ast.Dict: "_dict",
    ast.ListComp: "_comprehension",
    ast.SetComp: "_comprehension",
    ast.GeneratorExp: "_comprehension",
    ast.DictComp: "_dict_comprehension",
    ast.Subscript: "_subscript",
    ast.Slice: "_slice",
    ast.Call: "_call",
    ast.Lambda: "_lambda",
    ast.JoinedStr: "_joined",
    ast.NamedExpr: "_named",
}
