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
    """Tells the time and lets it pass."""

    def now(self) -> datetime:
        """Return the time in UTC."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, >= 0."""


class SystemClock:
    """The clock of this machine; it outlives the process, so that a tune that goes on knows what was spent."""

    def now(self) -> datetime:
        """See ``Clock``."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        time.sleep(seconds)


def instant(text: str) -> datetime | None:
    """Return the time that an event or note tells; ``None`` for none, or one without a zone.

    >>> instant("2026-01-01T00:00:00+00:00").year, instant("2026-01-01"), instant("")
    (2026, None, None)
    """
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        return None
    return told if told.tzinfo is not None else None


class NewObjects:
    """What has come into a folder since the last look.

    Args:
        folder: of immutable objects.
    """

    def __init__(self, folder: Backend) -> None:
        self._folder = folder
        self._shelves: Mapping[str, Directory] = {}
        self._unread: set[str] = set()

    def read(self) -> Iterator[bytes]:
        """Yield each object that was not read before, by name; one that cannot be read is tried again at the next look.

        Raises:
            StoreError: the folder cannot be reached.
        """
        listing = self._folder.list_objects(self._shelves)
        for place, shelf in listing.shelves.items():
            before = self._shelves.get(place)
            if before is None or before.names != shelf.names:
                had = set(before.names) if before is not None else set()
                self._unread.update(f"{place}/{name}" for name in shelf.names if name not in had)
        self._shelves = listing.shelves
        self._unread -= listing.too_large
        for place, content in self._folder.read(sorted(self._unread, key=lambda place: place.rpartition("/")[2])):
            if not isinstance(content, Exception):
                self._unread.discard(place)
                yield content


_T = TypeVar("_T")
_PAUSE_S = 5.0
_GIVE_UP = timedelta(seconds=300)  # shorter than a tune may be silent before another machine goes on with it


class StoreRetry:
    """Asks a store again where it fails, for minutes; one that has never answered is not waited for.

    Args:
        clock: of the tune; this machine's by default.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._answered: set[str] = set()
        self._hurries = False

    def read(self, question: Callable[[], _T]) -> _T:
        """Return what ``question`` returns, which may be asked more than once.

        Raises:
            StoreError: the store cannot be read.
        """
        return self._ask(question, "read")

    def write(self, question: Callable[[], _T]) -> _T:
        """Likewise, where the store is written; one that can be read need not be writable.

        Raises:
            StoreError: the store cannot be written.
        """
        return self._ask(question, "write")

    def hurry(self) -> None:
        """Wait no more."""
        self._hurries = True

    def _ask(self, question: Callable[[], _T], kind: str) -> _T:
        since = None
        while True:
            try:
                answer = question()
            except StoreError:
                now = self._clock.now()
                since = since or now
                if self._hurries or kind not in self._answered or now - since >= _GIVE_UP:
                    raise
                self._clock.sleep(_PAUSE_S)
            else:
                self._answered.add(kind)
                return answer
