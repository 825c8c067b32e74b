"""Rows of records: objects with nested keys become flat rows of texts, and these one table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.source import SourceTable, distinct_headings
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.cli.table_formats.place import Place

MOST_CELL = 2**16
"""Characters of one cell."""

MOST_CELLS = 2**24
"""Cells of one table, empty ones included."""

_MOST_COLUMNS = 4096
_MOST_DIGITS = 18
_MOST_DEPTH = 32
_MOST_KEY = 256  # characters of a path of keys


def flattened(found: Mapping[str, object]) -> dict[str, str]:
    """Return path of keys -> text, for the values of nested objects.

    Raises:
        RecordError: the objects are nested too deeply, or a key or a value is too long.

    >>> flattened({"model": {"hidden_size": 64, "bias": None}, "betas": [0.9, 0.95], "compile": True})
    {'model.hidden_size': '64', 'model.bias': '', 'betas': '[0.9, 0.95]', 'compile': 'true'}
    """
    cells: dict[str, str] = {}
    open_: list[tuple[str, object, int]] = [("", found, 0)]
    while open_:
        path, value, depth = open_.pop()
        if not isinstance(value, dict):
            cells[path] = cell_text(value)
            continue
        if depth == _MOST_DEPTH:
            raise RecordError(f"key {path!r:.60} is nested more than {_MOST_DEPTH} levels deep")
        for key, inside in reversed(value.items()):
            name = f"{path}.{key}" if path else str(key)
            if len(name) > _MOST_KEY:
                raise RecordError(f"key {name!r:.60} is longer than {_MOST_KEY} characters")
            open_.append((name, inside, depth + 1))
        if len(cells) + len(open_) > _MOST_COLUMNS:
            raise RecordError(f"more than {_MOST_COLUMNS:,} keys")
    return cells


def cell_text(value: object) -> str:
    """Return a value as the text of a cell: nothing for none, JSON for a list.

    Raises:
        RecordError: the text is too long.

    >>> [cell_text(value) for value in (8, 0.5, True, None, " bf16 ", [1, 2])]
    ['8', '0.5', 'true', '', 'bf16', '[1, 2]']
    """
    if value is None:
        return ""
    try:
        text = json.dumps(value, default=str) if isinstance(value, bool | list | dict) else str(value).strip()
    except RecursionError as error:
        raise RecordError("a list is nested too deeply") from error
    except ValueError as error:  # Python writes no whole number of thousands of digits
        raise RecordError("a number has too many digits") from error
    if len(text) > MOST_CELL:
        raise RecordError(f"a value is longer than {MOST_CELL:,} characters: {text[:24]!r}...")
    return text


def whole_number(text: str) -> int | None:
    """Return a whole number of at most 18 digits; ``None`` for another text.

    >>> whole_number("8"), whole_number("8.5"), whole_number("9" * 5000)
    (8, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def table_of_records(
    place: Place,
    records: Iterable[tuple[str, Mapping[str, str]]],
    *,
    counted: str,
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> SourceTable:
    """Return the table of flat records; a key that a record lacks is an empty cell.

    Args:
        place: where they were read.
        records: label of each record, such as its number or its folder, and heading -> cell.
        counted: word for one record in messages, such as ``run``.
        problems: records that cannot be read, a sentence each.
        notes: remarks on the reading.

    Raises:
        RecordError: there is no record, or the table is too large.
    """
    kept = list(records)
    headings = list(dict.fromkeys(heading for _, record in kept for heading in record))
    if len(headings) * len(kept) > MOST_CELLS:
        raise RecordError(
            f"{place.text}: {len(kept):,} {counted}s with {len(headings):,} different keys are more than "
            f"{MOST_CELLS:,} cells: split them"
        )
    if not headings:
        why = f": {problems[0]}" if problems else ""
        raise RecordError(f"cannot read {place.text}: there is no {counted} in it{why}")
    rows = tuple((label, tuple(record.get(heading, "") for heading in headings)) for label, record in kept)
    return SourceTable(
        place=place.text,
        headings=distinct_headings(headings),
        rows=rows,
        problems=tuple(problems),
        counted=counted,
        notes=tuple(notes),
    )


def object_of_json(data: bytes | str) -> object:
    """Return the value of a JSON text.

    Raises:
        RecordError: the text is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise RecordError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise RecordError(f"no JSON: {error}") from error
