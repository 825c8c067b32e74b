"""The legal values of one parameter: a list, an even range, or powers of two.

- ``choices = [...]`` lists them; their types are alike and each stands there once.
- ``low``, ``high`` (both legal ends) and ``step``, which is 1 where all are whole numbers.
- ``low``, ``high`` and ``scale = "log2"``: ``low`` doubled as long as it is no more than ``high``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Scalar
    from torchx_cubicml.space.toml.schema import Table

MAX_CHOICES = 100_000
RANGE_KEYS = ("low", "high", "step", "scale")


def read_choices(table: Table) -> tuple[Scalar, ...]:
    """Return the legal values that a parameter's table states.

    Raises:
        SpaceError: none are stated, or a rule is broken.
    """
    in_range = [key for key in RANGE_KEYS if key in table]
    if "choices" in table:
        if in_range:
            raise table.error(in_range[0], "a parameter has either choices, or low and high")
        return table.values("choices", most=MAX_CHOICES)
    low, high = table.number("low"), table.number("high")
    if low is None or high is None:
        raise SpaceError(f"{table.place}: choices, low and high, or derive is wanted")
    if low > high:
        raise table.error("high", f"high must be at least low = {low!r}")
    if "scale" in table:
        return _doubling(table, low, high)
    return _even(table, low, high)


def _doubling(table: Table, low: float, high: float) -> tuple[Scalar, ...]:
    if table.text("scale") != "log2":
        raise table.error("scale", "legal is 'log2'")
    if "step" in table:
        raise table.error("step", 'scale = "log2" takes no step')
    if low <= 0:
        raise table.error("low", 'scale = "log2" wants low above 0')
    values = [low]
    while values[-1] * 2 <= high:
        values.append(values[-1] * 2)
    return tuple(values)


def _even(table: Table, low: float, high: float) -> tuple[Scalar, ...]:
    step = table.number("step")
    whole = isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None)
    if step is None:
        if not whole:
            raise table.error("step", "a range of numbers with a decimal point needs a step")
        step = 1
    if step <= 0:
        raise table.error("step", "step must be above 0")
    # Decimal arithmetic: 0.1, 0.2, 0.3 and not 0.30000000000000004.
    first, last, stride = (Fraction(repr(number)) for number in (low, high, step))
    count = (last - first) // stride + 1
    if count > MAX_CHOICES:
        raise table.error("step", f"the range has {count:.3e} values, more than the {MAX_CHOICES} that are legal")
    numbers = (first + index * stride for index in range(count))
    return tuple(int(number) if whole else float(number) for number in numbers)
