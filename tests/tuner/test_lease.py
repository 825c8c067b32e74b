"""Which process leads a tune, and how long its processes lived."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.tuner import Budget, TuneRequest
from torchx_cubicml.tuner.journal import Journal, Note, NoteKind
from torchx_cubicml.tuner.lease import Lease, Lifetime, digest, launch_prefix

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUEST = TuneRequest(
    component="dist.ddp",
    component_args=("--script", "train.py"),
    space="space.toml",
    store="",
    scheduler="local_cwd",
    budget=Budget(launches=12),
)


class Clock:
    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "store"))


def take(journal: Journal, *, request: TuneRequest = REQUEST, minute: float = 0.0) -> Lease:
    return Lease.take(journal, request, Clock(NOON + timedelta(minutes=minute)), space_text="space")


def note(kind: NoteKind, tune_id: str, *, minute: float = 0.0, **facts: object) -> Note:
    return Note(kind=kind, tune_id=tune_id, time=(NOON + timedelta(minutes=minute)).isoformat(), facts=facts)


def test_a_tune_goes_on_once_its_process_has_gone(journal: Journal) -> None:
    first = take(journal)
    beside = take(journal)  # the first lives
    assert (first.resumed, beside.resumed) == (False, False)
    assert first.tune_id != beside.tune_id
    first.close()
    again = take(journal)
    assert (again.tune_id, again.resumed) == (first.tune_id, True)
    again.close()
    beside.close()


def test_the_latest_of_several_goes_on(journal: Journal) -> None:
    leases = [take(journal, minute=minute) for minute in range(3)]
    for lease in leases:
        lease.close()
    again = take(journal, minute=5)
    assert again.tune_id == leases[-1].tune_id
    again.close()


def test_what_is_finished_fresh_or_another_request_begins_anew(journal: Journal) -> None:
    finished = take(journal)
    journal.write(note(NoteKind.FINISHED, finished.tune_id))
    finished.close()
    unfinished = take(journal)
    assert not unfinished.resumed
    unfinished.close()
    for request in (replace(REQUEST, fresh=True), replace(REQUEST, component_args=("--script", "other.py"))):
        other = take(journal, request=request)
        assert not other.resumed
        other.close()
    other_budget = take(journal, request=replace(REQUEST, budget=Budget(hours=1)))
    assert other_budget.resumed
    other_budget.close()


@pytest.mark.parametrize(("silent_min", "resumed"), [(9.9, False), (10.1, True)])
def test_a_remote_lease_expires_after_ten_silent_minutes(journal: Journal, silent_min: float, resumed: bool) -> None:
    request_digest = digest(REQUEST, "space")
    journal.write(note(NoteKind.BEGUN, "tune-far", request=request_digest, host="another"))
    journal.write(note(NoteKind.ALIVE, "tune-far", minute=3))
    lease = take(journal, minute=3 + silent_min)
    assert lease.resumed is resumed
    assert (lease.tune_id == "tune-far") is resumed
    lease.close()


def test_hours_in_which_no_process_lived_do_not_count() -> None:
    lifetime = Lifetime()
    assert lifetime.hours() == lifetime.hours(NOON) == 0.0
    for kind, minute in (
        (NoteKind.BEGUN, 0.0),
        (NoteKind.ALIVE, 30.0),
        (NoteKind.BEGUN, 300.0),
        (NoteKind.SUBMITTED, 330.0),
        (NoteKind.ALIVE, 345.0),
    ):
        lifetime.take(note(kind, "tune-1", minute=minute))
    lifetime.take(replace(note(NoteKind.ALIVE, "tune-1"), time="no time"))
    assert lifetime.hours() == pytest.approx(0.5 + 0.75)
    assert lifetime.hours(NOON + timedelta(minutes=360)) == pytest.approx(0.5 + 1.0)
    assert lifetime.hours(NOON + timedelta(minutes=290)) == pytest.approx(0.5)  # a clock that went back


def test_launches_bear_the_number_of_their_tune() -> None:
    assert launch_prefix("tune-12ab") == "launch-12ab-"
