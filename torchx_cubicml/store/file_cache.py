"""Per-user file cache that saves work at the next launch; a file that is damaged or not private is a cache miss."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 256 * 1024 * 1024
_PACKAGE = Path(__file__).parents[1]
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_cache(path: Path) -> dict[str, object] | None:
    """Return the payload that ``write_cache`` wrote; ``None`` where the file is missing, damaged, or another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123 - wraps a descriptor
            if not _is_own(os.fstat(descriptor)):
                return None
            payload = json.loads(file.read(_MAX_BYTES + 1))
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    return payload if isinstance(payload, dict) else None


def write_cache(path: Path, payload: Mapping[str, object], *, most: int) -> None:
    """Write JSON values atomically; a failure is ignored, and the next launch does the work again.

    Args:
        path: path of the file.
        payload: JSON values to cache.
        most: largest number of files in the folder; the oldest are evicted.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with suppress(OSError, ValueError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - wraps a descriptor
                file.write(json.dumps(payload, separators=(",", ":"), allow_nan=False))
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _prune(path.parent, most)


def code_stamp() -> list[int]:
    """Return the modification times of this package's folders, which change where another version is installed."""
    stamps: list[int] = []
    for folder, subfolders, _ in os.walk(_PACKAGE):
        subfolders[:] = sorted(set(subfolders) - {"__pycache__"})
        stamps.append(os.stat(folder).st_mtime_ns)  # noqa: PTH116 - faster, and called at each launch
    return stamps


def _is_own(status: os.stat_result) -> bool:
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return own and stat.S_ISREG(status.st_mode) and not status.st_mode & _WRITTEN_BY_OTHERS


def _prune(folder: Path, most: int) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    for file in files[: max(len(files) - most, 0)]:
        file.unlink(missing_ok=True)
