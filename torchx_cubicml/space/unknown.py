"""Results that wait for a name: two beginnings of a config with equal unknowns have the same legal ends.

An operation on an unknown is unknown too, and its key says what is left to calculate. Whole numbers that are multiplied
or added are folded in it, so that of a mesh whose degrees multiply to the world size only the product so far counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.records.trial import Scalar


@dataclass(frozen=True, slots=True)
class Unknown:
    """What an operation gives while a name that it reads is not known yet.

    Args:
        key: equal for two unknowns only if they turn out alike, whatever the missing names will be.
        whole: whether it will be a whole number.
        list_name: name of a per-layer value of which some entries are missing; empty for all else.
        entries: those that are known already.
    """

    key: Hashable
    whole: bool = False
    list_name: str = ""
    entries: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class _Folded:
    """Key of a product or a sum: its known part, and the keys of the others in an order of their own."""

    operation: str
    known: int | Fraction
    others: tuple[Hashable, ...]


def postponed(operation: str, *operands: object) -> Unknown | None:
    """Return the unknown result where an operand is unknown, else ``None``.

    >>> x = Unknown("x", whole=True)
    >>> postponed("Mult", 8, x) == postponed("Mult", postponed("Mult", 2, x), 4)
    True
    """
    if not any(isinstance(operand, Unknown) for operand in operands):
        return None
    # Floats round, so that their order matters; exact numbers can be folded.
    if operation in _NEUTRAL and all(_is_whole(operand) for operand in operands):
        return Unknown(_fold(operation, operands), whole=True)
    return Unknown((operation, *(_key(operand) for operand in operands)))


def _fold(operation: str, operands: Sequence[object]) -> _Folded:
    known: int | Fraction = _NEUTRAL[operation]
    others: list[Hashable] = []
    for operand in operands:
        part: int | Fraction = _NEUTRAL[operation]
        key = operand.key if isinstance(operand, Unknown) else operand
        if isinstance(key, _Folded) and key.operation == operation:
            part = key.known
            others.extend(key.others)
        elif isinstance(operand, int | Fraction):
            part = operand
        else:
            others.append(_key(operand))
        known = known * part if operation == "Mult" else known + part
    return _Folded(operation, known, tuple(sorted(others, key=repr)))


def _is_whole(operand: object) -> bool:
    if isinstance(operand, Unknown):
        return operand.whole
    return isinstance(operand, int | Fraction) and not isinstance(operand, bool)


def _key(operand: object) -> Hashable:
    if isinstance(operand, Unknown):
        return operand.key
    if isinstance(operand, tuple):
        return ("tuple", *map(_key, operand))
    return (type(operand).__name__, operand if isinstance(operand, bool | int | float | str | Fraction) else None)


_NEUTRAL = {"Mult": 1, "Add": 0}
