"""Check of trials without an end: their jobs were killed before they could record it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, some, warning
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "trials: ends", 130
_SILENCE = timedelta(days=7)


def check(context: CheckContext) -> Finding:
    """Check trials that count as running by the time of their last event."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    last: dict[str, datetime] = {}
    for event in context.stored.events.values():
        time = parse_time(event.time)
        if time is not None:
            last[event.trial_id] = max(time, last.get(event.trial_id, time))
    now = datetime.now(UTC)
    running = [trial.trial_id for trial in context.trials if trial.state is State.RUNNING]
    silent = [name for name in running if name in last and now - last[name] > _SILENCE]
    if silent:
        found = f"{len(silent)} trials count as running and last reported over {_SILENCE.days} days ago: {some(silent)}"
        cure = (
            "if their jobs are gone, they were killed at once: give jobs some seconds to end (Slurm's KillWait), and "
            "raise TORCHX_CUBICML_WRITE_DEADLINE_S in the job"
        )
        return warning(found, cure)
    return ok(f"{len(running)} trials count as running, none of them silent for over {_SILENCE.days} days")
