"""Polling of the store: new objects, retries while it is out of reach, and the clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from torchx_cubicml.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchx_cubicml.store.backend import Backend, Directory


class Clock(Protocol):
    """Clock of a tune: the present time and sleep."""

    def now(self) -> datetime:
        """Return the present time in UTC."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, >= 0."""


class SystemClock:
    """Wall clock of this machine; its times stay valid after the process ends, so a resumed tune can add them up."""

    def now(self) -> datetime:
        """See ``Clock``."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        time.sleep(seconds)


class NewObjects:
    """Incremental reader of a folder: each object is read once.

    Args:
        folder: backend of a folder of immutable objects.
    """

    def __init__(self, folder: Backend) -> None:
        self._folder = folder
        self._directories: Mapping[str, Directory] = {}
        self._unread: set[str] = set()

    def read(self) -> Iterator[bytes]:
        """Yield each object that was not read before, ordered by name.

        An object that cannot be read is tried again at the next call.

        Raises:
            StoreError: the folder cannot be reached.
        """
        listing = self._folder.list_objects(self._directories)
        for path, directory in listing.directories.items():
            before = self._directories.get(path)
            if before is None or before.names != directory.names:
                seen = set(before.names) if before is not None else set()
                self._unread.update(f"{path}/{name}" for name in directory.names if name not in seen)
        self._directories = listing.directories
        self._unread -= listing.too_large
        for path, content in self._folder.read(sorted(self._unread, key=lambda path: path.rpartition("/")[2])):
            if not isinstance(content, Exception):
                self._unread.discard(path)
                yield content


_T = TypeVar("_T")
_PAUSE_S = 5.0
_GIVE_UP = timedelta(seconds=300)  # shorter than the silence after which another machine takes over the tune's lease


class StoreRetry:
    """Retry of store operations that fail, every 5 s for up to 300 s; a store that has never answered is not retried.

    Args:
        clock: the tune's clock; this machine's by default.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._answered: set[str] = set()
        self._is_hurried = False

    def read(self, operation: Callable[[], _T]) -> _T:
        """Call ``operation``, more than once if it fails, and return its result.

        Raises:
            StoreError: the store cannot be read.
        """
        return self._retry(operation, "read")

    def write(self, operation: Callable[[], _T]) -> _T:
        """Do the same for an operation that writes; a readable store need not be writable.

        Raises:
            StoreError: the store cannot be written.
        """
        return self._retry(operation, "write")

    def hurry(self) -> None:
        """Stop retrying."""
        self._is_hurried = True

    def _retry(self, operation: Callable[[], _T], kind: str) -> _T:
        since = None
        while True:
            try:
                result = operation()
            except StoreError:
                now = self._clock.now()
                since = since or now
                if self._is_hurried or kind not in self._answered or now - since >= _GIVE_UP:
                    raise
                self._clock.sleep(_PAUSE_S)
            else:
                self._answered.add(kind)
                return result
