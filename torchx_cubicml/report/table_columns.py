"""Columns of a table as compact JSON values: constants are stored once, and repeated texts by their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Cell = str | int | float | None
_FEWEST_SAME = 2  # distinct values of a column; a constant is short anyway
_LEAST_SHARED = 6  # letters, on average: fewer do not pay for their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Args:
        name: heading, plain text.
        values: one per row; ``None`` where there is none. Numbers are sorted as numbers.
        is_shown: whether it is a column of the table; the others are in the details of each row.
        is_choice: whether its values are offered as a filter.
    """

    name: str
    values: Sequence[Cell]
    is_shown: bool = False
    is_choice: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the column as JSON values, by the shortest of several forms.

        The forms: ``all`` for a constant, ``first`` for whole numbers that count up from it, ``levels`` and ``index``,
        ``shared`` and ``rest`` (texts by the number of leading letters that each shares with the one before, front
        coding), or plain ``values``.

        >>> Column(name="a", values=["x", "x"]).to_json()["all"]
        'x'
        >>> Column(name="a", values=["x", "y", "x", "x"]).to_json()["index"]
        [0, 1, 0, 0]
        >>> Column(name="a", values=["2026-01-01T00:00", "2026-01-01T00:10"]).to_json()["rest"]
        ['2026-01-01T00:00', '10']
        """
        kind = {"name": self.name, "shown": self.is_shown, "choice": self.is_choice}
        kind["number"] = self.is_number
        values = list(self.values)
        levels = list(dict.fromkeys(values))
        if len(levels) == 1 and len(values) > 1:
            return {**kind, "all": levels[0]}
        if values and isinstance(values[0], int) and values == [*range(values[0], values[0] + len(values))]:
            return {**kind, "first": values[0]}
        if 2 * len(levels) <= len(values):
            places = {level: place for place, level in enumerate(levels)}
            return {**kind, "levels": levels, "index": [places[value] for value in values]}
        shared = _shared_letters(values)
        if sum(shared) > _LEAST_SHARED * len(values):
            rest = [text[count:] for text, count in zip(values, shared, strict=True) if isinstance(text, str)]
            return {**kind, "shared": shared, "rest": rest}
        return {**kind, "values": values}

    @property
    def is_number(self) -> bool:
        """True if all its values are numbers."""
        return not any(issubclass(kind, str) for kind in set(map(type, self.values)))


def to_json(columns: Sequence[Column]) -> list[dict[str, object]]:
    """Return the columns of one table; one that holds the values of an earlier one names its place as ``same``."""
    found: list[dict[str, object]] = []
    known: dict[tuple[Cell, ...], int] = {}
    for place, column in enumerate(columns):
        values = tuple(column.values)
        same = known.setdefault(values, place)
        if same == place or len(set(values)) < _FEWEST_SAME:
            found.append(column.to_json())
        else:
            kind = {"name": column.name, "shown": column.is_shown, "choice": column.is_choice}
            found.append({**kind, "number": column.is_number, "same": same})
    return found


def _shared_letters(values: Sequence[Cell]) -> list[int]:
    """Return for each text how many leading letters it shares with the one before; nothing where not all are texts."""
    shared, before = [], ""
    for value in values:
        if not isinstance(value, str):
            return []
        shared.append(_shared(before, value))
        before = value
    return shared


def _shared(one: str, other: str) -> int:
    """Return the number of leading letters that two texts share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle)
    return low
