"""JSON: a list of objects, an object with one list of objects, or one object per line (JSON Lines)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.records import flattened, object_of_json, table_of_records
from torchx_cubicml.cli.table_formats.text import decoded
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

_LEGAL = "it must be a list of objects, or an object with one list of objects"


def read_json(place: Place) -> SourceTable:
    """Return one row per object of a list; the values beside the list hold for each row.

    Raises:
        RecordError: the file is no JSON, or holds no such list.
    """
    try:
        found = object_of_json(decoded(place, place.read()))
    except RecordError as error:
        raise RecordError(f"cannot read {place.text}: {error}") from error
    shared: dict[str, object] = {}
    if isinstance(found, dict):
        lists = [key for key, value in found.items() if isinstance(value, list) and any(map(_is_object, value))]
        if len(lists) != 1:
            names = f" (lists of objects: {', '.join(map(str, lists[:6]))})" if lists else ""
            raise RecordError(f"cannot read {place.text}: {_LEGAL}{names}")
        shared = {key: value for key, value in found.items() if key != lists[0]}
        found = found[lists[0]]
    if not isinstance(found, list) or not any(map(_is_object, found)):
        raise RecordError(f"cannot read {place.text}: {_LEGAL}")
    return _table(place, ((number, value, "") for number, value in enumerate(found, start=1)), shared, "object")


def read_json_lines(place: Place) -> SourceTable:
    """Return one row per line, each a JSON object.

    Raises:
        RecordError: the file cannot be read, or no line is an object.
    """
    lines = decoded(place, place.read()).split("\n")
    return _table(
        place, (_parsed(number, line) for number, line in enumerate(lines, start=1) if line.strip()), {}, "line"
    )


def _parsed(number: int, line: str) -> tuple[int, object, str]:
    try:
        return number, object_of_json(line), ""
    except RecordError as error:
        return number, None, str(error)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _table(
    place: Place, values: Iterable[tuple[int, object, str]], shared: dict[str, object], counted: str
) -> SourceTable:
    """Return the table of numbered values, each with the reason why it cannot be read, if any."""
    records, problems = [], []
    for number, value, reason in values:
        try:
            if not isinstance(value, dict):
                raise RecordError(reason or f"no JSON object, but {value!r:.40}")
            records.append((str(number), flattened({**shared, **value})))
        except RecordError as error:
            problems.append(f"{counted} {number}: {error}")
    return table_of_records(place, records, counted=counted, problems=problems)
