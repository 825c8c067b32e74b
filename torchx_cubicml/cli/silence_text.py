"""Lines of ``history`` about trials that count as running although their next event is overdue."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.records.silence import silent_since
from torchx_cubicml.records.trial import short_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial

_MOST_NAMED = 3


def silence_line(trial: Trial, last_events: Mapping[str, str]) -> str:
    """Return a sentence about the silence of a trial; empty where its next event is not overdue.

    Args:
        trial: record of a launch.
        last_events: id of a running trial -> time of its last event.
    """
    time = silent_since(trial, last_events.get(trial.trial_id, ""), datetime.now(UTC))
    return "" if time is None else f"no word since {_minute(time)}: its job may have been killed"


def silence_lines(trials: Sequence[Trial], last_events: Mapping[str, str]) -> list[str]:
    """Return a line about the silent trials of a list, the newest first; none where no trial is silent.

    Args:
        trials: listed trials.
        last_events: as for ``silence_line``.
    """
    now = datetime.now(UTC)
    times = ((trial, silent_since(trial, last_events.get(trial.trial_id, ""), now)) for trial in trials)
    silent = [f"{short_id(trial.trial_id)} (since {_minute(time)})" for trial, time in times if time]
    if not silent:
        return []
    more = f" and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
    named = ", ".join(silent[:_MOST_NAMED])
    return [f"no word from {named}{more}: a job that counts as running may have been killed; its scheduler knows"]


def silence_json(trial: Trial, last_events: Mapping[str, str]) -> dict[str, object]:
    """Return the time of the last event of a running trial, and whether the next one is overdue, as JSON fields."""
    time = last_events.get(trial.trial_id, "")
    if not time:
        return {}
    return {"last_event_at": time, "is_silent": silent_since(trial, time, datetime.now(UTC)) is not None}


def _minute(time: datetime) -> str:
    try:
        return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except OverflowError:  # a time before the first year
        return f"{time:%Y-%m-%d %H:%M %z}"
