"""Check of the times of events: one in the future has a wrong clock, or the clock here is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, some, wrong
from torchx_cubicml.cli.checks.store_clock import MAX_OFFSET_S
from torchx_cubicml.records.iso_time import parse_time

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "trials: clocks", 140


def check(context: CheckContext) -> Finding:
    """Check that no event is later than now."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    now = datetime.now(UTC)
    ahead: dict[str, float] = {}
    for event in context.stored.events.values():
        time = parse_time(event.time)
        seconds = (time - now).total_seconds() if time is not None else 0.0
        if seconds > MAX_OFFSET_S:
            name = event.trial_id or event.launch_id
            ahead[name] = max(seconds, ahead.get(name, 0.0))
    if ahead:
        found = f"{len(ahead)} trials are of the future: {some([f'{name} by {s:.0f} s' for name, s in ahead.items()])}"
        return wrong(found, f"set the clock of their hosts, or the one here (it says {now:%Y-%m-%d %H:%M} UTC), by NTP")
    return ok("no event is later than now")
