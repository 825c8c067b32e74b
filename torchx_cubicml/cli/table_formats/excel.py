"""Excel workbooks (``xlsx``), by openpyxl: the first sheet with a table, formulas by their saved values."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.parquet import EXTRA
from torchx_cubicml.cli.table_formats.records import MOST_CELLS, cell_text
from torchx_cubicml.cli.table_formats.text import table_of_rows
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

_MOST_UNPACKED = 2**29  # bytes of XML


def read_workbook(place: Place) -> SourceTable:
    """Return the rows of the first sheet of a workbook that has more than one.

    Raises:
        RecordError: openpyxl is missing, or the workbook is damaged, too large or has no table.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise RecordError(f"{place.text} is an Excel workbook, which needs openpyxl: {EXTRA}") from error
    data = io.BytesIO(place.read())
    try:
        _check_size(place, data)
        book = openpyxl.load_workbook(data, read_only=True, data_only=True, keep_links=False)
        others = []
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # what the file says of its own size may be wrong
            rows = list(_rows(place, sheet.iter_rows(values_only=True)))
            if sum(any(row) for _, row in rows) > 1:
                return _table(place, rows, sheet.title, [each for each in book.sheetnames if each != sheet.title])
            others.append(sheet.title)
    except RecordError:
        raise
    except Exception as error:
        raise RecordError(f"cannot read {place.text}: {type(error).__name__}: {error!s:.200}") from error
    raise RecordError(f"cannot read {place.text}: no sheet has a header and a row (sheets: {', '.join(others[:6])})")


def _check_size(place: Place, data: io.BytesIO) -> None:
    with zipfile.ZipFile(data) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _MOST_UNPACKED:
        raise RecordError(f"{place.text} unpacks to more than {_MOST_UNPACKED >> 20} MiB: split it")


def _rows(place: Place, found: Iterable[tuple[object, ...]]) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each row, without the empty cells at its end."""
    n_cells = 0
    for number, values in enumerate(found, start=1):
        n_cells += len(values) + 1
        if n_cells > MOST_CELLS:
            raise RecordError(_too_many(place))
        cells = [cell_text(value) for value in values]
        while cells and not cells[-1]:
            cells.pop()
        yield number, cells


def _table(place: Place, rows: list[tuple[int, list[str]]], title: str, others: list[str]) -> SourceTable:
    width = max(len(row) for _, row in rows)
    if width * len(rows) > MOST_CELLS:  # one far cell makes every row long
        raise RecordError(_too_many(place))
    start = next((index for index, (_, row) in enumerate(rows) if sum(map(bool, row)) > 1), 0)  # titles stand above
    padded = [(number, [*row, *[""] * (width - len(row))]) for number, row in rows[start:]]
    notes = [f"read sheet {title!r}; other sheets: {', '.join(others[:6])}"] if others else []
    return replace(table_of_rows(place, padded, counted="row"), notes=tuple(notes))


def _too_many(place: Place) -> str:
    return f"{place.text} has more than {MOST_CELLS:,} cells: split it"
