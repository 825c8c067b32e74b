"""Values of a record: scalars and flat lists of them, checked and frozen as they come from JSON, TOML or a caller."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TypeAlias, TypeGuard

from torchx_cubicml.errors import RecordError

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[Scalar, ...]
Config: TypeAlias = Mapping[str, Value]
Workload: TypeAlias = Mapping[str, Value]
MAX_TEXT = 4096  # characters of one value; a longer one is an accident or an attack
MAX_ITEMS = 4096  # entries of one tuple; well above the layers of the deepest models
MAX_NAMES = 512  # facts of one trial
MAX_WHOLE = 2**64  # larger whole numbers are no facts, and some have no float


def freeze_values(values: object, *, where: str) -> dict[str, Value]:
    """Check a mapping from JSON, TOML or a caller, and return it with tuples for lists.

    Raises:
        RecordError: the argument is no mapping of names to scalars or flat lists, or a value is not finite or too
            large.

    >>> freeze_values({"sharding_strategy": ["FULL_SHARD", "NO_SHARD"]}, where="config")
    {'sharding_strategy': ('FULL_SHARD', 'NO_SHARD')}
    """
    if not isinstance(values, Mapping):
        raise RecordError(f"{where} must map names to values, got {type(values).__name__}")
    if len(values) > MAX_NAMES:
        raise RecordError(f"{where} has {len(values)} names; the limit is {MAX_NAMES}")
    return {
        _freeze_name(name, where): value if _is_frozen(value) else freeze_value(value, where=f"{where}.{name}")
        for name, value in values.items()
    }


def freeze_value(value: object, *, where: str) -> Value:
    """Check one value and return it, a list as a tuple; see ``freeze_values``."""
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise RecordError(f"{where} has {len(value)} items; the limit is {MAX_ITEMS}")
        return tuple(_freeze_scalar(item, where) for item in value)
    return _freeze_scalar(value, where)


def _is_frozen(value: object) -> TypeGuard[Scalar]:
    """Return whether a value needs no conversion: a fast path, as most need none and a store holds millions."""
    if type(value) is str:
        return len(value) <= MAX_TEXT
    if type(value) is int:
        return -MAX_WHOLE <= value <= MAX_WHOLE
    return type(value) is bool or (type(value) is float and math.isfinite(value))


def _freeze_scalar(value: object, where: str) -> Scalar:
    scalar = _to_python(value)
    if isinstance(scalar, str):
        if len(scalar) > MAX_TEXT:
            raise RecordError(f"{where} has {len(scalar)} characters; the limit is {MAX_TEXT}")
        return scalar
    if isinstance(scalar, bool) or (isinstance(scalar, int) and abs(scalar) <= MAX_WHOLE):
        return scalar
    if isinstance(scalar, float) and math.isfinite(scalar):
        return scalar
    raise RecordError(
        f"{where} must be a boolean, a finite number, a string or a flat list of them, got {display(scalar)}"
    )


def _to_python(value: object) -> object:
    """Convert a number or text of a library, such as numpy, to a Python scalar."""
    if type(value) in {bool, int, float, str}:
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return item()
    return str(value) if isinstance(value, str) else value


def display(value: object) -> str:
    """Return a value as a message shows it, at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"  # it can have more digits than Python converts
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)} entries"  # one nested too deep has no repr
    return f"{value!r:.60}"


def _freeze_name(name: object, where: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= 128:
        return name
    raise RecordError(f"{where}: names must be strings of 1 to 128 characters, got {display(name)}")


def is_text(value: object) -> bool:
    """Return whether a value is a string of at most ``MAX_TEXT`` characters."""
    return isinstance(value, str) and len(value) <= MAX_TEXT


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_positive(value: object) -> bool:
    """Return whether a value is a finite number > 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 0 to ``MAX_WHOLE``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE
