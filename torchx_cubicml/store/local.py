"""Storage backend for a local or shared folder, without fsspec: importing it would delay every launch."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store.backend import (
    EVENTS,
    MAX_OBJECT_BYTES,
    NO_DIRECTORIES,
    Directory,
    Listing,
    Presence,
    is_object,
    never,
    presence_of,
)
from torchx_cubicml.store.obstacle import nearest_existing
from torchx_cubicml.store.segments import MAX_SEGMENT_BYTES, SEGMENTS, Segments, is_segment, segment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_FIRST_READ_BYTES = (
    16 * 1024
)  # first read of an object; reading up to the limit would allocate that much memory for each
_GONE_ERRNOS = {errno.ENOENT, errno.ESTALE}  # ESTALE: deleted on a network file system
_NO_FSYNC_ERRNOS = {errno.EINVAL, errno.ENOTSUP}  # from fsync of a folder on some network file systems
_SETTLED_NS = 3_000_000_000  # file systems store times in ticks, the coarsest of two seconds


class LocalBackend:
    """Backend that stores each object as a file below one folder."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)
        self._segments = Segments(_read_segments)

    def publish(self, day: str, name: str, data: bytes) -> None:
        """Write a temporary file, then rename it: a reader sees a whole file or none."""
        folder = self._root / EVENTS / day
        temporary = folder / f".{name}.tmp"
        try:
            if not folder.is_dir():
                self._make_folder(folder.parent, folder)
            temporary.write_bytes(data)
            temporary.rename(folder / name)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"cannot write to store {self._root}: {error}") from error

    def write_probe(self, name: str, data: bytes) -> tuple[bytes, float | None]:
        """Write a file into the folder of today's events, or the nearest one above it that exists."""
        place = nearest_existing(self._root / EVENTS / f"{datetime.now(UTC):%Y-%m-%d}") / name
        try:
            try:
                place.write_bytes(data)
                return place.read_bytes(), place.stat().st_mtime
            finally:
                place.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write to store {self._root}: {error}") from error

    def presence(self) -> Presence:
        """Look at the entries of the folder."""
        try:
            names = {entry.name for entry in self._root.iterdir()}
        except FileNotFoundError:
            return Presence.ABSENT
        except NotADirectoryError:
            return Presence.FILE if self._root.is_file() else Presence.ABSENT
        except OSError as error:
            raise StoreError(f"cannot read store {self._root}: {error.strerror}") from error
        return presence_of(names)

    def list_objects(
        self, known: Mapping[str, Directory] = NO_DIRECTORIES, out_of_time: Callable[[], bool] = never
    ) -> Listing:
        """Walk the folders; links to folders are not followed."""
        directories: dict[str, Directory] = {}
        problems: list[str] = []
        events = str(self._root / EVENTS)
        folders = [events]
        while folders:
            folder = folders.pop()
            try:
                directory = _list_folder(folder, known.get(folder))
            except FileNotFoundError:
                continue
            except OSError as error:
                if folder == events:
                    if isinstance(error, NotADirectoryError) and self._root.is_file():
                        raise StoreError(
                            f"cannot read store {self._root}: it is a file, and a store is a folder"
                        ) from error
                    raise StoreError(f"cannot read store {self._root}: {error}") from error
                problems.append(f"{folder} ({error.strerror})")
                continue
            directories[folder] = directory
            folders += directory.folders
        # After the events: an object compacted meanwhile is seen in at least one of the two listings.
        segments = self._listed_segments(known, out_of_time)
        return Listing(
            directories={**directories, **segments.directories},
            problems=(*problems, *segments.problems),
            unopened=segments.unopened,
        )

    def _listed_segments(self, known: Mapping[str, Directory], out_of_time: Callable[[], bool]) -> Listing:
        root = str(self._root / SEGMENTS)
        try:
            directory = _list_segments(root, known.get(root))
            found = self._segments.listed(directory.folders, known, out_of_time)
        except FileNotFoundError:
            return Listing(directories={})  # never compacted
        except OSError as error:
            return Listing(directories={}, problems=(f"{root} ({error.strerror})",))
        return replace(found, directories={root: directory, **found.directories})

    def read(self, places: Sequence[str], *, follows: bool = True) -> Iterator[tuple[str, bytes | Exception]]:
        """Read the files one by one."""
        read = self._read if follows else _read_file
        for place in places:
            yield place, self._segments.content(place) if segment_of(place) else read(place)

    def publish_segment(self, name: str, data: bytes) -> str:
        """Write a temporary file, sync it to disk, then rename it."""
        folder = self._root / SEGMENTS
        temporary = folder / f".{name}.tmp"
        try:
            if not folder.is_dir():
                self._make_folder(folder)
            _sync(self._root)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(folder / name)
            _sync(folder)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"cannot write to store {self._root}: {error}") from error
        return str(folder / name)

    def remove(self, places: Sequence[str]) -> None:
        """Remove the files one by one."""
        try:
            for place in places:
                Path(place).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove an object from store {self._root}: {error}") from error

    def _read(self, place: str) -> bytes | Exception:
        content = _read_file(place)
        if isinstance(content, OSError) and content.errno in _GONE_ERRNOS:
            with suppress(OSError):
                segments = _list_segments(str(self._root / SEGMENTS), None).folders
                return self._segments.found(place, segments) or content
        return content

    def _make_folder(self, *folders: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        mode = self._root.stat().st_mode & 0o7777
        for new in folders:
            try:
                new.mkdir()
            except FileExistsError:
                continue
            with suppress(OSError):
                new.chmod(mode)  # whoever may write to the store may write to each new day's folder


def _list_folder(folder: str, known: Directory | None) -> Directory:
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
    return Directory(place=folder, names=tuple(sorted(names)), folders=tuple(sorted(folders)), stamp=stamp)


def _list_segments(folder: str, known: Directory | None) -> Directory:
    """Return a listing of the segments folder in which each segment counts as a subfolder."""
    stamp = _stamp(folder)
    if known is not None and stamp is not None and known.stamp == stamp:
        return known
    with os.scandir(folder) as entries:
        places = tuple(sorted(entry.path for entry in entries if is_segment(entry.name) and entry.is_file()))
    return Directory(place=folder, names=(), folders=places, stamp=stamp)


def _read_segments(places: Sequence[str]) -> dict[str, bytes | Exception]:
    return {place: _read_segment(place) for place in places}


def _read_segment(place: str) -> bytes | Exception:
    try:
        with Path(place).open("rb") as file:
            return file.read(MAX_SEGMENT_BYTES + 1)
    except OSError as error:
        return error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC_ERRNOS:
            raise
    finally:
        os.close(descriptor)


def _stamp(folder: str) -> int | None:
    """Return the time of the last change in a folder; ``None`` if recent, as another change could share its tick.

    The time is ``ctime``, which cannot be set back.
    """
    changed = os.stat(folder).st_ctime_ns  # noqa: PTH116 - three times as fast, and a store has a folder per day
    return changed if time.time_ns() - changed > _SETTLED_NS else None


def _read_file(place: str) -> bytes | Exception:
    try:
        descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        return error
    try:
        head = os.read(descriptor, _FIRST_READ_BYTES)
        while len(head) >= _FIRST_READ_BYTES and len(head) <= MAX_OBJECT_BYTES:
            more = os.read(descriptor, MAX_OBJECT_BYTES + 1 - len(head))
            if not more:
                break
            head += more
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    return head
