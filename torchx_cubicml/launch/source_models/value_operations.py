"""Operations on abstract values: arithmetic, comparison, truth, and access to entries."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    ChildOf,
    ClassValue,
    FunctionValue,
    Instance,
    LibraryName,
    ModuleValue,
    ParameterValue,
    Unknown,
    is_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_ROUNDS = 1_000
"""Most rounds of a loop, and entries of a sequence, that are followed."""
MOST_ENTRIES = 1_000
"""Most entries of a value that an operation takes."""
MOST_CHARACTERS = 10_000
"""Most characters of a text that an operation takes or gives, and numbers of a range."""
_WITH_ENTRIES = frozenset({str, range, list, tuple, dict})
_LARGEST = 1 << 80
_MOST_POWER, _MOST_BASE = 64, 1e6
_OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Pow: lambda left, right: left**right if abs(right) <= _MOST_POWER and abs(left) <= _MOST_BASE else UNKNOWN,
    ast.BitOr: operator.or_,
}


def is_child(value: object, owner: ModuleValue) -> bool:
    """Return whether a value is a child of a module."""
    return (isinstance(value, ChildOf) and value.owner is owner) or value in owner.items


def either(one: object, other: object) -> Unknown:
    """Return the join of two abstract values: the value that stands for either."""
    kinds = ModuleValue | ParameterValue | ChildOf
    values = (one, other)
    is_open = any(isinstance(each, kinds) or (isinstance(each, Unknown) and each.may_be_module) for each in values)
    return UNKNOWN_OBJECT if is_open else UNKNOWN


def operate(kind: type[ast.AST], left: object, right: object) -> object:
    """Return the value of an operation; unknown where an operand is, or where it fails."""
    if isinstance(left, Unknown | LibraryName) or isinstance(right, Unknown | LibraryName):
        return UNKNOWN
    if kind in {ast.Is, ast.IsNot} and not (left is None or right is None or isinstance(left, bool)):
        return UNKNOWN
    operation = _OPERATIONS.get(kind)
    if operation is None:
        return UNKNOWN
    if not (is_number(left) and is_number(right)) and not _is_short(kind, left, right):
        return UNKNOWN
    try:
        result = operation(left, right)
    except Exception:  # noqa: BLE001 - operands are the program's own, and any failure makes the result unknown
        return UNKNOWN
    return UNKNOWN if isinstance(result, int) and abs(result) > _LARGEST else result


def _is_short(kind: type[ast.AST], left: object, right: object) -> bool:
    """Return whether an operation on values that are not both numbers ends soon, and gives a small one."""
    if not (is_small(left) and is_small(right)) or (kind is ast.Mod and isinstance(left, str)):
        return False
    counts = [each for each in (left, right) if isinstance(each, int)]
    lengths = [len(each) for each in (left, right) if isinstance(each, str | list | tuple)]
    return kind is not ast.Mult or sum(counts) * sum(lengths) <= MOST_CHARACTERS


def is_small(value: object) -> bool:
    """Return whether a value has few entries, those of its entries included, however often it holds the same one."""
    return n_entries(value) <= MOST_ENTRIES


def n_entries(value: object) -> int:
    """Return the number of entries of a value, those of its entries included; more than the most where it is not small.

    A text counts as an entry for each ten characters.
    """
    pending, count = [value], 1
    while pending and count <= MOST_ENTRIES:
        each = pending.pop()
        if isinstance(each, str | range):
            count += len(each) * MOST_ENTRIES // MOST_CHARACTERS
        elif isinstance(each, list | tuple | dict):
            count += len(each)
            if count <= MOST_ENTRIES:
                entries = each.values() if isinstance(each, dict) else each
                pending += [inner for inner in entries if type(inner) in _WITH_ENTRIES]
    return count


def truth(value: object) -> bool | None:
    """Return whether a value counts as true; ``None`` where that is unknown."""
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return bool(value)
    return True if isinstance(value, ModuleValue | ClassValue | FunctionValue) else None


def same(one: object, other: object) -> bool:
    """Return whether two values are known to be the same."""
    if one is other:
        return True
    is_plain = all(isinstance(each, bool | int | float | str) for each in (one, other))
    return is_plain and type(one) is type(other) and one == other


def items_of(value: object) -> list[object] | None:
    """Return the entries that a loop over a value would pass; ``None`` where they are unknown."""
    if isinstance(value, list | tuple | range):
        return list(value) if len(value) <= MOST_ROUNDS else None
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, ModuleValue) and value.kind is None and not value.is_open:
        return list(value.items)
    return None


def get_item(owner: object, key: object) -> object:
    """Return an entry of a value; unknown where it is not known."""
    if isinstance(owner, ModuleValue):
        if isinstance(key, str):
            return owner.attributes.get(key, UNKNOWN_OBJECT)
        if not isinstance(key, int | slice):
            return ChildOf(owner)
        owner = owner.items
    if isinstance(key, slice) and not is_small(owner):
        return UNKNOWN_OBJECT
    if isinstance(owner, Instance):
        return owner.attributes.get(str(key), UNKNOWN)
    try:
        return owner[key]  # type: ignore[index]  # whatever fails is unknown
    except Exception:  # noqa: BLE001 - the objects are the program's own, and any failure makes the result unknown
        return UNKNOWN_OBJECT


def set_item(owner: object, key: object, value: object) -> None:
    """Set an entry of a value, as far as it is known which."""
    if isinstance(owner, ModuleValue):
        _set_child(owner, key, value)
    elif isinstance(owner, Instance):
        owner.attributes[str(key)] = value
    elif isinstance(owner, list):
        if isinstance(key, int) and -len(owner) <= key < len(owner):
            owner[key] = value
    elif isinstance(owner, dict) and isinstance(key, str | int):
        owner[key] = value


def _set_child(owner: ModuleValue, key: object, value: object) -> None:
    if isinstance(value, ChildOf) and value.owner is owner:
        return
    if isinstance(key, str):
        owner.attributes[key] = value
    elif isinstance(key, int) and -len(owner.items) <= key < len(owner.items):
        owner.items[key] = value
    else:
        owner.is_open = True
