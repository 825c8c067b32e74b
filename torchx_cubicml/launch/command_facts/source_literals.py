"""Values that the source of a program states: constants, defaults of flags and fields, arguments of calls."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.source_files import dotted, nodes_of, parsed_modules
from torchx_cubicml.user_files import read_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchx_cubicml.records.values import Scalar

Literal: TypeAlias = "Scalar | tuple[Scalar, ...]"
"""Value that a source can state and a record can hold."""
_MOST_POWER, _MOST_BASE = 64, 1024
_TAKES_VALUE = {
    **dict.fromkeys(("store", "append", "extend"), True),
    **dict.fromkeys(("store_true", "store_false", "store_const", "count", "BooleanOptionalAction"), False),
}


def _power(left: float, right: float) -> float:
    if abs(right) > _MOST_POWER or abs(left) > _MOST_BASE:
        raise ValueError("the power is too large")
    result: float = left**right
    return result


_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserFlag:
    """Flag of an argument parser in the source.

    Args:
        default: its value without the flag; ``None`` where the source does not tell it.
        takes_value: whether a value may follow it; ``None`` where the source does not tell.
        has_no_default: whether it is ``None`` without the flag.
        has_own_type: whether the program converts its text by a function of its own.
        name: its name with dashes, as the source spells it.
        choices: legal values; empty where the source does not list them.
    """

    default: Literal | None
    takes_value: bool | None = None
    has_no_default: bool = False
    has_own_type: bool = False
    name: str = ""
    choices: tuple[Scalar, ...] = ()


def literal(node: ast.expr | None, names: Mapping[str, object] = {}) -> Literal | None:
    """Return the value of an expression of literals, arithmetic and known names; ``None`` for any other.

    >>> literal(ast.parse("4 * n_embd", mode="eval").body, {"n_embd": 768})
    3072
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, bool | int | float | str) else None
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return value if is_plain(value) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal(node.operand, names)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, ast.Tuple | ast.List):
        entries = [literal(each, names) for each in node.elts]
        scalars = [each for each in entries if isinstance(each, bool | int | float | str)]
        return tuple(scalars) if len(scalars) == len(entries) else None
    if isinstance(node, ast.Call) and _called(node) == "field":
        default = next((each.value for each in node.keywords if each.arg == "default"), None)
        return literal(default, names)
    return _arithmetic(node, names) if isinstance(node, ast.BinOp) else None


def _arithmetic(node: ast.BinOp, names: Mapping[str, object]) -> Scalar | None:
    left, right = literal(node.left, names), literal(node.right, names)
    operation = _OPERATIONS.get(type(node.op))
    if operation is None or not (isinstance(left, int | float) and isinstance(right, int | float)):
        return None
    try:
        return operation(left, right)
    except (ArithmeticError, ValueError):
        return None


def is_plain(value: object) -> TypeGuard[Literal]:
    """Return whether a value is one that a record can hold."""
    entries = value if isinstance(value, tuple) else (value,)
    return all(isinstance(each, bool | int | float | str) for each in entries)


def module_constants(path: Path) -> dict[str, Literal]:
    """Return the constants that a Python file assigns at its top, the last of each; none if it is no Python."""
    tree = read_python(path)[1]
    return constants(tree.body) if tree is not None else {}


def constants(body: list[ast.stmt]) -> dict[str, Literal]:
    """Return the constants that statements assign, the last assignment of each; a name with another value is left out.

    >>> constants(ast.parse("width = 64; heads = width // 32; width = read()").body)
    {'heads': 2}
    """
    found: dict[str, Literal] = {}
    for statement in body:
        for name, node in _assignments(statement):
            value = literal(node, found)
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
    return found


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value
            elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                pairs = zip(target.elts, statement.value.elts, strict=False)
                yield from ((each.id, value) for each, value in pairs if isinstance(each, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value


@lru_cache(maxsize=128)
def parser_flags(tree: ast.Module) -> Mapping[str, ParserFlag]:
    """Return the flags that a source adds to argument parsers, by their names with underscores and without dashes.

    A flag that is added twice with two defaults has none.

    >>> tree = ast.parse('p.add_argument("--n-layer", "-n", type=int, default=4)')
    >>> parser_flags(tree)["n_layer"].default
    4
    """
    found: dict[str, ParserFlag] = {}
    known = constants(tree.body)
    for node, words in _added(tree):
        flags = [bare_name(word) for word in words if word.startswith("--")]
        flag = replace(_parser_flag(node, known), name=next((word for word in words if word.startswith("--")), ""))
        for name in flags:
            other = found.get(name, flag)
            if (other.default, other.takes_value) != (flag.default, flag.takes_value):
                both = flag.takes_value if flag.takes_value is other.takes_value else None
                default = flag.default if flag.default == other.default else None
                flag = ParserFlag(default=default, takes_value=both, name=flag.name)
            found[name] = flag
    for name, default in _set_defaults(tree, known):
        if name in found or not name:
            each = {name: found[name]} if name else found
            found |= {one: replace(flag, default=default, has_no_default=False) for one, flag in each.items()}
    return found


def bare_name(flag: str) -> str:
    """Return the name of a flag or key as ``parser_flags`` has it, without what its spelling adds.

    >>> bare_name("--Hidden-Size"), bare_name("+model.n-layers=")
    ('hidden_size', 'model.n_layers')
    """
    return flag.strip("-+=").replace("-", "_").lower()


def declared_flags(launch: Launch) -> Mapping[str, ParserFlag]:
    """Return the flags that the source of a program declares, by their names as in ``parser_flags``.

    The source is read once for a program in a working folder. Of several files, the one nearest to the script counts.
    """
    return _declared_flags(launch.program, launch.is_module, Path.cwd())


@lru_cache(maxsize=16)
def _declared_flags(program: str, is_module: bool, folder: Path) -> Mapping[str, ParserFlag]:
    del folder
    found: dict[str, ParserFlag] = {}
    for _, tree in parsed_modules(Launch(program=program, is_module=is_module)):
        found = {**parser_flags(tree), **found}
    return found


def _set_defaults(tree: ast.Module, known: Mapping[str, object]) -> Iterator[tuple[str, Literal | None]]:
    """Yield the flags whose defaults a source sets later, each with its default; an empty name stands for any flag."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and _called(node) == "set_defaults":
            yield from ((each.arg or "", literal(each.value, known) if each.arg else None) for each in node.keywords)


def other_spellings(tree: ast.Module) -> dict[str, str]:
    """Return the short flags that a source adds to argument parsers, each with the long one for the same.

    >>> other_spellings(ast.parse('p.add_argument("-l", "--n-layer", type=int)'))
    {'-l': 'n_layer'}
    """
    found: dict[str, str] = {}
    for _, words in _added(tree):
        long = next((word for word in words if word.startswith("--")), "")
        short = [word for word in words if word.startswith("-") and not word.startswith("--")]
        found |= dict.fromkeys(short, bare_name(long)) if long else {}
    return found


def _added(tree: ast.Module) -> Iterator[tuple[ast.Call, list[str]]]:
    """Yield each call that adds an argument to a parser, with the names that it spells out."""
    adders = {"add_argument", *_aliases_of_add(tree)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and _called(node) in adders:
            texts = (each.value for each in node.args if isinstance(each, ast.Constant))
            yield node, [each for each in texts if isinstance(each, str)]


def _aliases_of_add(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "add_argument":
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _parser_flag(node: ast.Call, known: Mapping[str, object]) -> ParserFlag:
    options = {each.arg: each.value for each in node.keywords if each.arg}
    stated_action = options.get("action", ast.Constant("store"))
    action = str(literal(stated_action) or dotted(stated_action).rpartition(".")[2])
    switched = {"store_true": True, "store_false": False}.get(action)
    default = literal(options["default"], known) if "default" in options else None
    if switched is not None and "default" not in options:
        default = not switched
    kind = getattr(options.get("type"), "id", "")
    if kind in {"int", "float"}:
        default = None if isinstance(default, str) else int(default) if isinstance(default, bool) else default
    choices = literal(options.get("choices"), known)
    stated = options.get("default")
    is_none = stated is None or (isinstance(stated, ast.Constant) and stated.value is None)
    return ParserFlag(
        default=default,
        takes_value=None if any(each.arg is None for each in node.keywords) else _TAKES_VALUE.get(action),
        has_no_default=is_none and default is None,
        choices=choices if isinstance(choices, tuple) else (),
        has_own_type="type" in options and kind not in {"int", "float", "str", "bool"},
    )


def class_fields(tree: ast.Module) -> dict[str, dict[str, Literal]]:
    """Return the constants that the bodies of classes assign, as dataclasses do with defaults, by class."""
    return {node.name: constants(node.body) for node in nodes_of(tree) if isinstance(node, ast.ClassDef)}


def call_keywords(tree: ast.Module) -> Iterator[tuple[str, dict[str, Literal]]]:
    """Yield the name of each call with those of its keyword arguments that are literals or constants around it."""
    known = constants(tree.body)
    functions = [node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef)]
    inside = {id(inner): function for function in functions for inner in ast.walk(function)}
    of_function = {id(function): {**known, **constants(function.body)} for function in functions}
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and node.keywords:
            function = inside.get(id(node))
            names = known if function is None else of_function[id(function)]
            pairs = ((each.arg, literal(each.value, names)) for each in node.keywords if each.arg)
            yield _called(node), {name: value for name, value in pairs if value is not None}
