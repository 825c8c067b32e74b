"""Text tables: a header and one row per job, separated by commas, tabs, semicolons or bars, in UTF-8 or UTF-16."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.source import SourceTable, distinct_headings
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.table_formats.place import Place

_DELIMITERS = ",\t;|"
_SAMPLE = 50  # first lines, which show the delimiter and the width of the table


def read_text_table(place: Place) -> SourceTable:
    """Return the content of a text file with a header and one row per job.

    Raises:
        RecordError: the file cannot be read, or has no header.
    """
    text = decoded(place, place.read())
    delimiter = _delimiter(text.splitlines()[:_SAMPLE])
    try:
        return _table(place, _without_outer_bars(text) if delimiter == "|" else text, delimiter)
    except csv.Error as error:
        raise RecordError(f"cannot read {place.text}: {error}") from error


def decoded(place: Place, data: bytes) -> str:
    """Return the text of a file in UTF-8 or UTF-16.

    Raises:
        RecordError: it is in another encoding.
    """
    encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except ValueError as error:
        raise RecordError(f"cannot read {place.text}: {error}; save it as UTF-8") from error
    return text.replace("\0", "")


def _delimiter(lines: Sequence[str]) -> str:
    """Return the delimiter that splits most lines into the same number of cells, a comma where none does."""

    def share(delimiter: str) -> tuple[float, int]:
        widths = Counter(len(row) for row in _split(lines, delimiter) if row)
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
        return (count / max(widths.total(), 1) if width > 1 else 0.0, width)

    return max(_DELIMITERS, key=share)


def _split(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return []


def _without_outer_bars(text: str) -> str:
    """Return a table with bars without its Markdown rule, and without the bars around all of its lines.

    A bar that ends some lines only stands before an empty last cell.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = ["" if re.fullmatch(r"[\s|:-]*-[\s|:-]*", line) else line for line in lines]  # lines keep their numbers
    filled = [line for line in lines if "|" in line]
    if all(line.startswith("|") for line in filled):
        lines = [line.removeprefix("|").removesuffix("|") for line in lines]
    elif all(line.endswith("|") for line in filled):
        lines = [line.removesuffix("|") for line in lines]
    return "\n".join(lines)


def _table(place: Place, text: str, delimiter: str) -> SourceTable:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    clean = _without_markup if delimiter == "|" else str.strip
    numbered = [(reader.line_num, [clean(cell) for cell in row]) for row in reader]
    return table_of_rows(place, numbered, delimiter=delimiter)


def table_of_rows(
    place: Place, numbered: Sequence[tuple[int, Sequence[str]]], *, delimiter: str = ",", counted: str = "line"
) -> SourceTable:
    """Return the table of rows of cells: the first row that is as wide as most is the header.

    Args:
        place: where they were read.
        numbered: number of each row, and its cells without blanks around.
        delimiter: of the cells.
        counted: word for one row in messages.

    Raises:
        RecordError: there is no row.
    """
    filled = [(number, row) for number, row in numbered if any(row)]
    widths = Counter(len(row) for _, row in filled[:_SAMPLE])
    width = max(widths, key=lambda size: (widths[size], size), default=0)
    start = next((index for index, (_, row) in enumerate(filled) if len(row) >= width), 0)
    if not filled:
        raise RecordError(f"cannot read {place.text}: the file is empty")
    headings = distinct_headings(filled[start][1])
    rows, problems = [], []
    for number, row in filled[start + 1 :]:
        if len(row) == len(headings):
            rows.append((str(number), tuple(row)))
        else:
            problems.append(f"{counted} {number}: the number of fields differs from the header")
    return SourceTable(place.text, headings, tuple(rows), tuple(problems), delimiter=delimiter, counted=counted)


def _without_markup(cell: str) -> str:
    """Return the text of a cell without the marks of Markdown around it.

    >>> [_without_markup(text) for text in ("**1,024** ", "`fsdp`", "[7B](https://example.com/7b)", "2*", "*")]
    ['1,024', 'fsdp', '7B', '2*', '*']
    """
    cell = re.sub(r"^\[([^\[\]]+)\]\([^()]*\)$", r"\1", cell.strip())
    return re.sub(r"^(\*{1,3}|_{1,3}|`)([^*_`]|[^*_`].*[^*_`])\1$", r"\2", cell).strip()
