"""ISO 8601 times of records: always with a time zone."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime | None:
    """Return the time of a record; ``None`` for a text that is no time, or a time without a zone.

    >>> parse_time("2026-01-01T00:00:00+00:00").year, parse_time("2026-01-01"), parse_time("")
    (2026, None, None)
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def time_now() -> str:
    """Return the present time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
