"""Columns that hold several facts: TP/PP/DP as 8/4/2, TP8-PP4 in one cell, and 8xA100."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.cells import COUNTS
from torchx_cubicml.cli.jobs_table.headings import read_heading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.jobs_table.source import SourceTable

_SEPARATORS = r"\s*[/,;|x\u00d7*+:_-]\s*|\s+"
_BETWEEN_NAMES = r"\s*[/,;|\u00d7*+:-]\s*|\s+x\s+|(?<=[A-Z])x(?=[A-Z])"
_LABELLED = re.compile(r"([A-Za-z]+)\s*[=:]?\s*(\d+)|(\d+)\s*([A-Za-z]+)")
_DEVICES = re.compile(r"(\d+)\s*[x\u00d7*]?\s*((?:NVIDIA|AMD)?\s*[A-Za-z]{1,4}\d+.*)", re.IGNORECASE)
_LONGEST = 256  # characters of such a cell; the patterns take quadratic time
_NOT_FOUND = ""


def split_columns(source: SourceTable) -> tuple[SourceTable, dict[str, str]]:
    """Return the table with each column of several facts replaced by one column per fact, and new -> old column."""
    origin: dict[str, str] = {}
    for heading in source.headings:
        found = _split(heading, source.known_cells(heading), source.cells(heading))
        if found and not {*found} & ({*source.headings} - {heading}):
            source = _replaced(source, heading, found)
            origin |= dict.fromkeys(found, heading)
    return source, origin


def _split(heading: str, known: Sequence[str], cells: Sequence[str]) -> dict[str, list[str]]:
    if not known or max(map(len, (heading, *known))) > _LONGEST:
        return {}
    return _by_heading(heading, known, cells) or _by_labels(known, cells) or _by_device(heading, known, cells)


def _by_heading(heading: str, known: Sequence[str], cells: Sequence[str]) -> dict[str, list[str]]:
    """Split 8/4/2 under TP/PP/DP."""
    names = [part for part in re.split(_BETWEEN_NAMES, heading.strip("()[] ")) if part]
    if len(names) < 2:
        return {}
    meanings = {read_heading(name).name for name in names}
    if len(meanings) < len(names) or not meanings <= COUNTS:
        return {}
    rows = {cell: _whole_numbers(cell, len(names)) for cell in known}
    if not all(rows.values()):
        return {}
    return {name: [rows.get(cell, [cell] * len(names))[place] for cell in cells] for place, name in enumerate(names)}


def _whole_numbers(cell: str, count: int) -> list[str]:
    parts = [part for part in re.split(_SEPARATORS, cell.strip("()[] ")) if part]
    return parts if len(parts) == count and all(map(str.isdecimal, parts)) else []


def _by_labels(known: Sequence[str], cells: Sequence[str]) -> dict[str, list[str]]:
    """Split TP8-PP4, tp=8,pp=4 or 8TP 4PP, where each label names a count."""
    rows = {cell: _labels(cell) for cell in known}
    if not all(rows.values()):
        return {}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    return {name: [rows.get(cell, {}).get(name, _NOT_FOUND) for cell in cells] for name in names}


def _labels(cell: str) -> dict[str, str]:
    found = {(each[1] or each[4]).lower(): each[2] or each[3] for each in _LABELLED.finditer(cell)}
    rest = re.sub(r"[\s,;/|x\u00d7*+:_()\[\]=-]+", "", _LABELLED.sub("", cell))
    legal = all(read_heading(label).name in COUNTS and len(label) > 1 for label in found)
    return found if legal and not rest else {}


def _by_device(heading: str, known: Sequence[str], cells: Sequence[str]) -> dict[str, list[str]]:
    """Split 8xA100-80GB into the number of devices and their kind."""
    meaning = read_heading(heading)
    if not {meaning.name, *meaning.choices} & {"world_size", "device", "world_size+device"}:
        return {}
    found = {cell: match for cell in known if (match := _DEVICES.fullmatch(cell))}
    if len(found) < len(set(known)):
        return {}
    return {
        "GPUs": [found[cell][1] if cell in found else cell for cell in cells],
        "GPU type": [found[cell][2] if cell in found else cell for cell in cells],
    }


def _replaced(source: SourceTable, heading: str, columns: dict[str, list[str]]) -> SourceTable:
    place = source.headings.index(heading)
    new = list(zip(*columns.values(), strict=True))
    rows = [
        (line, (*cells[:place], *new[number], *cells[place + 1 :])) for number, (line, cells) in enumerate(source.rows)
    ]
    headings = (*source.headings[:place], *columns, *source.headings[place + 1 :])
    return replace(source, headings=headings, rows=tuple(rows))
