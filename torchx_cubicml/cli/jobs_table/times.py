"""Start times of jobs, as sortable text."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from torchx_cubicml.cli.jobs_table.source import MISSING
from torchx_cubicml.errors import RecordError


def sortable_time(text: str) -> str:
    """Return a time as sortable text: ISO 8601, in UTC where the text has a time zone.

    Raises:
        RecordError: the text is no time.

    >>> [sortable_time(text) for text in ("2025-03", "2025-03-10", "2025-03-10T01:00:00+02:00", "10.03.2025", "")]
    ['2025-03', '2025-03-10', '2025-03-09T23:00:00Z', '2025-03-10', '']
    """
    text = re.sub(r"^(\d\d)\.(\d\d)\.(\d{4})", r"\3-\2-\1", text)  # with points, the day comes first
    if text.lower() in MISSING or re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", text):
        return "" if text.lower() in MISSING else text
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (OverflowError, ValueError) as error:  # OverflowError: outside the years of datetime in UTC
        raise RecordError(f"the time must be ISO 8601, such as 2025-03-10, got {text!r:.60}") from error
    if moment.tzinfo is not None:
        return moment.isoformat().replace("+00:00", "Z")
    return text if len(text) == len("2025-03-10") else moment.isoformat()
