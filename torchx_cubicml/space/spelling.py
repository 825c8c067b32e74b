"""Spelling of values in a command line, and the parser of spelled values."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.standard_words import OFF_WORDS, ON_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Scalar, Value

_OPPOSITES = {**dict(zip(ON_WORDS, OFF_WORDS, strict=True)), **dict(zip(OFF_WORDS, ON_WORDS, strict=True))}
_MAX_LISTED = 12  # choices in a message
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,300}")


def spell(value: Value) -> str:
    """Return the text of ``value`` in a command line.

    >>> spell(4), spell(1e-05), spell(True), spell(("FULL_SHARD", "NO_SHARD"))
    ('4', '1e-05', 'true', 'FULL_SHARD,NO_SHARD')
    """
    if isinstance(value, tuple):
        return ",".join(spell(entry) for entry in value)
    return spell_switch(value, like="true") if isinstance(value, bool) else str(value)


def same_value(one: Value, other: Value) -> bool:
    """Return whether two values are equal and of one kind: ``True`` is not 1.

    >>> same_value(4, 4.0), same_value(True, 1), same_value((1, 2), (1, 2))
    (True, False, True)
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same_value(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def spell_switch(value: bool, *, like: str) -> str:
    """Return the word for ``value`` that goes with the word ``like``, in its case.

    >>> [spell_switch(False, like=word) for word in ("True", "T", "yes", "ON", "0", "maybe")]
    ['False', 'F', 'no', 'OFF', '0', 'false']
    """
    like = like if switch_value(like) is not None else ON_WORDS[0]
    word = _OPPOSITES[like.lower()]
    if switch_value(like) is value:
        return like
    return word.upper() if like.isupper() else word.capitalize() if like.istitle() else word


def texts_of(value: Scalar) -> tuple[str, ...]:
    """Return the usual texts of a value: each word for a switch, and a whole number with a fraction too.

    >>> texts_of(4), texts_of(False)[:3], texts_of("NO_SHARD")
    (('4', '4.0'), ('false', 'False', 'FALSE'), ('NO_SHARD',))
    """
    if isinstance(value, bool):
        words = ON_WORDS if value else OFF_WORDS
        return tuple(text for word in words for text in (word, word.capitalize(), word.upper()))
    if isinstance(value, str):
        return (value,)
    is_whole = float(value).is_integer()
    return tuple(dict.fromkeys([*([str(int(value))] if is_whole else []), str(float(value)), str(value)]))


def switch_value(text: str) -> bool | None:
    """Return the boolean that a word of a command spells in any case, ``None`` if it spells none."""
    word = text.lower()
    return word in ON_WORDS if word in _OPPOSITES else None


def number(text: str) -> int | float | None:
    """Return the finite number that ``text`` spells, ``None`` if it spells none."""
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_scalar(text: str, choices: Sequence[Scalar], *, where: str) -> Scalar:
    """Return the choice that ``text`` spells, or else a value of the type of ``choices``.

    Raises:
        LaunchError: ``choices`` are numbers or booleans and ``text`` spells none; the message names ``where``.

    >>> read_scalar("1e3", [500, 1000], where="--steps"), read_scalar("3", [1, 2], where="-b")
    (1000, 3)
    """
    for choice in choices:
        if spell(choice) == text:
            return choice
    if not choices:
        value = number(text)
        return text if value is None else value
    return _read_typed(text, choices, where)


def listed(choices: Sequence[Scalar]) -> str:
    """Return the first choices as a command spells them.

    >>> listed([1, 2]), listed([*range(1, 100)])
    ('1, 2', '1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ...')
    """
    more = ", ..." if len(choices) > _MAX_LISTED else ""
    return ", ".join(map(spell, choices[:_MAX_LISTED])) + more


def _read_typed(text: str, choices: Sequence[Scalar], where: str) -> Scalar:
    legal = listed(choices)
    if all(isinstance(choice, bool) for choice in choices):
        switch = switch_value(text)
        if switch is None:
            raise LaunchError(f"{where} is {text!r:.60} in the command; choose from {legal}")
        return switch
    numbers = [choice for choice in choices if isinstance(choice, int | float) and not isinstance(choice, bool)]
    value = number(text) if numbers else None
    if value is not None:
        return next((choice for choice in numbers if choice == value), value)
    if any(isinstance(choice, str) for choice in choices):
        return text
    raise LaunchError(f"{where} is {text!r:.60} in the command; it must be a number, such as {legal}")
