"""Columns of a table as compact JSON values: constants are stored once, and repeated texts by their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Cell = str | float | None


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
        """Return the column as JSON values: ``all`` for a constant, ``levels`` and ``index``, or plain ``values``.

        >>> Column(name="a", values=["x", "x"]).to_json()["all"]
        'x'
        >>> Column(name="a", values=["x", "y", "x", "x"]).to_json()["index"]
        [0, 1, 0, 0]
        """
        kind = {"name": self.name, "shown": self.is_shown, "choice": self.is_choice}
        kind["number"] = self.is_number
        levels = list(dict.fromkeys(self.values))
        if len(levels) == 1 and len(self.values) > 1:
            return {**kind, "all": levels[0]}
        if 2 * len(levels) <= len(self.values):
            places = {level: place for place, level in enumerate(levels)}
            return {**kind, "levels": levels, "index": [places[value] for value in self.values]}
        return {**kind, "values": list(self.values)}

    @property
    def is_number(self) -> bool:
        """True if all its values are numbers."""
        return all(value is None or not isinstance(value, str) for value in self.values)
