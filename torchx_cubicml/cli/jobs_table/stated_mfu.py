"""Reader of a column of MFU: what a table states is kept beside the trial, and never used as a fact."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.written_numbers import rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.cli.jobs_table.source import SourceTable

_MFU = re.compile(r"(?:^|[^a-z])(?:mfu|model[\s_]flops?[\s_]utili[sz]ation)(?:[^a-z]|$)", re.IGNORECASE)
_PERCENT = re.compile(r"%|pct|percent", re.IGNORECASE)


class StatedMfu:
    """MFU of each row, by the only column headed so.

    It is a percentage where the heading or the cell says so, or the median of the column is above 1: a share above 1 is
    an error of one row, and says nothing about the others.

    Args:
        source: the table.
    """

    def __init__(self, source: SourceTable) -> None:
        columns = [column for column in source.headings if _MFU.search(column)]
        self._column = columns[0] if len(columns) == 1 else ""
        self._comma = source.decimal_comma
        cells = source.known_cells(self._column) if self._column else []
        values = [value for cell in cells if (value := self._number(cell)) is not None]
        self._in_percent = bool(_PERCENT.search(self._column)) or (bool(values) and median(values) > 1.0)

    def of(self, row: Mapping[str, str]) -> float | None:
        """Return the share of the peak that a row states; ``None`` where it states none between 0 and 1."""
        text = row[self._column] if self._column else ""
        value = self._number(text)
        if value is None:
            return None
        share = value / 100.0 if self._in_percent or "%" in text else value
        return share if 0.0 < share <= 1.0 else None

    def _number(self, text: str) -> float | None:
        return rate(text.replace("%", "").strip(), decimal_comma=self._comma) if text.strip() else None
