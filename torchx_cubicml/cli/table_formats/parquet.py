"""Parquet files, by pyarrow."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.records import MOST_CELLS, flattened, table_of_records
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

EXTRA = "pip install 'torchx-cubicml[import]'"
"""Command that installs what the binary formats need."""

_MOST_UNPACKED = 2**30  # bytes that the file says its columns need
_BATCH = 32  # rows that are unpacked at once


def read_parquet(place: Place) -> SourceTable:
    """Return one row per row of a Parquet file, nested columns flattened.

    Raises:
        RecordError: pyarrow is missing, or the file is damaged or too large.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise RecordError(f"{place.text} is a Parquet file, which needs pyarrow: {EXTRA}") from error
    problems: list[str] = []
    try:
        file = parquet.ParquetFile(io.BytesIO(place.read()))
        _check_size(place, file.metadata)
        rows = (row for batch in file.iter_batches(batch_size=_BATCH) for row in batch.to_pylist())
        return table_of_records(place, list(_records(rows, problems)), counted="row", problems=problems)
    except (ArrowException, OSError, OverflowError) as error:
        raise RecordError(f"cannot read {place.text}: {error!s:.200}") from error


def _check_size(place: Place, metadata: object) -> None:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]  # type: ignore[attr-defined]
    unpacked = sum(group.total_byte_size for group in groups)
    columns = range(metadata.num_columns)  # type: ignore[attr-defined]
    entries = sum(group.column(index).num_values for group in groups for index in columns)  # of lists, too
    cells = max(metadata.num_rows * len(columns), entries)  # type: ignore[attr-defined]
    if unpacked > _MOST_UNPACKED or cells > MOST_CELLS:
        raise RecordError(
            f"{place.text} has {cells:,} cells of {unpacked / 2**20:,.0f} MiB: more than {MOST_CELLS:,} or "
            f"{_MOST_UNPACKED >> 20} MiB cannot be read; split it"
        )


def _records(rows: Iterator[dict[str, object]], problems: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for number, row in enumerate(rows, start=1):
        try:
            yield str(number), flattened(row)
        except RecordError as error:
            problems.append(f"row {number}: {error}")
