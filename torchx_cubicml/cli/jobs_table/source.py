"""Source of a table: a text file with a header, separated by commas, tabs, semicolons or bars."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.written_numbers import plain_number
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MISSING = frozenset({"", "-", "--", "\u2013", "\u2014", "?", "na", "n/a", "#n/a", "<na>", "nan", "null"})
"""Spellings of a missing value, in lower case; "none" is not among them, as it may be a value."""

_DELIMITERS = ",\t;|"
_MOST_BYTES = 2**28
_DECIMAL_COMMA = re.compile(r"\d+,(?!\d{3}$)\d+|0,\d+|\d{1,3}(?:\.\d{3})+,\d+")
_SAMPLE = 50  # first lines, which show the delimiter and the width of the table
_PANDAS = "python -c \"import pandas; pandas.{reader}('{name}'{more}).to_csv('{stem}.csv', index=False)\""
_OTHER_FORMATS = {
    "an Excel workbook": _PANDAS.format(reader="read_excel", name="{name}", more="", stem="{stem}"),
    "a Parquet file": _PANDAS.format(reader="read_parquet", name="{name}", more="", stem="{stem}"),
    "a JSON file": _PANDAS.format(reader="read_json", name="{name}", more="", stem="{stem}"),
    "a JSON Lines file": _PANDAS.format(reader="read_json", name="{name}", more=", lines=True", stem="{stem}"),
    "an Arrow file": _PANDAS.format(reader="read_feather", name="{name}", more="", stem="{stem}"),
    "an OpenDocument sheet": _PANDAS.format(reader="read_excel", name="{name}", more="", stem="{stem}"),
    "a compressed file": "gzip -dk {name}",
}
_MAGIC = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"PK\x03\x04", "an Excel workbook"),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook"),
    (b"\x1f\x8b", "a compressed file"),
)
_ENDINGS = {
    ".xlsx": "an Excel workbook",
    ".xls": "an Excel workbook",
    ".xlsm": "an Excel workbook",
    ".xlsb": "an Excel workbook",
    ".parquet": "a Parquet file",
    ".pq": "a Parquet file",
    ".feather": "an Arrow file",
    ".arrow": "an Arrow file",
    ".jsonl": "a JSON Lines file",
    ".ndjson": "a JSON Lines file",
    ".json": "a JSON file",
    ".ods": "an OpenDocument sheet",
    ".gz": "a compressed file",
}


@dataclass(frozen=True)
class SourceTable:
    """Content of a table, as texts.

    Args:
        path: of the file.
        headings: of the columns, distinct.
        rows: line in the file, and the cells, as many as there are headings.
        problems: lines with another number of cells.
        delimiter: of the cells.
    """

    path: Path
    headings: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    problems: tuple[str, ...] = ()
    delimiter: str = ","

    def cells(self, heading: str) -> list[str]:
        """Return the cells of a column, in the order of the rows."""
        place = self._places[heading]
        return [cells[place] for _, cells in self.rows]

    def known_cells(self, heading: str) -> list[str]:
        """Return the cells of a column that hold a value."""
        return [cell for cell in self.cells(heading) if cell.lower() not in MISSING]

    def records(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the line of each row, and heading -> cell."""
        for line, cells in self.rows:
            yield line, dict(zip(self.headings, cells, strict=True))

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


def read_source(path: Path) -> SourceTable:
    """Return the content of a text file with a header and one row per job.

    Raises:
        RecordError: the file cannot be read, is of another format, or has no header.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: an illegal path
        raise RecordError(f"cannot read {path}: {error}") from error
    if len(data) > _MOST_BYTES:
        raise RecordError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: split it")
    _refuse_other_formats(path, data)
    text = _decoded(path, data)
    lines = text.splitlines()
    delimiter = _delimiter(lines[:_SAMPLE])
    try:
        return _table(path, _without_outer_bars(text) if delimiter == "|" else text, delimiter)
    except csv.Error as error:
        raise RecordError(f"cannot read {path}: {error}") from error


def _refuse_other_formats(path: Path, data: bytes) -> None:
    found = _ENDINGS.get(path.suffix.lower(), "")
    found = found or next((name for magic, name in _MAGIC if data.startswith(magic)), "")
    if not found and re.match(rb'\s*(?:\{\s*["}]|\[\s*[\[{"\]])', data):
        lines = [line for line in data[:65536].splitlines() if line.strip()]
        found = "a JSON Lines file" if len(lines) > 1 and lines[0].rstrip().endswith(b"}") else "a JSON file"
    if found:
        cure = _OTHER_FORMATS[found].format(name=path.name, stem=path.stem)
        raise RecordError(f"{path} is {found}; this command reads text tables (CSV, TSV); convert it with: {cure}")


def _decoded(path: Path, data: bytes) -> str:
    encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except ValueError as error:
        raise RecordError(f"cannot read {path}: {error}; save the table as UTF-8") from error
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


def _table(path: Path, text: str, delimiter: str) -> SourceTable:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    numbered = [(reader.line_num, row) for row in reader]
    clean = _without_markup if delimiter == "|" else str.strip
    numbered = [(line, [clean(cell) for cell in row]) for line, row in numbered if any(map(str.strip, row))]
    widths = Counter(len(row) for _, row in numbered[:_SAMPLE])
    width = max(widths, key=lambda size: (widths[size], size), default=0)
    start = next((place for place, (_, row) in enumerate(numbered) if len(row) >= width), 0)
    if not numbered:
        raise RecordError(f"cannot read {path}: the file is empty")
    headings = _headings(numbered[start][1])
    rows, problems = [], []
    for line, row in numbered[start + 1 :]:
        if len(row) == len(headings):
            rows.append((line, tuple(row)))
        else:
            problems.append(f"line {line}: the number of fields differs from the header")
    return SourceTable(path, headings, tuple(rows), tuple(problems), delimiter=delimiter)


def _without_markup(cell: str) -> str:
    """Return the text of a cell without the marks of Markdown around it.

    >>> [_without_markup(text) for text in ("**1,024** ", "`fsdp`", "[7B](https://example.com/7b)", "2*", "*")]
    ['1,024', 'fsdp', '7B', '2*', '*']
    """
    cell = re.sub(r"^\[([^\[\]]+)\]\([^()]*\)$", r"\1", cell.strip())
    return re.sub(r"^(\*{1,3}|_{1,3}|`)([^*_`]|[^*_`].*[^*_`])\1$", r"\2", cell).strip()


def _headings(row: Sequence[str]) -> tuple[str, ...]:
    """Return distinct headings; a second one of the same text gets its number, an empty one its place.

    >>> _headings(["tp", "", "tp"])
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
