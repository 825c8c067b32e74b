"""A store in a folder of this machine or of a shared file system, without fsspec: a launch has no time to import it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store.folder import EVENTS, MAX_OBJECT_BYTES, Listing, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_USUAL_BYTES = 16 * 1024  # reading up to the legal size at once would set that much memory aside for each object


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

    def list_objects(self) -> Listing:
        """Walk the folders as they stand now; links to folders are not followed."""
        sizes: dict[str, int | None] = {}
        problems: list[str] = []
        events = str(self._root / EVENTS)
        folders = [events]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        elif is_object(entry.name) and entry.is_file():
                            sizes[entry.path] = None
            except FileNotFoundError:
                continue
            except OSError as error:
                if folder == events:
                    raise StoreError(f"store {self._root} cannot be read: {error}") from error
                problems.append(f"{folder} ({error.strerror})")
        return Listing(sizes=sizes, problems=tuple(problems))

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


def _read_file(place: str) -> bytes | Exception:
    try:
        with Path(place).open("rb") as file:
            head = file.read(_USUAL_BYTES)
            return head if len(head) < _USUAL_BYTES else head + file.read(MAX_OBJECT_BYTES + 1 - _USUAL_BYTES)
    except OSError as error:
        return error
