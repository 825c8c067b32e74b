"""Checked decoders of JSON values: text, whole number, number, list and object.

What a decoder refuses is a ``RecordError`` that names the field and the legal values.
"""

from __future__ import annotations

import math
from typing import Any

from torchx_cubicml.errors import RecordError


def text_of(value: object, name: str, *, most: int | None = None) -> str:
    """Return a text of at most ``most`` characters.

    >>> text_of("gpt", "program")
    'gpt'
    """
    if isinstance(value, str) and (most is None or len(value) <= most):
        return value
    limit = f" of at most {most} characters" if most is not None else ""
    raise RecordError(f"{name} must be a string{limit}, got {value!r:.60}")


def whole_number_of(value: object, name: str, *, most: float = math.inf) -> int:
    """Return a whole number from 0 to ``most``; ``True`` is none."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise RecordError(f"{name} must be a whole number >= 0, got {value!r:.60}")


def number_of(value: object, name: str) -> float:
    """Return a finite number >= 0; ``True`` is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return value
    raise RecordError(f"{name} must be a number >= 0, got {value!r:.60}")


def items_of(value: object, name: str, *, most: int | None = None) -> list[Any]:
    """Return a list of at most ``most`` items."""
    if isinstance(value, list) and (most is None or len(value) <= most):
        return value
    limit = f" of at most {most} items" if most is not None else ""
    raise RecordError(f"{name} must be a list{limit}, got {value!r:.60}")


def texts_of(
    value: object, name: str, *, most: int | None = None, most_characters: int | None = None
) -> tuple[str, ...]:
    """Return a list of at most ``most`` texts as a tuple."""
    found = items_of(value, name, most=most)
    for item in found:
        if not isinstance(item, str) or (most_characters is not None and len(item) > most_characters):
            text_of(item, name, most=most_characters)
    return tuple(found)


def object_of(value: object, name: str) -> dict[str, Any]:
    """Return a JSON object."""
    if isinstance(value, dict):
        return value
    raise RecordError(f"{name} must be a JSON object, got {value!r:.60}")
