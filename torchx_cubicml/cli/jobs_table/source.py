"""Source of jobs: a table of texts with a header, whatever format it was read from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.written_numbers import plain_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MISSING = frozenset({"", "-", "--", "\u2013", "\u2014", "?", "na", "n/a", "#n/a", "<na>", "nan", "null"})
"""Spellings of a missing value, in lower case; "none" is not among them, as it may be a value."""

_DECIMAL_COMMA = re.compile(r"\d+,(?!\d{3}$)\d+|0,\d+|\d{1,3}(?:\.\d{3})+,\d+")


@dataclass(frozen=True)
class SourceTable:
    """Content of a table, as texts.

    Args:
        place: path or URL, without secrets.
        headings: of the columns, distinct.
        rows: label of each row, such as its line or the folder of its run, and the cells, one per heading.
        problems: rows that cannot be read, a sentence each.
        delimiter: of the cells.
        counted: what a label names: ``line``, ``object``, ``row`` or ``run``.
        notes: remarks on the reading.
    """

    place: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    problems: tuple[str, ...] = ()
    delimiter: str = ","
    counted: str = "line"
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of the file or folder without its ending; ``jobs`` for the current folder."""
        return PurePosixPath(self.place.rstrip("/")).stem.strip(".") or "jobs"

    def cells(self, heading: str) -> list[str]:
        """Return the cells of a column, in the order of the rows."""
        place = self._places[heading]
        return [cells[place] for _, cells in self.rows]

    def known_cells(self, heading: str) -> list[str]:
        """Return the cells of a column that hold a value."""
        return [cell for cell in self.cells(heading) if cell.lower() not in MISSING]

    def records(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the label of each row, and heading -> cell."""
        for label, cells in self.rows:
            yield label, dict(zip(self.headings, cells, strict=True))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {heading: place for place, heading in enumerate(self.headings)}

    @cached_property
    def decimal_comma(self) -> bool:
        """Flag: a comma is the decimal sign, as some number has one that separates no thousands."""
        cells = [cell for _, row in self.rows for cell in row if "," in cell]
        return self.delimiter != "," and any(map(_DECIMAL_COMMA.fullmatch, cells))

    def number(self, text: str) -> float | None:
        """Return a cell as a number, by the decimal sign of the table; ``None`` where it is none."""
        return plain_number(text, decimal_comma=self.decimal_comma)


def distinct_headings(row: Sequence[str]) -> tuple[str, ...]:
    """Return distinct headings; a second one of the same text gets its number, an empty one its place.

    >>> distinct_headings(["tp", "", "tp"])
    ('tp', 'column 2', 'tp (2)')
    """
    found: list[str] = []
    for place, text in enumerate(row, start=1):
        name = text or f"column {place}"
        number = 2
        while name in found:
            name, number = f"{text} ({number})", number + 1
        found.append(name)
    return tuple(found)
