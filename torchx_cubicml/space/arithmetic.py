"""Exact arithmetic on the values of a space file: the operators and functions of expressions.

Whole numbers stay exact, and an exact quotient is a whole number again; numbers with a decimal point are floats.
Magnitudes are bounded, so that no expression hangs or fills the memory.
"""

from __future__ import annotations

import ast
import math
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_cubicml.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space.decision_diagram import Symbolic

    Number: TypeAlias = int | float | Fraction
    Operand: TypeAlias = "Value | Fraction | Symbolic"

MAX_EXPONENT = 64
MAX_BITS = 1024  # of a whole number, also of an intermediate result


def kind(value: Operand) -> str:
    """Return the kind of a value: only values of one kind are ever equal, so ``1``, ``true`` and ``"1"`` all differ.

    >>> kind(True), kind(1), kind(1.0), kind("1")
    ('true or false', 'a number', 'a number', 'a string')
    """
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, tuple) else "a number"


def number(value: Operand, text: str) -> Number:
    """Return ``value`` if it is a number.

    Raises:
        SpaceError: it is not; ``text`` is the operation that needs one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise SpaceError(f"`{text:.60}` needs numbers, got {value!r:.40}")
    return value


def truth(value: Operand, text: str) -> bool:
    """Return ``value`` if it is true or false.

    Raises:
        SpaceError: it is neither; ``text`` is the operation that needs one.
    """
    if not isinstance(value, bool):
        raise SpaceError(f"`{text:.60}` needs true or false, got {value!r:.40}")
    return value


def bounded(value: object) -> Number:
    """Return a number of bounded size, with an integral fraction as ``int``.

    Raises:
        SpaceError: the number is too large, or not real.
    """
    if isinstance(value, int | Fraction):
        if _bits(value) > MAX_BITS:
            raise SpaceError(f"a number exceeds {MAX_BITS} bits")
        return value.numerator if value.denominator == 1 else value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise SpaceError("a number is too large or not real")


def calculate(operation: type[ast.operator], left: Number, right: Number, *, text: str) -> Number:
    """Return the exact result of an operation in ``ARITHMETIC``.

    Raises:
        SpaceError: the operation divides by zero, or its result is too large.
    """
    try:
        return bounded(ARITHMETIC[operation](left, right))
    except ZeroDivisionError:
        raise SpaceError(f"`{text:.60}` divides by zero") from None
    except OverflowError:
        raise SpaceError(f"`{text:.60}` is too large") from None


def _bits(number: int | Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _divide(left: Number, right: Number) -> Number:
    if isinstance(left, float) or isinstance(right, float):
        return float(left) / float(right)
    return Fraction(left) / Fraction(right)


def _raise_to(base: Number, exponent: Number) -> Number:
    if not isinstance(exponent, int) or abs(exponent) > MAX_EXPONENT:
        raise SpaceError(f"an exponent must be a whole number from -{MAX_EXPONENT} to {MAX_EXPONENT}, got {exponent}")
    if isinstance(base, float):
        return float(base**exponent)
    if _bits(base) * abs(exponent) > MAX_BITS:
        raise SpaceError(f"a number exceeds {MAX_BITS} bits")
    power: Fraction = Fraction(base) ** exponent
    return power


def _equal(left: Operand, right: Operand, text: str) -> bool:
    if kind(left) != kind(right):
        raise SpaceError(f"`{text:.60}` compares {kind(left)} with {kind(right)}: {left!r:.40} and {right!r:.40}")
    return left == right


def _within(left: Operand, right: Operand, text: str) -> bool:
    if not isinstance(right, tuple):
        raise SpaceError(f"`{text:.60}` needs a list after `in`, got {right!r:.40}")
    return any(kind(left) == kind(item) and left == item for item in right)


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Operand, Operand, str], bool]:
    return lambda left, right, text: compare(number(left, text), number(right, text))


def _flatten(arguments: Sequence[Operand], text: str) -> list[Number]:
    """Return the numbers of ``max(a, b)`` or of ``max(per_layer)``."""
    items = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else arguments
    return [number(item, text) for item in items]


def _logarithm(value: Number) -> Number:
    if value <= 0:
        raise SpaceError(f"log2 needs a number above 0, got {value}")
    exact = Fraction(value)
    whole = exact.numerator.bit_length() - exact.denominator.bit_length()
    if exact == Fraction(2) ** whole:
        return whole
    return math.log2(exact.numerator) - math.log2(exact.denominator)


def _length(arguments: Sequence[Operand], text: str) -> int:
    if not isinstance(arguments[0], tuple):
        raise SpaceError(f"`{text:.60}` needs a list, got {arguments[0]!r:.40}")
    return len(arguments[0])


ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _raise_to,
}

UNARY: dict[type[ast.unaryop], Callable[[Operand, str], Operand]] = {
    ast.Not: lambda value, text: not truth(value, text),
    ast.USub: lambda value, text: -number(value, text),
    ast.UAdd: number,
}

RELATIONS: dict[type[ast.cmpop], Callable[[Operand, Operand, str], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda left, right, text: not _equal(left, right, text),
    ast.Lt: _ordering(operator.lt),
    ast.LtE: _ordering(operator.le),
    ast.Gt: _ordering(operator.gt),
    ast.GtE: _ordering(operator.ge),
    ast.In: _within,
    ast.NotIn: lambda left, right, text: not _within(left, right, text),
}

FUNCTIONS: dict[str, Callable[[Sequence[Operand], str], Operand]] = {
    "abs": lambda arguments, text: max(number(arguments[0], text), -number(arguments[0], text)),
    "ceil": lambda arguments, text: math.ceil(number(arguments[0], text)),
    "floor": lambda arguments, text: math.floor(number(arguments[0], text)),
    "len": _length,
    "log2": lambda arguments, text: _logarithm(number(arguments[0], text)),
    "max": lambda arguments, text: max(_flatten(arguments, text)),
    "min": lambda arguments, text: min(_flatten(arguments, text)),
}
