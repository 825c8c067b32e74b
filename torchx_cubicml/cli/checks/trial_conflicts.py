"""Check of the trials: no two launches share one id."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, some, wrong
from torchx_cubicml.records.event import TUNER, Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "trials: conflicts", 120


def check(context: CheckContext) -> Finding:
    """Check that the events of each trial tell of one program, one config and one end."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    groups: defaultdict[str, list[Event]] = defaultdict(list)
    for event in context.stored.events.values():
        if event.trial_id and event.kind is not EventKind.PLANNED and event.writer != TUNER:
            groups[event.trial_id].append(event)
    found = [f"{name} has {why}" for name, events in groups.items() if (why := _conflict(events))]
    if found:
        cure = (
            "two launches wrote under one id, as after copying a job's environment: no number of such a trial is to be "
            "trusted; move its objects out of the store, and unset TORCHX_CUBICML_LAUNCH where jobs are submitted"
        )
        return wrong(some(found), cure)
    return ok(f"{len(groups)} trials, each of one launch")


def _conflict(events: Sequence[Event]) -> str:
    """Return the fields in which events of one trial disagree; empty if they agree. Another attempt may differ."""
    programs = {str(event.workload["program"]) for event in events if "program" in event.workload}
    if len(programs) > 1:
        return f"the programs {' and '.join(sorted(programs))}"
    written: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in events:
        written[event.attempt, event.writer, event.sequence, event.kind].append(event)
    for (_, writer, _, kind), same in written.items():
        for name in ("config", "state", "measurement"):
            if any(getattr(event, name) != getattr(same[0], name) for event in same):
                return f"{len(same)} {kind} events of {writer or 'one writer'} with different {name}"
    return ""
