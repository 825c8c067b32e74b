"""Which process leads a tune, and how long its processes lived."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import LaunchError
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


def test_nothing_lives_before_it_begins() -> None:
    lifetime = Lifetime()
    lifetime.take(note(NoteKind.ALIVE, "tune-1", minute=30.0))
    assert lifetime.hours() == lifetime.hours(NOON + timedelta(hours=9)) == 0.0
    lifetime.take(note(NoteKind.BEGUN, "tune-1", minute=60.0))
    assert lifetime.hours() == 0.0
    assert lifetime.hours(NOON + timedelta(hours=9)) == 8.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the system that is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    return folder


def test_only_the_user_can_read_locks(journal: Journal, temporary: Path) -> None:
    lease = take(journal)
    folder = temporary / "torchx-cubicml-ada" / "locks"
    (file,) = folder.iterdir()
    assert file.name == lease.tune_id
    assert [path.stat().st_mode & 0o777 for path in (folder, file)] == [0o700, 0o600]
    lease.close()
    lease.close()  # a second time does nothing


def test_a_lock_that_cannot_be_made_is_reported(
    journal: Journal, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: int, operation: int) -> None:
        raise BlockingIOError(lock, operation)

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse)
        with pytest.raises(LaunchError, match=r"cannot lock .*/locks/tune-"):
            take(journal)
    (temporary / "torchx-cubicml-ada" / "locks").rename(temporary / "moved")
    (temporary / "torchx-cubicml-ada" / "locks").write_text("a file")
    with pytest.raises(LaunchError, match=r"cannot create a lock file in .*/locks: .*exists"):
        take(journal)
    assert list(journal.read()) == []


def test_who_leads_a_tune_is_in_the_journal(journal: Journal, temporary: Path) -> None:
    assert temporary.is_dir()
    lease = take(journal, minute=5)
    (begun,) = journal.read()
    assert (begun.kind, begun.tune_id, begun.time) == (NoteKind.BEGUN, lease.tune_id, "2026-01-01T12:05:00+00:00")
    assert (begun.text("user"), begun.text("budget")) == ("ada", "12 launches")
    assert begun.text("request") == digest(REQUEST, "space")
    assert len(begun.text("request")) == 32
    lease.close()


@pytest.mark.parametrize("begun_again_here", [True, False])
def test_the_machine_that_began_last_counts(journal: Journal, begun_again_here: bool) -> None:
    first = take(journal)
    first.close()
    far = note(NoteKind.BEGUN, first.tune_id, minute=1, request=digest(REQUEST, "space"), host="another")
    journal.write(far)
    if begun_again_here:
        take(journal, minute=30).close()
    again = take(journal, minute=31 if begun_again_here else 2)
    assert again.resumed is begun_again_here
    again.close()


def test_notes_without_a_time_keep_no_lease(journal: Journal) -> None:
    far = note(NoteKind.BEGUN, "tune-far", request=digest(REQUEST, "space"), host="another")
    journal.write(replace(far, time="no time"))
    lease = take(journal)
    assert (lease.tune_id, lease.resumed) == ("tune-far", True)
    lease.close()


@pytest.mark.parametrize(
    "change",
    [
        {"component": "dist.spmd"},
        {"component_args": ()},
        {"scheduler": "slurm"},
        {"scheduler_args": "partition=a"},
        {"step_limit": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_measured_elsewhere_is_another_request(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = digest(REQUEST, "space")
    assert digest(replace(REQUEST, repeats=9, seed=3, queue_timeout_s=1.0), "space") == own
    assert digest(replace(REQUEST, **change), "space") != own
    assert digest(REQUEST, "another space") != own
    with monkeypatch.context() as patch:
        patch.setattr("getpass.getuser", lambda: "ada")
        assert digest(REQUEST, "space") != own
    monkeypatch.chdir(tmp_path)
    assert digest(REQUEST, "space") != own
