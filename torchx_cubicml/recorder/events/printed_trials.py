"""Parser of the trials that recorders print to the log at their end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

PRINTED_MARK = "CUBICML_TRIAL"


def printed_events(lines: Iterable[str]) -> tuple[list[Event], list[str]]:
    """Return the events in log lines, after any prefix of a launcher, and a message for each malformed one."""
    events: list[Event] = []
    problems = []
    for number, line in enumerate(lines, start=1):
        _, mark, rest = line.partition(f"{PRINTED_MARK} ")
        if not mark:
            continue
        try:
            event = Event.from_json(json.JSONDecoder().raw_decode(rest)[0])
            if event.kind is not EventKind.ENDED:
                raise RecordError(f"expected an ended event, got {event.kind}")
            events.append(event)
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number}: {error}")
    return events, problems
