"""Silence of a trial that counts as running: its next event is overdue, so its job may have been killed at once.

A recorder reports after 8, 16, 32 ... steps, so a silence about as long as the training has run is usual.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import State, Trial

_USUAL_TIMES = 3.0  # the time from the first event to the last; evaluations and saving delay the next event
_LEAST = timedelta(hours=1)  # for loading and compilation
_MOST = timedelta(days=3650)  # a longer time is an error of a clock


def silent_since(trial: Trial, last_event: str, now: datetime) -> datetime | None:
    """Return the time of the last event of a running trial whose next one is overdue; ``None`` for any other.

    Args:
        trial: record of a launch.
        last_event: time of its last event, ISO 8601; empty where unknown.
        now: present time.

    >>> trial = Trial(trial_id="a", workload={}, config={}, state=State.RUNNING, started_at="2026-01-01T10:00:00Z")
    >>> noon = datetime.fromisoformat("2026-01-01T12:00:00Z")
    >>> [silent_since(trial, f"2026-01-01T{time}:00Z", noon) is not None for time in ("10:10", "10:20")]
    [True, False]
    """
    first, last = parse_time(trial.started_at), parse_time(last_event)
    if trial.state is not State.RUNNING or first is None or last is None:
        return None
    usual = min(max(last - first, timedelta()), _MOST) * _USUAL_TIMES
    return last if now - last > usual + _LEAST else None
