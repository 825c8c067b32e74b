"""What the ledger tells of the attempts of a launch, by which one that is adopted ran as long as it ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.event import Event, EventKind
from torchx_cubicml.trial import State
from torchx_cubicml.tuner.adoption import _flight
from torchx_cubicml.tuner.books import Books
from torchx_cubicml.tuner.clock import SystemClock
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAUNCH = "launch-0123456789abcdef-0001"


def told(kind: EventKind, minute: int, *, restarts: int = 0, state: State | None = None) -> Event:
    time = (NOON + timedelta(minutes=minute)).isoformat()
    return Event(kind=kind, trial_id="t", launch_id=LAUNCH, attempt=(restarts, 0), time=time, state=state)


def test_a_wait_between_attempts_is_no_run_time_of_a_launch_that_is_adopted(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    ledger = Ledger(url)
    for event in (
        told(EventKind.STARTED, 0),
        told(EventKind.ENDED, 10, state=State.INFRASTRUCTURE),
        told(EventKind.STARTED, 190, restarts=1),
        told(EventKind.MEASURED, 192, restarts=1),
    ):
        ledger.append(event)
    ledger.refresh()
    first, second = (
        (NOON + timedelta(minutes=each), NOON + timedelta(minutes=each + ran)) for each, ran in ((0, 10), (190, 2))
    )
    assert ledger.attempts(LAUNCH) == [first, second]
    books = Books("tune-0123456789abcdef", ledger, Journal(url), SystemClock())
    flight = _flight(books, LAUNCH, "slurm://torchx/7")
    assert flight.ran_s(NOON + timedelta(minutes=193)) == 13 * 60
