"""Calls of builtin functions and methods on abstract values."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    Instance,
    ModuleValue,
    PartialCall,
)
from torchx_cubicml.launch.source_models.torch_modules import FUNCTIONS
from torchx_cubicml.launch.source_models.value_operations import is_small

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PLAIN: Mapping[str, Callable[..., object]] = {
    "int": int, "float": float, "bool": bool, "str": str, "abs": abs, "round": round, "len": len, "sum": sum,
    "max": max, "min": min, "range": range, "list": list, "tuple": tuple, "dict": dict, "sorted": sorted,
    "os.path.join": os.path.join, "os.path.basename": os.path.basename, **FUNCTIONS,
}  # fmt: skip
_LONGEST = 1_000
_SAME = frozenset(
    {
        *("to", "cuda", "cpu", "train", "eval", "half", "bfloat16", "float", "double", "apply", "requires_grad_"),
        *("to_empty", "share_memory", "compile"),
    }
)


def builtin_call(path: str, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    """Return the value of a call of a builtin function, or of one of ``math`` and ``os.path``; unknown for others."""
    special = _SPECIAL.get(path)
    if special is not None:
        return special(path, positional, keywords)
    function = _PLAIN.get(path)
    values = (*positional, *keywords.values())
    if path not in {"len", "range"} and not all(map(is_small, values)):
        return UNKNOWN
    if function is None or any(map(_has_unknown, values)):
        return UNKNOWN
    if path == "len" and isinstance(positional[0] if positional else None, ModuleValue):
        return len(getattr(positional[0], "items", ())) or UNKNOWN
    try:
        result = function(*positional, **keywords)
    except Exception:  # noqa: BLE001 - the arguments are the program's own, and any failure makes the result unknown
        return UNKNOWN
    return result


def partial_call(positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    """Return the value of ``functools.partial``."""
    if not positional:
        return UNKNOWN_OBJECT
    return PartialCall(function=positional[0], positional=tuple(positional[1:]), keywords=dict(keywords))


def _sequence_call(path: str, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    tables = [each.items if isinstance(each, ModuleValue) else each for each in positional]
    rows = [list(each) for each in tables if isinstance(each, list | tuple | range) and len(each) <= _LONGEST]
    if path == "enumerate" and len(rows) == 1 and not keywords:
        return list(enumerate(rows[0]))
    if path == "reversed" and len(rows) == 1:
        return rows[0][::-1]
    return [tuple(each) for each in zip(*rows, strict=False)] if path == "zip" and len(rows) == len(tables) else UNKNOWN


def _attribute_call(path: str, positional: Sequence[object], _: Mapping[str, object]) -> object:
    owner = positional[0] if positional else UNKNOWN
    if not isinstance(owner, Instance):
        return UNKNOWN
    if path == "vars":
        return owner.attributes
    name = positional[1] if len(positional) > 1 else UNKNOWN
    if not isinstance(name, str):
        return UNKNOWN
    if path == "hasattr":
        return True if name in owner.attributes else UNKNOWN
    return owner.attributes.get(name, positional[2] if len(positional) > 2 and owner.kind is None else UNKNOWN)


def _exists(path: str, positional: Sequence[object], _: Mapping[str, object]) -> object:
    """Return whether a file exists here: the program starts in this folder, as far as the launcher knows."""
    name = positional[0] if positional else UNKNOWN
    if not isinstance(name, str):
        return UNKNOWN
    try:
        return FILE_TESTS[path](Path(name))
    except (OSError, ValueError):
        return UNKNOWN


FILE_TESTS: Mapping[str, Callable[[Path], bool]] = {
    "os.path.exists": Path.exists,
    "os.path.isfile": Path.is_file,
    "os.path.isdir": Path.is_dir,
}
"""Functions that ask whether a file exists."""
_SPECIAL: Mapping[str, Callable[[str, Sequence[object], Mapping[str, object]], object]] = {
    **dict.fromkeys(("enumerate", "zip", "reversed"), _sequence_call),
    **dict.fromkeys(("getattr", "hasattr", "vars"), _attribute_call),
    **dict.fromkeys(FILE_TESTS, _exists),
    "copy.deepcopy": lambda path, positional, keywords: UNKNOWN_OBJECT,
}


def _has_unknown(value: object) -> bool:
    """Return whether a value or one of its entries is unknown, or there are too many to look."""
    return (isinstance(value, list | tuple) and not is_small(value)) or _holds_unknown(value)


def _holds_unknown(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_unknown, value))
    return not (value is None or isinstance(value, bool | int | float | str | dict | range | ModuleValue))


def _append(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    target = owner.items if isinstance(owner, ModuleValue) else owner
    if isinstance(target, list):
        target.append(positional[0] if positional else UNKNOWN)
    return None


def _extend(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    entries = positional[0] if positional else UNKNOWN
    target = owner.items if isinstance(owner, ModuleValue) else owner
    if isinstance(target, list) and isinstance(entries, list | tuple) and is_small([target, entries]):
        target.extend(entries)
    elif isinstance(owner, ModuleValue):
        owner.is_open = True
    return None


def _add_named(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    """Return nothing; a module or parameter is added by name."""
    name, *rest = [*positional, UNKNOWN, UNKNOWN][:2]
    if isinstance(owner, ModuleValue):
        if isinstance(name, str):
            owner.attributes[name] = rest[0]
        owner.is_open = owner.is_open or not isinstance(name, str) or rest[0] is UNKNOWN
    return None


def _same_module(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    return owner if isinstance(owner, ModuleValue) else UNKNOWN


def _lookup(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    if isinstance(owner, dict) and positional and isinstance(positional[0], str | int):
        return owner.get(positional[0], positional[1] if len(positional) > 1 else None)
    return UNKNOWN


def _entries(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    return [tuple(each) for each in owner.items()] if isinstance(owner, dict) else UNKNOWN


def _split(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    by = positional[0] if positional else None
    return list(owner.split(by)) if isinstance(owner, str) and (by is None or isinstance(by, str)) else UNKNOWN


def _text_method(name: str) -> Callable[..., object]:
    """Return a method of texts that gives another text."""

    def changed(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
        is_plain = isinstance(owner, str) and not keywords and all(isinstance(each, str) for each in positional)
        is_plain = is_plain and is_small(owner) and len("".join(map(str, positional))) <= _LONGEST_PIECE
        return getattr(owner, name)(*positional) if is_plain and len(positional) <= _MOST_TEXTS else UNKNOWN

    return changed


def _update(owner: object, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
    if isinstance(owner, dict):
        for table in (*positional, keywords):
            owner |= table if isinstance(table, dict) else {}
    return None


_MOST_TEXTS, _LONGEST_PIECE = 2, 100
_TEXT_METHODS = ("replace", "lower", "upper", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix")
CHANGING = frozenset({"append", "extend", "add_module", "register_module", "register_parameter"})
"""Methods that add to their object."""
SPOILING = frozenset(
    {
        *("insert", "pop", "popitem", "remove", "clear", "sort", "reverse", "setdefault", "update", "move_to_end"),
        *("__setitem__", "__delitem__", "__setattr__", "__delattr__", "register_parametrization", "set_submodule"),
    }
)
"""Methods that change their object in a way that is not followed."""
METHODS: Mapping[str, Callable[..., object]] = {
    "update": _update,
    "append": _append,
    "extend": _extend,
    "add_module": _add_named,
    "register_module": _add_named,
    "register_parameter": _add_named,
    "get": _lookup,
    "items": _entries,
    "split": _split,
    **{name: _text_method(name) for name in _TEXT_METHODS},
    **dict.fromkeys(_SAME, _same_module),
}
"""Methods of known objects that are no functions of the program."""
