"""Table of the formats that ``history import`` reads, and their recognition by content and name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.deepspeed_autotuning import is_deepspeed, read_deepspeed
from torchx_cubicml.cli.table_formats.excel import read_workbook
from torchx_cubicml.cli.table_formats.json_records import read_json, read_json_lines
from torchx_cubicml.cli.table_formats.mlflow_runs import is_mlflow, read_mlflow
from torchx_cubicml.cli.table_formats.paddle_tuner import is_paddle, read_paddle
from torchx_cubicml.cli.table_formats.parquet import read_parquet
from torchx_cubicml.cli.table_formats.place import Place
from torchx_cubicml.cli.table_formats.text import read_text_table
from torchx_cubicml.cli.table_formats.training_logs import is_training_log, read_training_logs
from torchx_cubicml.cli.table_formats.wandb_runs import is_wandb, read_wandb
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torchx_cubicml.cli.jobs_table.source import SourceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """Format of foreign records.

    Args:
        read: returns the table of a file or folder.
        is_file: whether a file is of the format, by its name in lower case and its first bytes; ``None`` for no file.
        is_folder: whether a folder with these files is of the format; ``None`` for no folder.
    """

    read: Callable[[Place], SourceTable]
    is_file: Callable[[str, bytes], bool] | None = None
    is_folder: Callable[[Sequence[str]], bool] | None = None


_JSON_LINES_NAMES = (".jsonl", ".ndjson")
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*[\[{\"\]])")


def _is_json_lines(name: str, head: bytes) -> bool:
    lines = [line for line in head.splitlines() if line.strip()]
    is_object_per_line = len(lines) > 1 and lines[0].rstrip().endswith(b"}")
    return _JSON.match(head) is not None and (name.endswith(_JSON_LINES_NAMES) or is_object_per_line)


def _is_workbook(name: str, head: bytes) -> bool:
    return head.startswith(b"PK\x03\x04") and not name.endswith((".ods", ".zip"))


FORMATS: dict[str, TableFormat] = {
    "parquet": TableFormat(read=read_parquet, is_file=lambda _, head: head.startswith(b"PAR1")),
    "xlsx": TableFormat(read=read_workbook, is_file=_is_workbook),
    "jsonl": TableFormat(read=read_json_lines, is_file=_is_json_lines),
    "json": TableFormat(read=read_json, is_file=lambda _, head: _JSON.match(head) is not None),
    "paddle": TableFormat(read=read_paddle, is_file=lambda _, head: is_paddle(head)),
    "mlflow": TableFormat(read=read_mlflow, is_folder=is_mlflow),
    "wandb": TableFormat(read=read_wandb, is_folder=is_wandb),
    "deepspeed": TableFormat(read=read_deepspeed, is_folder=is_deepspeed),
    "logs": TableFormat(
        read=read_training_logs,
        is_file=lambda _, head: is_training_log(head.decode(errors="replace")),
        is_folder=bool,
    ),
    "text": TableFormat(read=read_text_table, is_file=lambda _name, _head: True),
}
"""Name for ``--format`` -> format; the first that recognises a file or a folder reads it."""

_PANDAS = "python -c \"import pandas; pandas.{reader}('{{name}}').to_csv('{{stem}}.csv', index=False)\""
_REFUSED = (
    (b"\xd0\xcf\x11\xe0", "", "an old Excel workbook", _PANDAS.format(reader="read_excel")),
    (b"PK\x03\x04", ".ods", "an OpenDocument sheet", _PANDAS.format(reader="read_excel")),
    (b"ARROW1", "", "an Arrow file", _PANDAS.format(reader="read_feather")),
    (b"\x1f\x8b", "", "a compressed file", "gzip -dk {name}"),
)
"""First bytes and ending of a format that is not read, its name, and the command that converts it."""

_HEAD = 2**22  # bytes by which a format is told


def read_source(url: str | Path, file_format: str = "") -> SourceTable:
    """Return the table of past jobs in a file or a folder.

    Args:
        url: path or URL of any fsspec protocol.
        file_format: one of ``FORMATS``; empty to tell it by content and name.

    Raises:
        RecordError: nothing can be read there, or the format is unknown.
    """
    place = Place(url)
    if not file_format:
        return FORMATS[_folder_format(place) if place.is_folder else _file_format(place)].read(place)
    chosen = FORMATS.get(file_format)
    if chosen is None:
        raise RecordError(f"unknown format {file_format!r:.40}; choose from {', '.join(FORMATS)}")
    if place.is_folder and chosen.is_folder is None:
        raise RecordError(f"{file_format} is a format of files, and {place.text} is a folder")
    if not place.is_folder and chosen.is_file is None:
        raise RecordError(f"{file_format} is a format of folders, and {place.text} is a file")
    return chosen.read(place)


def _file_format(place: Place) -> str:
    head, name = place.head(_HEAD), place.name.lower()
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head.decode("utf-16", errors="ignore").encode()
    for magic, ending, what, cure in _REFUSED:
        if head.startswith(magic) and name.endswith(ending):
            how = cure.format(name=place.name, stem=PurePosixPath(place.name).stem)
            raise RecordError(f"{place.text} is {what}, which is not read; convert it with: {how}")
    return next(key for key, each in FORMATS.items() if each.is_file is not None and each.is_file(name, head))


def _folder_format(place: Place) -> str:
    files = place.files()
    found = [key for key, each in FORMATS.items() if each.is_folder is not None and each.is_folder(files)]
    if not found:
        raise RecordError(f"{place.text} holds no file: name a folder of runs, or a table")
    if len(found) > 2:  # every folder may hold logs
        raise RecordError(
            f"{place.text} holds records of {', '.join(found[:-2])} and {found[-2]}: choose one with --format"
        )
    return found[0]
