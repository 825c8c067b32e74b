"""Polling of the store: retries while it is out of reach, and the clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from torchx_cubicml.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable


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
