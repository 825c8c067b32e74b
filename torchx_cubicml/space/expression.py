"""Expressions in a space file: parsed to a syntax tree, evaluated exactly over a whitelist of nodes.

Text and depth are bounded; the operations and their bounds are in ``arithmetic``.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.arithmetic import ARITHMETIC, FUNCTIONS, RELATIONS, UNARY, bounded, calculate, number, truth
from torchx_cubicml.space.decision_diagram import Symbolic, symbolic_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space.arithmetic import Operand

    _Values: TypeAlias = Mapping[str, Value | Symbolic]
    _Evaluate: TypeAlias = Callable[[_Values], Operand]

MAX_SOURCE = 1000  # characters
MAX_DEPTH = 64  # of nested operations

_AS_WRITTEN: Mapping[str, str] = MappingProxyType({})
_MEMBERSHIP = (ast.In, ast.NotIn)
_CONSTANTS = {"true": True, "false": False}  # as TOML spells them

LEGAL = (
    "numbers, strings, true, false, names, + - * / // % **, comparisons, in (...), and, or, not, `a if b else c`, "
    "and calls of abs, ceil, floor, len, log2, max, min"
)


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Args:
        source: the text as the user wrote it.
        names: names that it reads.
        where: its place in a space file, for messages.
    """

    source: str
    names: frozenset[str]
    where: str = field(compare=False)
    _run: _Evaluate = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, Value]) -> Scalar:
        """Return the exact value; an integral quotient is an ``int``.

        Raises:
            SpaceError: a name is missing, an operation is not legal for the values, or whole numbers do not divide.

        >>> parse_expression("32 / (micro_batch_size * 2)", where="example").evaluate({"micro_batch_size": 4})
        4
        """
        result = self.evaluate_partly(values)
        if isinstance(result, Symbolic):
            raise SpaceError(f"{self.where}: {self.source!r}: the result is unknown")
        return result

    def evaluate_partly(self, values: _Values) -> Scalar | Symbolic:
        """Return the exact value, symbolic while some of ``values`` that it needs are unknown.

        Raises:
            SpaceError: as ``evaluate``, if it fails for all values of the unknowns.
        """
        try:
            result = self._run(values)
            if isinstance(result, Fraction):
                raise SpaceError(f"the result {result} is not a whole number")
            if isinstance(result, tuple):
                raise SpaceError("the result must be one value, not a list")
        except SpaceError as error:
            raise SpaceError(f"{self.where}: {self.source!r}: {error}") from None
        return result

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Return the truth value of a predicate.

        Raises:
            SpaceError: as ``evaluate``, or the result is neither true nor false.
        """
        result = self.evaluate(values)
        if isinstance(result, bool):
            return result
        raise SpaceError(f"{self.where}: {self.source!r}: the result must be true or false, got {result!r}")


def parse_expression(source: str, *, where: str, names: Mapping[str, str] = _AS_WRITTEN) -> Expression:
    """Return the parsed expression.

    Args:
        source: its text, which messages show.
        where: its place, for messages.
        names: name in the text -> name of the value that it reads.

    Raises:
        SpaceError: the source is not an expression of the whitelist.
    """
    try:
        tree = _syntax_tree(source)
        _rename(tree, names)
        run = _compile(tree, 0)
    except SpaceError as error:
        raise SpaceError(f"{where}: {source[:200]!r}: {error}") from None
    return Expression(source, frozenset(_names(tree)), where, run)


def is_name(text: str) -> bool:
    """Return whether an expression can read ``text`` as a name.

    >>> is_name("tp_degree"), is_name("max"), is_name("true"), is_name("a.b")
    (True, False, False, False)
    """
    try:
        tree = ast.parse(text, mode="eval").body if text.isascii() and text.isidentifier() else None
    except SyntaxError:  # a keyword
        return False
    return isinstance(tree, ast.Name) and text not in _CONSTANTS and text not in FUNCTIONS


def _syntax_tree(source: str) -> ast.expr:
    if len(source) > MAX_SOURCE:
        raise SpaceError(f"{len(source)} characters exceed the limit of {MAX_SOURCE}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's syntax warnings are not for the user's terminal
            return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SpaceError(f"not an expression ({reason or 'too deeply nested'}); allowed: {LEGAL}") from None


def _rename(tree: ast.expr, names: Mapping[str, str]) -> None:
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)


def _names(tree: ast.expr) -> Iterator[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in called and node.id not in _CONSTANTS:
            yield node.id


def _compile(node: ast.expr, depth: int) -> _Evaluate:
    """Return the function that evaluates ``node``; raises for types that are not in ``_COMPILERS``."""
    if depth > MAX_DEPTH:
        raise SpaceError(f"operations are nested more than {MAX_DEPTH} levels deep")
    compiler = _COMPILERS.get(type(node))
    if compiler is None:
        raise _illegal_node(node)
    return compiler(node, depth + 1)


def _illegal_node(node: ast.expr) -> SpaceError:
    return SpaceError(f"`{_text(node):.40}` at column {node.col_offset + 1} is not allowed; allowed: {LEGAL}")


def _text(node: ast.expr) -> str:
    size = sum(1 for _ in ast.walk(node))
    return ast.unparse(node) if size <= 2 * MAX_DEPTH else "..."  # unparse recurses without a limit


def _compile_constant(node: ast.Constant, depth: int) -> _Evaluate:
    value = node.value
    if not isinstance(value, bool | int | float | str):
        raise _illegal_node(node)
    constant = value if isinstance(value, bool | str) else bounded(value)
    return lambda values: constant


def _compile_name(node: ast.Name, depth: int) -> _Evaluate:
    name = node.id
    if name in _CONSTANTS:
        constant = _CONSTANTS[name]
        return lambda values: constant
    if name in FUNCTIONS:
        raise SpaceError(f"`{name}` is a function; write its arguments in parentheses")

    def look_up(values: _Values) -> Operand:
        if name not in values:
            raise SpaceError(f"unknown name {name}; known names: {', '.join(sorted(values)) or 'none'}")
        return values[name]

    return look_up


def _compile_sequence(node: ast.Tuple | ast.List, depth: int) -> _Evaluate:
    items: list[Scalar] = []
    for item in node.elts:
        value = None if any(_names(item)) else _compile(item, depth)({})
        if value is None or isinstance(value, tuple | Fraction | Symbolic):
            raise SpaceError(f"a list may only hold numbers and strings, not `{_text(item):.40}`")
        items.append(value)
    constant = tuple(items)
    return lambda values: constant


def _compile_binary(node: ast.BinOp, depth: int) -> _Evaluate:
    operation = type(node.op)
    if operation not in ARITHMETIC:
        raise _illegal_node(node)
    left, right = _compile(node.left, depth), _compile(node.right, depth)
    text = _text(node)

    def run(values: _Values) -> Operand:
        first, second = left(values), right(values)
        unknown = symbolic_result(operation.__name__, first, second)
        return unknown or calculate(operation, number(first, text), number(second, text), text=text)

    return run


def _compile_unary(node: ast.UnaryOp, depth: int) -> _Evaluate:
    apply = UNARY.get(type(node.op))
    if apply is None:
        raise _illegal_node(node)
    operand, text, name = _compile(node.operand, depth), _text(node), type(node.op).__name__

    def run(values: _Values) -> Operand:
        value = operand(values)
        return symbolic_result(name, value) or apply(value, text)

    return run


def _compile_boolean(node: ast.BoolOp, depth: int) -> _Evaluate:
    operands, text = [_compile(item, depth) for item in node.values], _text(node)
    decisive = isinstance(node.op, ast.Or)

    def run(values: _Values) -> Operand:
        for position, operand in enumerate(operands):
            value = operand(values)
            if isinstance(value, Symbolic):
                return _postponed_from(operands[position + 1 :], values, "or" if decisive else "and", value)
            if truth(value, text) is decisive:
                return decisive
        return not decisive

    return run


def _compile_choice(node: ast.IfExp, depth: int) -> _Evaluate:
    test, text = _compile(node.test, depth), _text(node.test)
    then, otherwise = _compile(node.body, depth), _compile(node.orelse, depth)

    def run(values: _Values) -> Operand:
        decided = test(values)
        if isinstance(decided, Symbolic):
            return _postponed_from((then, otherwise), values, "if", decided)
        return then(values) if truth(decided, text) else otherwise(values)

    return run


def _compile_comparison(node: ast.Compare, depth: int) -> _Evaluate:
    operands = [_compile(item, depth) for item in (node.left, *node.comparators)]
    relations = [type(item) for item in node.ops]
    if not all(relation in RELATIONS for relation in relations):
        raise _illegal_node(node)
    text = _text(node)

    def run(values: _Values) -> Operand:
        left = operands[0](values)
        for position, relation in enumerate(relations, start=1):
            right = operands[position](values)
            holds = _compared(relation, left, right, text)
            if isinstance(holds, Symbolic):
                rest = relations[position:]
                name = "".join(item.__name__ for item in rest)
                return _postponed_from(operands[position + 1 :], values, name, holds, right) if rest else holds
            if not holds:
                return False
            left = right
        return True

    return run


def _compared(relation: type[ast.cmpop], left: Operand, right: Operand, text: str) -> bool | Symbolic:
    if isinstance(right, Symbolic) and right.list_name and not isinstance(left, Symbolic) and relation in _MEMBERSHIP:
        if RELATIONS[ast.In](left, right.entries, text):
            return relation is ast.In
        right = Symbolic(right.list_name)  # no known entry decides, so they need not be in the key
    return symbolic_result(relation.__name__, left, right) or RELATIONS[relation](left, right, text)


def _postponed_from(rest: Sequence[_Evaluate], values: _Values, name: str, *known: Operand) -> Symbolic:
    """Return the symbolic result of an operation that may never evaluate ``rest``; errors in ``rest`` do not count."""
    operands: list[object] = list(known)
    for evaluate in rest:
        try:
            operands.append(evaluate(values))
        except SpaceError:
            operands.append(None)
    return symbolic_result(name, *operands) or Symbolic(name)


def _compile_call(node: ast.Call, depth: int) -> _Evaluate:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    function = FUNCTIONS.get(name)
    if function is None or node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
        raise _illegal_node(node)
    if not node.args or (len(node.args) > 1 and name not in {"max", "min"}):
        raise SpaceError(f"{name} takes {'one or more arguments' if name in {'max', 'min'} else 'one argument'}")
    arguments, text = [_compile(item, depth) for item in node.args], _text(node)

    def run(values: _Values) -> Operand:
        given = [argument(values) for argument in arguments]
        try:
            given = [_best_so_far(name, item, text) for item in given] if len(given) == 1 else given
            return symbolic_result(name, *given) or function(given, text)
        except (ValueError, OverflowError) as error:
            raise error if isinstance(error, SpaceError) else SpaceError(f"`{text:.60}`: {error}") from None

    return run


def _best_so_far(name: str, value: Operand, text: str) -> Operand:
    """Return a partly known per-layer value for ``max`` or ``min``, reduced to its best known entry."""
    if name not in {"max", "min"} or not isinstance(value, Symbolic) or not value.entries:
        return value
    best = FUNCTIONS[name]([value.entries], text)
    return Symbolic((value.list_name, best))


_COMPILERS: dict[type[ast.expr], Callable[[Any, int], _Evaluate]] = {
    ast.Constant: _compile_constant,
    ast.Name: _compile_name,
    ast.Tuple: _compile_sequence,
    ast.List: _compile_sequence,
    ast.BinOp: _compile_binary,
    ast.UnaryOp: _compile_unary,
    ast.BoolOp: _compile_boolean,
    ast.Compare: _compile_comparison,
    ast.IfExp: _compile_choice,
    ast.Call: _compile_call,
}
