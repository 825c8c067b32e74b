"""Transaction log of one run of W&B (``run-ID.wandb``): the config and the summary that it adds up to.

An offline run consists of this file alone. It is a log of LevelDB blocks behind a header of seven bytes; each entry is
a Protocol Buffers message ``Record``. The numbers below are those of its fields:
https://github.com/wandb/wandb/blob/main/wandb/proto/wandb_internal.proto
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.records import flattened, object_of_json
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = b":W&B"
_FILE_HEADER = 7  # bytes: the mark, a number and a version
_BLOCK, _BLOCK_HEADER = 32768, 7  # https://github.com/google/leveldb/blob/main/doc/log_format.md
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SUMMARY, _CONFIG, _RUN, _EXIT, _ENVIRONMENT = 3, 5, 17, 18, 26  # in Record
_UPDATE, _REMOVE = 1, 2  # in ConfigRecord and SummaryRecord
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16  # in ConfigItem and SummaryItem
_RUN_CONFIG, _START_TIME = 4, 17  # in RunRecord
_SECONDS = 1  # in its Timestamp
_EXIT_CODE = 1  # in RunExitRecord
_PROGRAM, _GPU_TYPE = 6, 18  # in EnvironmentRecord
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # wire types


def read_wandb_log(data: bytes) -> dict[str, str]:
    """Return the cells of a run: its program, device, start, config, the last value of each metric, and its status.

    A log that is cut short counts up to there; its run has no end and no status.

    Raises:
        RecordError: the file is of another kind, or damaged.
    """
    if not data.startswith(_MAGIC):
        raise RecordError("no transaction log of W&B")
    run = _LoggedRun()
    try:
        for entry in _entries(data):
            for number, value in _fields(entry):
                if isinstance(value, bytes):
                    run.add(number, value)
    except (IndexError, UnicodeDecodeError) as error:
        raise RecordError(f"a damaged transaction log of W&B: {error}") from error
    return run.cells()


@dataclass(frozen=True, slots=True)
class _LoggedRun:
    """Run as far as its log has been read.

    Args:
        about: heading -> text.
        config: path of keys -> value.
        summary: path of keys -> value.
    """

    about: dict[str, str] = field(default_factory=dict)
    config: dict[str, object] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)

    def add(self, number: int, content: bytes) -> None:
        """Add one field of a record."""
        if number == _RUN:
            for part in _values(content, _RUN_CONFIG):
                self.config.update(_items(part))
            for part in _values(content, _START_TIME):
                self.about.update(_start(part))
        elif number in {_CONFIG, _SUMMARY}:
            (self.config if number == _CONFIG else self.summary).update(_items(content))
        elif number == _ENVIRONMENT:
            self.about.update(_named(content, {_PROGRAM: "program", _GPU_TYPE: "GPU type"}))
            if "program" in self.about:
                self.about["program"] = PurePosixPath(self.about["program"]).name  # its folders are the machine's
        elif number == _EXIT:
            codes = [code for name, code in _fields(content) if name == _EXIT_CODE]
            self.about["status"] = "failed" if any(codes) else "finished"

    def cells(self) -> dict[str, str]:
        """Return heading -> text; keys that begin with an underscore are W&B's own."""
        config, summary = (
            flattened({key: value for key, value in values.items() if not key.startswith("_")})
            for values in (self.config, self.summary)
        )
        record = self.about | config
        return record | {f"summary.{key}" if key in record else key: text for key, text in summary.items()}


def _entries(data: bytes) -> Iterator[bytes]:
    position = _FILE_HEADER
    parts: list[bytes] = []
    while position + _BLOCK_HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _BLOCK_HEADER:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        position += _BLOCK_HEADER
        if kind not in {_FULL, _FIRST, _MIDDLE, _LAST} or position + length > len(data):
            return
        parts = [] if kind in {_FULL, _FIRST} else parts
        parts.append(data[position : position + length])
        position += length
        if kind in {_FULL, _LAST}:
            yield b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field; a field of a fixed size has the value 0."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
        elif kind == _BYTES:
            length, position = _varint(message, position)
            if position + length > len(message):
                raise IndexError("a field is longer than its record")
            yield tag >> 3, message[position : position + length]
            position += length
        elif kind in {_FIXED_64, _FIXED_32}:
            yield tag >> 3, value
            position += 8 if kind == _FIXED_64 else 4
        else:
            raise IndexError(f"unknown wire type {kind}")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("a number has more than ten bytes")


def _values(message: bytes, number: int) -> list[bytes]:
    return [value for name, value in _fields(message) if name == number and isinstance(value, bytes)]


def _named(message: bytes, names: dict[int, str]) -> dict[str, str]:
    found = {names[number]: value.decode() for number in names for value in _values(message, number)}
    return flattened(found) if found else {}


def _start(message: bytes) -> dict[str, str]:
    seconds = next((value for number, value in _fields(message) if number == _SECONDS), 0)
    try:
        return {"started_at": datetime.fromtimestamp(int(seconds), tz=UTC).isoformat()}
    except (OverflowError, OSError, ValueError):
        return {}


def _items(message: bytes) -> Iterator[tuple[str, object]]:
    """Yield path of keys -> value for each update in a config or a summary; ``None`` for what is removed."""
    for number, value in _fields(message):
        if number in {_UPDATE, _REMOVE} and isinstance(value, bytes):
            keys = _values(value, _NESTED_KEY) or _values(value, _KEY)
            texts = _values(value, _VALUE) if number == _UPDATE else []
            yield ".".join(key.decode() for key in keys), object_of_json(texts[-1]) if texts else None
