"""A store in a folder of this machine or of a shared file system, without fsspec: a launch has no time to import it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store.folder import EVENTS, MAX_OBJECT_BYTES, NO_SHELVES, Listing, Shelf, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_USUAL_BYTES = 16 * 1024  # reading up to the legal size at once would set that much memory aside for each object
_SETTLED_NS = 3_000_000_000  # file systems tell time in ticks, the coarsest of two seconds


class LocalFolder:
    """Files below one folder."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)

    def publish(self, day: str, name: str, data: bytes) -> None:
        """Write beside the name, then rename: a reader sees a whole file or none."""
        folder = self._root / EVENTS / day
        hidden = folder / f".{name}.tmp"
        try:
            if not folder.is_dir():
                self._make_day(folder)
            hidden.write_bytes(data)
            hidden.rename(folder / name)
        except OSError as error:
            with suppress(OSError):
                hidden.unlink(missing_ok=True)
            raise StoreError(f"store {self._root} cannot be written: {error}") from error

    def list_objects(self, known: Mapping[str, Shelf] = NO_SHELVES) -> Listing:
        """Walk the folders as they stand now; links to folders are not followed."""
        shelves: dict[str, Shelf] = {}
        problems: list[str] = []
        events = str(self._root / EVENTS)
        folders = [events]
        while folders:
            folder = folders.pop()
            try:
                shelf = _shelf(folder, known.get(folder))
            except FileNotFoundError:
                continue
            except OSError as error:
                if folder == events:
                    raise StoreError(f"store {self._root} cannot be read: {error}") from error
                problems.append(f"{folder} ({error.strerror})")
                continue
            shelves[folder] = shelf
            folders += shelf.folders
        return Listing(shelves=shelves, problems=tuple(problems))

    def read(self, places: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """Read one file after another."""
        for place in places:
            yield place, _read_file(place)

    def _make_day(self, folder: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        mode = self._root.stat().st_mode & 0o7777
        for new in (folder.parent, folder):
            try:
                new.mkdir()
            except FileExistsError:
                continue
            with suppress(OSError):
                new.chmod(mode)  # who may write to the store may write on each new day, whoever began it


def _shelf(folder: str, known: Shelf | None) -> Shelf:
    stamp = _stamp(folder)
    if known is not None and stamp is not None and known.stamp == stamp:
        return known
    names, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif is_object(entry.name) and entry.is_file():
                names.append(entry.name)
    return Shelf(place=folder, names=tuple(sorted(names)), folders=tuple(sorted(folders)), stamp=stamp)


def _stamp(folder: str) -> int | None:
    """Return when an entry last came or went, ``None`` if that was a moment ago: the next would bear the same time.

    It is the time of the last change of status, for nobody can set that one back.
    """
    changed = os.stat(folder).st_ctime_ns  # noqa: PTH116 - thrice as fast, and a store has a folder for each day
    return changed if time.time_ns() - changed > _SETTLED_NS else None


def _read_file(place: str) -> bytes | Exception:
    try:
        descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        return error
    try:
        head = os.read(descriptor, _USUAL_BYTES)
        while len(head) >= _USUAL_BYTES and len(head) <= MAX_OBJECT_BYTES:
            more = os.read(descriptor, MAX_OBJECT_BYTES + 1 - len(head))
            if not more:
                break
            head += more
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    return head
