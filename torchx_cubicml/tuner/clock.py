"""The time that a tune lives by."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


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
