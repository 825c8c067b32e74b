"""Texts of a figure that the renderer would take for a property of every object, such as ``constructor``."""

from __future__ import annotations

from typing import Any

_NAMES = frozenset(
    {"constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString", "valueOf"}
    | {"__proto__", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__"}
)
_NO_WIDTH = "\u2060"  # word joiner


def without_object_names(part: Any) -> Any:
    r"""Return a part of a specification whose texts are no such names: a mark without width follows each.

    >>> without_object_names({"sort": ["constructor", "b"]}) == {"sort": ["constructor\u2060", "b"]}
    True
    """
    if isinstance(part, str):
        return f"{part}{_NO_WIDTH}" if part in _NAMES else part
    if isinstance(part, dict):
        return {name: without_object_names(value) for name, value in part.items()}
    return [without_object_names(value) for value in part] if isinstance(part, list | tuple) else part
