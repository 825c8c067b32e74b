"""Place of foreign records: a file or a folder under a path or a URL of fsspec, read within limits."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MOST_BYTES = 2**28
"""Bytes of one file."""

_MOST_BYTES_IN_ALL = 2**30  # of the files of one folder
_MOST_FILES = 500_000
_MOST_DEPTH = 12
_SKIPPED = frozenset({"artifacts", "__pycache__"})  # folders of trackers and programs that hold no records


class Place:
    """File or folder that records are read from.

    Links within a folder are not followed: they may lead out of it, or to a run that is read anyway.

    Args:
        url: path or URL of any fsspec protocol.

    Raises:
        RecordError: nothing is there, or it cannot be reached.
    """

    def __init__(self, url: str | Path) -> None:
        self.text = mask(str(url))
        """Path or URL for messages, without secrets."""
        self._left = _MOST_BYTES_IN_ALL
        try:
            self._system, self._path = _file_system(str(url))
            self.is_folder: bool = self._system.isdir(self._path)
            is_there = self.is_folder or self._system.exists(self._path)
        except Exception as error:
            raise RecordError(f"cannot read {self.text}: {_reason(error)}") from error
        if not is_there:
            raise RecordError(f"cannot read {self.text}: there is no such file or folder")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self._path).name

    def read(self, below: str = "", *, most: int = MOST_BYTES) -> bytes:
        """Return the content of the file, or of a file of the folder.

        Args:
            below: path of the file in the folder.
            most: bytes that it may have.

        Raises:
            RecordError: the file cannot be read, or it or the whole folder is too large.
        """
        most = min(most, self._left)
        data = self.head(most + 1, below)
        if len(data) > most:
            raise RecordError(f"{self.text}{below and '/'}{below} is larger than {most / 2**20:.3g} MiB: split it")
        self._left -= len(data)
        return data

    def head(self, count: int, below: str = "") -> bytes:
        """Return the first bytes of the file, or of a file of the folder.

        Raises:
            RecordError: the file cannot be read.
        """
        try:
            with self._system.open(f"{self._path}/{below}" if below else self._path, "rb") as file:
                return bytes(file.read(count))
        except Exception as error:
            raise RecordError(f"cannot read {self.text}{below and '/'}{below}: {_reason(error)}") from error

    def files(self) -> list[str]:
        """Return the paths of the files below the folder, sorted; hidden folders and artifacts are left out.

        Raises:
            RecordError: the folder cannot be listed, or is too large or too deep.
        """
        found: list[str] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            for name, kind in self._entries(folder):
                path = f"{folder}/{name}" if folder else name
                if kind == "file":
                    found.append(path)
                elif kind == "directory" and not name.startswith(".") and name not in _SKIPPED:
                    folders.append(path)
            if len(found) + len(folders) > _MOST_FILES or folder.count("/") > _MOST_DEPTH:
                raise RecordError(
                    f"{self.text} has more than {_MOST_FILES:,} files or {_MOST_DEPTH} levels: name a folder below it"
                )
        return sorted(found)

    def _entries(self, folder: str) -> list[tuple[str, str]]:
        path = f"{self._path}/{folder}" if folder else self._path
        try:
            entries = self._system.ls(path, detail=True)
        except Exception as error:
            raise RecordError(f"cannot read {self.text}/{folder}: {_reason(error)}") from error
        names = [(PurePosixPath(str(entry["name"])).name, str(entry["type"])) for entry in entries]
        return [(name, kind) for name, kind in names if name != PurePosixPath(path).name or kind != "directory"]


def _reason(error: Exception) -> str:
    """Return the text of an error in one line, without secrets."""
    return mask(" ".join(str(error).split()))[:300] or type(error).__name__


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    import fsspec

    protocol, path = split_url(url)
    if protocol in LOCAL_PROTOCOLS:
        return fsspec.filesystem("file"), str(Path(path or ".").expanduser().absolute())
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path).rstrip("/")
