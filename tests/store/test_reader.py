from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.store import TrialStore, read_trials
from torchx_cubicml.store.deadline import read_with_deadline
from torchx_cubicml.store.event_groups import EventGroups
from torchx_cubicml.store.fingerprint import fingerprint_of, refresh_if_unchanged
from torchx_cubicml.store.index_cache import StoreIndex, cache_path
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.store.reader import StoreReader, StoreSnapshot, read_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder counts as one that nothing came to or went from for a while."""
    monkeypatch.setattr("torchx_cubicml.store.local._SETTLED_NS", -(10**18))


def keep_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is new is kept, were it one object."""
    monkeypatch.setattr("torchx_cubicml.store.reader._MIN_SAVED_OBJECTS", 0)
    monkeypatch.setattr("torchx_cubicml.store.reader._MIN_SAVED_SHARE", 0)


def read(store: Path, cache: Path) -> StoreSnapshot:
    return read_store(TrialStore(str(store)), cache=cache, out_of_time=lambda: False)


def write(store: Path, event: Event, name: str) -> None:
    place = store / "events" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(event.to_json()))


def started(trial_id: str, **facts: object) -> Event:
    return Event(kind=EventKind.STARTED, trial_id=trial_id, observed=facts)


EVENTS = st.builds(
    lambda ids, attempt, sequence, fact, end: Event(
        kind=EventKind.PLANNED if not ids[0] else EventKind.ENDED if end else EventKind.MEASURED,
        trial_id=ids[0],
        launch_id=ids[1],
        attempt=(attempt, 0),
        sequence=sequence,
        config={"x": fact},
        observed={"y": (fact, "z"), "deep": fact},
        measurement=Measurement(tokens_per_second=1.0 + sequence) if ids[0] else None,
        state=State.COMPLETED if end and ids[0] else None,
    ),
    st.tuples(st.sampled_from(["", "a", "b", "c", "l"]), st.sampled_from(["", "l", "m", "a"])).filter(any),
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([True, 1, 1.5, "text", False]),
    st.booleans(),
)
# Three folders, few names: names repeat between the folders, as they do where a store is copied into another.
NAMES = st.tuples(st.sampled_from(["", "2026-01-01/", "2026-01-02/deep/"]), st.integers(0, 9)).map(
    lambda pair: f"{pair[0]}{pair[1]}.json"
)


@st.composite
def changes_between_readings(draw: st.DrawFn) -> list[list[tuple[str, Event | None]]]:
    """Draw objects that come, and objects that go (``None``); a name that was there once never comes again."""
    present, used = [], set()
    rounds = []
    for _ in range(draw(st.integers(0, 5))):
        changes: list[tuple[str, Event | None]] = []
        for _ in range(draw(st.integers(0, 6))):
            if present and draw(st.integers(0, 2)) == 0:
                changes.append((present.pop(draw(st.integers(0, len(present) - 1))), None))
            elif (name := draw(NAMES)) not in used:
                changes.append((name, draw(EVENTS)))
                present.append(name)
                used.add(name)
        rounds.append(changes)
    return rounds


@settings(max_examples=150)
@given(changes_between_readings())
def test_reading_bit_by_bit_is_reading_all_at_once(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, Event | None]]]
) -> None:
    """Whatever comes and goes between two readings, in whatever order, is read; no name comes twice."""
    folder = tmp_path_factory.mktemp("store")
    for changes in rounds:
        for name, event in changes:
            if event is None:
                (folder / "store" / "events" / name).unlink()
            else:
                write(folder / "store", event, name)
        with pytest.MonkeyPatch.context() as patch:
            keep_always(patch)
            found = read(folder / "store", folder / "cache")
        assert found.trials == list(TrialStore(str(folder / "store")))
        assert list(map(repr, found.trials)) == list(map(repr, TrialStore(str(folder / "store"))))
    shutil.rmtree(folder)


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the objects that are read from now on."""
    seen: list[str] = []
    from torchx_cubicml.store import local

    real = local._read_file
    monkeypatch.setattr(local, "_read_file", lambda place: seen.append(Path(place).name) or real(place))
    return seen


def folds_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of events that are folded together from now on."""
    folded: list[int] = []
    from torchx_cubicml.store import event_groups

    real = event_groups.fold_events

    def fold(events: Iterable[Event]) -> list[Trial]:
        events = list(events)
        folded.append(len(events))
        return real(events)

    monkeypatch.setattr(event_groups, "fold_events", fold)
    return folded


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    for number in range(50):
        write(tmp_path / "store", started(f"t{number}", n=number), f"2026-01-01/{number:03}a.json")
        end = Event(kind=EventKind.ENDED, trial_id=f"t{number}", sequence=1, state=State.COMPLETED)
        write(tmp_path / "store", end, f"2026-01-02/{number:03}b.json")
    read(tmp_path / "store", tmp_path / "cache")
    return tmp_path


@pytest.mark.usefixtures("settled")
def test_known_objects_are_neither_listed_nor_read_again(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, listed = reads_of(monkeypatch), []
    read(filled / "store", filled / "cache")  # the stamps were too young to be kept at first
    write(filled / "store", Event(kind=EventKind.MEASURED, trial_id="t7", sequence=1), "2026-01-03/x.json")
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: listed.append(Path(place).name) or scandir(place))
    found = read(filled / "store", filled / "cache")
    assert len(found.trials) == 50
    assert sorted(set(seen)) == ["007a.json", "007b.json", "x.json"]
    assert "2026-01-01" not in listed[:2]


def test_a_removed_object_is_removed_from_its_trial(filled: Path) -> None:
    (filled / "store" / "events" / "2026-01-02" / "003b.json").unlink()
    found = {trial.trial_id: trial.state for trial in read(filled / "store", filled / "cache").trials}
    assert found.pop("t3") is State.RUNNING
    assert set(found.values()) == {State.COMPLETED}
    shutil.rmtree(filled / "store" / "events" / "2026-01-01")
    (filled / "store" / "events" / "2026-01-02" / "004b.json").unlink()
    assert len(read(filled / "store", filled / "cache").trials) == 48


def test_illegal_objects_are_reported_each_time_and_read_once(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (filled / "store" / "events" / "bad.json").write_text('{"throughput": NaN, "x": "$(id)"}')
    seen = reads_of(monkeypatch)
    keep_always(monkeypatch)
    for _ in range(2):
        found = read(filled / "store", filled / "cache")
        assert "bad.json (not JSON" in found.warnings[0]
        assert len(found.trials) == 50
    assert seen == ["bad.json"]
    (filled / "store" / "events" / "bad.json").unlink()
    assert read(filled / "store", filled / "cache").warnings == ()


def test_an_unreadable_object_is_read_later(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(filled / "store", started("new"), "new.json")
    keep_always(monkeypatch)
    monkeypatch.setattr("torchx_cubicml.store.local._read_file", lambda _: OSError(5, "Input/output error"))
    assert "new.json (cannot read it" in read(filled / "store", filled / "cache").warnings[0]
    monkeypatch.undo()
    found = read(filled / "store", filled / "cache")
    assert (len(found.trials), found.warnings) == (51, ())


@pytest.mark.parametrize(("n_new", "is_saved"), [(20, False), (21, True)])
def test_more_than_twenty_new_objects_are_saved(tmp_path: Path, n_new: int, is_saved: bool) -> None:
    for number in range(n_new):
        write(tmp_path / "store", started(f"t{number}"), f"{number:02}.json")
    assert len(read(tmp_path / "store", tmp_path / "cache").trials) == n_new
    assert cache_path(tmp_path / "cache", str(tmp_path / "store")).exists() is is_saved


@pytest.mark.parametrize(("n_new", "is_saved"), [(5, False), (6, True)])
def test_more_than_a_share_of_new_objects_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_new: int, is_saved: bool
) -> None:
    store, cache = tmp_path / "store", tmp_path / "cache"
    monkeypatch.setattr("torchx_cubicml.store.reader._MIN_SAVED_OBJECTS", 0)
    monkeypatch.setattr("torchx_cubicml.store.reader._MIN_SAVED_SHARE", 0.5)
    for number in range(5):
        write(store, started(f"t{number}"), f"{number}.json")
    read(store, cache)
    before = cache_path(cache, str(store)).read_bytes()
    for number in range(n_new):
        write(store, started(f"u{number}"), f"u{number}.json")
    assert len(read(store, cache).trials) == 5 + n_new
    assert (cache_path(cache, str(store)).read_bytes() != before) is is_saved


def test_a_snapshot_warns_of_each_kind_of_skipped_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "failed", "good", "large"):
        write(tmp_path / "store", started(name), f"{name}.json")
    events = tmp_path / "store" / "events"
    (events / "bad.json").write_text("{")
    whole = TrialStore(str(tmp_path / "store"))
    listing = replace(
        whole.folder.list_objects(), too_large=frozenset({f"{events}/large.json"}), problems=("/closed (no)",)
    )
    real = whole.folder.read

    def read_objects(places: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        for place, content in real(places):
            yield place, OSError("I/O") if "failed" in place else content

    monkeypatch.setattr(whole.folder, "list_objects", lambda *_: listing)
    monkeypatch.setattr(whole.folder, "read", read_objects)
    found = read_store(whole, cache=None, out_of_time=lambda: False)
    assert [trial.trial_id for trial in found.trials] == ["good"]
    assert found.directories == listing.directories
    (warning,) = found.warnings
    parts = ["/closed (no)", "large.json (larger", "bad.json (not JSON", "failed.json (cannot read it: I/O)"]
    assert warning.startswith("skipped 4 unreadable objects")
    assert sorted(parts, key=warning.index) == parts


def until(n_asked: int) -> Callable[[], bool]:
    asked = count()
    return lambda: next(asked) >= n_asked


def test_an_interrupted_reading_continues(tmp_path: Path, filled: Path) -> None:
    store, cache = TrialStore(str(filled / "store")), tmp_path / "other"
    messages = []
    for _ in range(4):
        with pytest.raises(StoreError) as error:
            read_store(store, cache=cache, out_of_time=until(24))
        messages.append(str(error.value))
    assert "read 24 of 100 objects; the next launch continues from there" in messages[0]
    assert "read 96 of 100 objects" in messages[3]
    assert read_store(store, cache=cache, out_of_time=until(24)).trials == list(store)


def test_the_parts_done_are_reported_up_to_all_of_them(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the 100 objects is read, then folded; time goes on while they are folded."""
    monkeypatch.setattr("torchx_cubicml.store.reader._OBJECTS_PER_REPORT", 10)
    told: list[tuple[int, int]] = []
    store = TrialStore(str(filled / "store"))
    read_store(store, cache=None, out_of_time=lambda: False, report=lambda *parts: told.append(parts))
    assert told[:3] == [(0, 200), (10, 200), (20, 200)]
    assert told == sorted(told)
    assert told[-1] == (200, 200)


def test_without_a_cache_no_progress_is_kept_or_promised(filled: Path) -> None:
    with pytest.raises(StoreError, match=r"read 50 of 100 objects$"):
        read_store(TrialStore(str(filled / "store")), cache=None, out_of_time=until(50))
    assert len(read_trials(str(filled / "store"))[0]) == 50


def test_a_deadline_leaves_time_to_keep_what_was_read(filled: Path) -> None:
    assert len(read_with_deadline(str(filled / "store"), deadline_s=60, cache=filled / "cache").trials) == 50


VALUES = [None, -1, 10**30, 1e308, "", "; rm -rf /", "$(id)", "x" * 100_000, [], {}, [[]], True, "\x1b[2J\n"]


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def test_a_tampered_cache_has_no_more_power_than_a_store(filled: Path) -> None:
    """Any one value of it replaced by any other: trials that are legal, and no exception."""
    path = cache_path(filled / "cache", str(filled / "store"))
    whole = json.loads(path.read_text())
    rng = random.Random(0)
    changes = [place for place in places(whole) if place]
    for place in rng.sample(changes, 300):
        damaged = json.loads(json.dumps(whole))
        inner = damaged
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = rng.choice(VALUES)
        path.write_text(json.dumps(damaged))
        found = read(filled / "store", filled / "cache")
        assert all(isinstance(trial, Trial) and len(trial.trial_id) < 100_001 for trial in found.trials)
        assert all(isinstance(trial.origin, Origin) and isinstance(trial.state, State) for trial in found.trials)


def test_another_stores_cache_does_not_serve(filled: Path) -> None:
    other = filled / "other"
    write(other, started("o"), "o.json")
    mine, theirs = (cache_path(filled / "cache", str(place)) for place in (filled / "store", other))
    shutil.copy(mine, theirs)
    assert [trial.trial_id for trial in read(other, filled / "cache").trials] == ["o"]


def polled(store: Path) -> tuple[StoreReader, EventGroups]:
    """Return a reader that keeps its index in memory, and its groups."""
    groups = EventGroups()
    return StoreReader(TrialStore(str(store)), StoreIndex(groups=groups)), groups


class TestPolling:
    """One reader that reads again and again."""

    @settings(max_examples=150)
    @given(changes_between_readings())
    def test_new_objects_are_read_and_old_ones_kept(
        self, tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, Event | None]]]
    ) -> None:
        folder = tmp_path_factory.mktemp("store")
        reader, groups = polled(folder / "store")
        for changes in rounds:
            for name, event in changes:
                if event is not None:
                    write(folder / "store", event, name)
                    write(folder / "all", event, name)
            reader.read()
            for name, event in changes:
                if event is None:
                    (folder / "store" / "events" / name).unlink()
            assert groups.trials() == list(TrialStore(str(folder / "all")))
        shutil.rmtree(folder)

    def test_it_folds_only_what_changed(self, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, groups = polled(filled / "store")
        reader.read()
        seen, folded = reads_of(monkeypatch), folds_of(monkeypatch)
        reader.read()
        assert (seen, folded) == ([], [])
        write(filled / "store", Event(kind=EventKind.MEASURED, trial_id="t7", sequence=1), "2026-01-03/x.json")
        reader.read()
        assert (seen, folded) == (["x.json"], [3])
        trials = groups.trials()
        (filled / "store" / "events" / "2026-01-02" / "003b.json").unlink()
        reader.read()
        assert (groups.trials(), folded) == (trials, [3])

    def test_an_event_that_joins_two_groups_makes_them_one(self, filled: Path) -> None:
        reader, groups = polled(filled / "store")
        write(filled / "store", Event(kind=EventKind.PLANNED, launch_id="l", config={"x": 1}), "a.json")
        reader.read()
        assert groups.with_id("t7") is not groups.with_id("l")
        write(filled / "store", Event(kind=EventKind.MEASURED, trial_id="t7", launch_id="l", sequence=1), "b.json")
        reader.read()
        group = groups.with_id("t7")
        assert group is not None
        assert group is groups.with_id("l")
        assert [Path(place).name for place in group.events] == ["007a.json", "007b.json", "a.json", "b.json"]
        assert [(trial.trial_id, trial.launch_id, trial.config) for trial in group.trials] == [("t7", "l", {"x": 1})]

    def test_unreadable_objects_are_tried_again_and_others_are_not(
        self, filled: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader, groups = polled(filled / "store")
        reader.read()
        (filled / "store" / "events" / "bad.json").write_text("{}")
        with monkeypatch.context() as patch:
            patch.setattr("torchx_cubicml.store.local._read_file", lambda _: OSError(5, "Input/output error"))
            for _ in range(2):
                reader.read()
                assert [Path(place).name for place in reader.failed] == ["bad.json"]
        write(filled / "store", started("new"), "new.json")
        seen = reads_of(monkeypatch)
        for _ in range(2):
            reader.read()
            assert (len(groups.trials()), reader.failed) == (51, {})
        assert seen == ["bad.json", "new.json"]

    def test_objects_read_before_a_failure_count(self, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, groups = polled(filled / "store")
        seen, read_objects = reads_of(monkeypatch), LocalBackend.read

        def failing(self: LocalBackend, places: Sequence[str]) -> Iterable[tuple[str, bytes | Exception]]:
            yield from read_objects(self, places[:30])
            raise StoreError("503 Slow Down")

        with monkeypatch.context() as patch:
            patch.setattr(LocalBackend, "read", failing)
            for n_trials in (15, 30):
                with pytest.raises(StoreError, match="Slow Down"):
                    reader.read()
                assert len(groups.trials()) == n_trials
        reader.read()
        assert groups.trials() == list(TrialStore(str(filled / "store")))
        assert len(seen[:100]) == len(set(seen[:100])) == 100


class TestFingerprint:
    def holds(self, filled: Path) -> bool:
        before = getattr(self, "before", None) or fingerprint_of(self.directories(filled))
        self.before = before
        return refresh_if_unchanged(TrialStore(str(filled / "store")).folder, before) is not None

    def directories(self, filled: Path) -> object:
        return TrialStore(str(filled / "store")).folder.list_objects().directories

    @pytest.mark.parametrize("stamps", ["young", "settled"])
    def test_it_changes_with_the_objects_only(self, filled: Path, stamps: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if stamps == "settled":
            monkeypatch.setattr("torchx_cubicml.store.local._SETTLED_NS", -(10**18))
        events = filled / "store" / "events"
        assert self.holds(filled)
        (events / "2026-01-02" / ".being-written.json.tmp").write_text("")
        assert self.holds(filled)
        (events / "new.json").write_text("{}")
        assert not self.holds(filled)
        (events / "new.json").unlink()
        assert self.holds(filled)
        (events / "2026-01-03").mkdir()
        assert not self.holds(filled)

    def test_an_object_that_came_in_the_same_tick_is_seen(self, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stamps of the last seconds do not count, for two changes within a tick bear the same."""
        same = SimpleNamespace(st_ctime_ns=filled.stat().st_ctime_ns)
        assert self.holds(filled)
        monkeypatch.setattr("torchx_cubicml.store.local.os.stat", lambda *_: same)
        (filled / "store" / "events" / "2026-01-02" / "new.json").write_text("{}")
        assert not self.holds(filled)
