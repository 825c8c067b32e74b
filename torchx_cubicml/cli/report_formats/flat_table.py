"""Report as a table of all trials: CSV or Parquet, one flat column for each recorded fact."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections.trials_table import recorded_values
from torchx_cubicml.cli.table_formats.parquet import EXTRA
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.report_formats.store_report import StoreReport
    from torchx_cubicml.records.trial import Trial

    Cell = str | int | float | bool | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a text that begins so for a formula
_MOST_LETTERS = 32_000  # of one cell; a spreadsheet holds 32,767
_LARGEST = 2**63  # whole numbers of Parquet end below


def content(report: StoreReport, *, kind: str) -> bytes:
    """Return the table in the format ``csv`` or ``parquet``.

    Raises:
        LaunchError: pyarrow is not installed.
    """
    columns = flat_columns(report.trials)
    return _csv(columns) if kind == "csv" else _parquet(columns)


def flat_columns(trials: Sequence[Trial]) -> dict[str, list[Cell]]:
    """Return the column of each recorded fact, by names such as ``config.micro_batch_size``; secrets are masked."""
    columns: dict[str, list[Cell]] = {}
    for row, trial in enumerate(trials):
        for name, value in recorded_values(trial):
            shown = _shown(name)
            if shown not in columns:
                columns[shown] = [None] * len(trials)
            columns[shown][row] = _cell(value)
    return columns


def _cell(value: Any) -> Cell:
    """Return a scalar as it is, and anything else as JSON text."""
    if isinstance(value, bool | int | float):
        return value
    return _shown(str(value) if isinstance(value, str) else json.dumps(value, default=str))


def _shown(text: str) -> str:
    return printable(mask(text[:_MOST_LETTERS]))


def _csv(columns: dict[str, list[Cell]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(map(_no_formula, columns))
    writer.writerows(map(_no_formula, row) for row in zip(*columns.values(), strict=True))
    return file.getvalue().encode()


def _no_formula(value: Cell) -> Cell:
    """Return a text that a spreadsheet does not run; an apostrophe before it says that it is a text.

    >>> _no_formula("=1+1"), _no_formula(-1.5), _no_formula("a-b")
    ("'=1+1", -1.5, 'a-b')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def arrow() -> Any:
    """Return pyarrow.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise LaunchError(f"--format parquet needs pyarrow: {EXTRA}") from error
    return pyarrow


def _parquet(columns: dict[str, list[Cell]]) -> bytes:
    pyarrow = arrow()
    file = io.BytesIO()
    table = pyarrow.table({name: _one_kind(values) for name, values in columns.items()})
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


def _one_kind(values: list[Cell]) -> list[Cell]:
    """Return the values in one type: whole numbers, numbers, truth values, or texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int} and any(value is not None and abs(value) >= _LARGEST for value in values):  # type: ignore[arg-type]  # ints
        return [None if value is None else str(value) for value in values]
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return values
