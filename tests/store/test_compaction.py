from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.compaction import CompactionResult, compact
from torchx_cubicml.store.event_groups import EventGroups
from torchx_cubicml.store.fingerprint import fingerprint_of, refresh_if_unchanged
from torchx_cubicml.store.index_cache import StoreIndex
from torchx_cubicml.store.reader import StoreReader, read_store
from torchx_cubicml.store.segments import SUFFIX, decode_segment, encode_segment

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial

KINDS = {"local": lambda folder: str(folder / "store"), "remote": lambda folder: f"memory://{folder}/store"}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TrialStore:
    return TrialStore(KINDS[request.param](tmp_path))


def put(store: TrialStore, day: str, name: str, event: Event | bytes) -> None:
    data = event if isinstance(event, bytes) else json.dumps(event.to_json(), indent=1).encode()
    store.folder.publish(day, name, data)


def begun(trial_id: str, sequence: int = 0, **facts: object) -> Event:
    return Event(kind=EventKind.MEASURED, trial_id=trial_id, sequence=sequence, observed=facts)


def fill(store: TrialStore) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        for number in range(4):
            put(store, day, f"{day}-{number}.json", begun(f"t{number}", sequence=int(day[-1]), n=number, day=day))


def objects(store: TrialStore) -> list[str]:
    return sorted(place.rpartition("/")[2] for place in store.folder.list_objects().places())


def files(store: TrialStore) -> list[str]:
    system, root = fsspec.core.url_to_fs(store.url)
    system.invalidate_cache()
    return sorted(path.removeprefix(root) for path in system.find(root))


def test_past_days_become_segments_and_say_the_same(store: TrialStore) -> None:
    fill(store)
    put(store, "2026-01-01", "bad.json", b'{"x": NaN}')
    put(store, "2026-01-03", "only.json", begun("alone"))
    before, seen = list(store), objects(store)
    assert compact(store, before="2026-01-03") == CompactionResult(n_events=8, n_segments=2)
    assert list(store) == before
    assert objects(store) == seen
    assert "bad.json (not JSON" in store.warnings[0]
    loose = [path for path in files(store) if path.startswith("/events/")]
    assert [path.rpartition("/")[2] for path in loose] == [
        "bad.json",
        *(f"2026-01-03-{number}.json" for number in range(4)),
        "only.json",
    ]
    assert len([path for path in files(store) if path.endswith(SUFFIX)]) == 2
    assert compact(store, before="2026-01-03") == CompactionResult(n_events=0, n_segments=0)


def test_later_events_belong_to_their_trial(store: TrialStore, tmp_path: Path) -> None:
    fill(store)

    def found() -> list[Trial]:
        return read_store(store, cache=tmp_path / "cache", out_of_time=lambda: False).trials

    first = found()
    compact(store, before="2026-01-04")
    assert found() == first
    end = Event(kind=EventKind.ENDED, trial_id="t2", sequence=9, state=State.COMPLETED)
    put(store, "2026-01-02", "late.json", end)
    assert [trial.state for trial in found() if trial.trial_id == "t2"] == [State.COMPLETED]
    assert found() == list(store)


def test_an_earlier_listing_is_readable_after_compaction(store: TrialStore) -> None:
    fill(store)
    places = store.folder.list_objects().places()
    compact(TrialStore(store.url), before="2026-01-03")
    assert all(isinstance(content, bytes) for _, content in store.folder.read(places))
    (missing,) = [content for _, content in store.folder.read([places[0].replace("-0.json", "-7.json")])]
    assert isinstance(missing, FileNotFoundError)


def test_an_event_in_two_segments_counts_once(store: TrialStore) -> None:
    """As where two that compact have listed the same."""
    fill(store)
    before = list(store)
    contents = dict(store.folder.read(store.folder.list_objects().places()))
    twice = {place.rpartition("/")[2]: content for place, content in contents.items() if isinstance(content, bytes)}
    for name in ("a", "b"):
        store.folder.publish_segment(f"2026-01-01-{name}{SUFFIX}", encode_segment(twice))
    assert list(store) == before
    compact(store, before="2026-01-04")
    assert list(store) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        gzip.compress(b"a.json\t{}\n" * 99)[:-4],
        gzip.compress(b"../../evil.json\t{}\n"),
        gzip.compress(b"\n"),
        gzip.compress(b" " * (64 * 1024 * 1024 + 1)),
    ],
    ids=["empty", "no gzip", "cut", "hostile name", "no name", "bomb"],
)
def test_a_damaged_segment_is_reported_and_the_rest_is_read(store: TrialStore, data: bytes) -> None:
    fill(store)
    before = list(store)
    with pytest.raises(RecordError):
        decode_segment(data)
    store.folder.publish_segment(f"2026-01-01-x{SUFFIX}", data)
    assert list(store) == before
    assert f"2026-01-01-x{SUFFIX} (" in store.warnings[0]


def test_unlistable_segments_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(str(tmp_path / "store"))
    fill(store)
    compact(store, before="2026-01-03")
    scandir = os.scandir

    def refuse(place: str) -> object:
        if str(place).endswith("segments"):
            raise PermissionError(13, "Permission denied")
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    assert len(list(store)) == 4
    assert "segments (Permission denied)" in store.warnings[0]


def test_a_segment_is_checked_before_objects_are_removed(store: TrialStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    before = files(store)
    publish = type(store.folder).publish_segment

    def cut(self: object, name: str, data: bytes) -> str:
        return publish(self, name, data[:-9])

    monkeypatch.setattr(type(store.folder), "publish_segment", cut)
    with pytest.raises(StoreError, match="differs when read back; nothing was removed"):
        compact(store, before="2026-01-04")
    assert [path for path in files(store) if path.startswith("/events/")] == before


def test_unremoved_objects_are_not_folded_again(store: TrialStore) -> None:
    fill(store)
    before = list(store)
    remove = type(store.folder).remove
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store.folder), "remove", lambda self, places: None)
        compact(store, before="2026-01-04")
    n_segments = len([path for path in files(store) if path.endswith(SUFFIX)])
    assert type(store.folder).remove is remove
    again = compact(store, before="2026-01-04")
    assert again == CompactionResult(n_events=12, n_segments=0)
    assert len([path for path in files(store) if path.endswith(SUFFIX)]) == n_segments
    assert list(store) == before
    assert compact(store, before="2026-01-04").n_events == 0


@pytest.mark.parametrize(("n_objects", "n_events"), [(1, 0), (2, 2), (3, 3)])
def test_two_events_of_a_day_are_worth_a_segment(store: TrialStore, n_objects: int, n_events: int) -> None:
    for number in range(n_objects):
        put(store, "2026-01-01", f"{number}.json", begun("a", number))
    put(store, "2026-01-02", "0.json", begun("a"))
    put(store, "2026-01-02", "bad.json", b"{")
    found = compact(store, before="2026-01-03")
    assert found == CompactionResult(n_events=n_events, n_segments=int(n_events > 0))
    assert len(files(store)) == 2 + (1 if n_events else n_objects)


@pytest.mark.parametrize(
    ("limit", "n_segments", "n_events"),
    [(0, 3, 6), (2, 3, 6), (2.999, 3, 6), (3, 2, 6), (3.999, 2, 6), (4, 2, 7), (6, 1, 6), (7, 1, 7)],
)
def test_a_large_day_becomes_several_segments(
    store: TrialStore, monkeypatch: pytest.MonkeyPatch, limit: float, n_segments: int, n_events: int
) -> None:
    """Of seven events of one size; what is left over of one segment is kept for the next."""
    size = 1000
    for number in range(7):
        content = json.dumps(begun("a", number).to_json()).encode()
        put(store, "2026-01-01", f"{number}.json", content + b" " * (size - len(content)))
    monkeypatch.setattr("torchx_cubicml.store.compaction._MAX_SEGMENT_CONTENT_BYTES", limit * size)
    assert compact(store, before="2026-01-03") == CompactionResult(n_segments=n_segments, n_events=n_events)


def test_a_segment_holds_sixteen_mebibytes(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number in range(17):
        content = json.dumps(begun("a", number).to_json()).encode()
        put(store, "2026-01-01", f"{number:02}.json", content + b" " * (2**20 - len(content)))
    assert compact(store, before="2026-01-03") == CompactionResult(n_events=16, n_segments=1)
    assert [path for path in files(store) if path.startswith("/events/")] == ["/events/2026-01-01/16.json"]


def test_folders_that_are_no_past_days_are_passed_over(store: TrialStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.store.compaction.SystemRandom", lambda: SimpleNamespace(shuffle=lambda _: None))
    days = ("2025-12-31", "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "copied", "2026-01-02-a")
    for day in days:
        for number in range(1 if day == "2026-01-01" else 2):
            put(store, day, f"{number}.json", begun("a", number))
    assert compact(store, before="2026-01-04") == CompactionResult(n_events=6, n_segments=3)
    left = {path.split("/")[2] for path in files(store) if path.startswith("/events/")}
    assert left == {"2026-01-01", "2026-01-04", "copied", "2026-01-02-a"}


def test_other_objects_than_events_stay(store: TrialStore) -> None:
    fill(store)
    odd = {"0-odd.json", "0-huge.json"}
    put(store, "2026-01-01", "0-odd.json", b'{"no": "event"}')
    put(store, "2026-01-01", "0-huge.json", b'{"a": 1e999}')
    compact(store, before="2026-01-04")
    assert {path.rpartition("/")[2] for path in files(store) if path.startswith("/events/2026-01-01")} == odd


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000],
    ids=["lists", "objects"],
)
def test_deeply_nested_objects_stay(store: TrialStore, content: bytes) -> None:
    fill(store)
    put(store, "2026-01-01", "deep.json", content)
    assert compact(store, before="2026-01-04").n_events == 12
    assert [path for path in files(store) if path.startswith("/events/")] == ["/events/2026-01-01/deep.json"]


@pytest.mark.parametrize("name", ["a\nb.json", "a\tb.json", "a\rb.json", "a\x0bb.json"], ids=ascii)
def test_an_object_with_an_odd_name_stays(store: TrialStore, name: str) -> None:
    fill(store)
    put(store, "2026-01-01", name, begun("odd"))
    before = list(store)
    assert compact(store, before="2026-01-04") == CompactionResult(n_events=12, n_segments=3)
    assert [path for path in files(store) if path.startswith("/events/")] == [f"/events/2026-01-01/{name}"]
    assert (list(store), store.warnings) == (before, ())


@pytest.mark.parametrize("when", ["listed", "read"])
def test_objects_folded_meanwhile_are_not_folded_again(store: TrialStore, when: str) -> None:
    fill(store)
    before, kind = list(store), type(store.folder)
    call = {"listed": "list_objects", "read": "read"}[when]
    own, others = getattr(kind, call), []

    def seen(self: object, *args: object, **more: object) -> object:
        found = own(self, *args, **more)
        found = found if when == "listed" else iter(list(found))
        if not others:
            others.append(None)  # it lists and reads too
            others.append(compact(TrialStore(store.url), before="2026-01-04"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, call, seen)
        assert compact(store, before="2026-01-04") == CompactionResult(n_events=0, n_segments=0)
    assert others[1] == CompactionResult(n_events=12, n_segments=3)
    assert len([path for path in files(store) if path.endswith(SUFFIX)]) == 3
    assert list(store) == before


def test_compaction_changes_the_fingerprint_once(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    fill(store)
    first = fingerprint_of(store.folder.list_objects().directories)
    compact(store, before="2026-01-04")
    assert refresh_if_unchanged(store.folder, first) is None
    second = fingerprint_of(store.folder.list_objects().directories)
    assert refresh_if_unchanged(store.folder, second) is not None
    compact_again = TrialStore(store.url)
    put(compact_again, "2026-01-05", "x.json", begun("x"))
    assert refresh_if_unchanged(store.folder, second) is None


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 4),
            st.tuples(st.integers(1, 3), st.integers(0, 99), st.sampled_from("abc"), st.integers(0, 3)),
        ),
        max_size=25,
    )
)
def test_reading_says_the_same_with_segments_and_without(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | tuple[int, int, str, int]]
) -> None:
    """Steps are events that come, and compactions up to a day; one reader knows the index on disk, one polls."""
    folder = tmp_path_factory.mktemp("stores")
    plain, folded = TrialStore(str(folder / "plain")), TrialStore(str(folder / "folded"))
    groups = EventGroups()
    reader = StoreReader(TrialStore(folded.url), StoreIndex(groups=groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchx_cubicml.store.reader._MIN_SAVED_OBJECTS", 0)
        patch.setattr("torchx_cubicml.store.reader._MIN_SAVED_SHARE", 0)
        for index, step in enumerate(steps):
            if isinstance(step, int):
                compact(folded, before=f"2026-01-0{step}")
            else:
                day, number, trial_id, sequence = step
                for each in (plain, folded):
                    put(each, f"2026-01-0{day}", f"{number}-{index}.json", begun(trial_id, sequence, n=number))
            known = read_store(folded, cache=folder / "cache", out_of_time=lambda: False)
            assert (known.trials, known.warnings) == (list(plain), ())
            reader.read()
            assert groups.trials() == list(plain)
            assert list(folded) == list(plain)


WRITES = """
import sys
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.store import TrialStore
import json
store = TrialStore(sys.argv[1])
for number in range(int(sys.argv[3])):
    event = Event(kind=EventKind.STARTED, trial_id=f"{sys.argv[2]}-{number}")
    name = f"{sys.argv[2]}-{number:04}.json"
    store.folder.publish(f"2026-01-0{number % 3 + 1}", name, json.dumps(event.to_json()).encode())
"""
COMPACTS = """
import sys
from pathlib import Path
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.compaction import compact
print("begins", flush=True)
while not Path(sys.argv[2]).exists():
    compact(TrialStore(sys.argv[1]), before="2026-02-01")
"""


def started(script: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True)


def test_killed_compactions_lose_no_event(tmp_path: Path) -> None:
    url, done = str(tmp_path / "store"), tmp_path / "done"
    writers = [started(WRITES, url, name, "300") for name in ("w1", "w2")]
    folding = [started(COMPACTS, url, str(done)) for _ in range(2)]
    rng, most, n_killed = random.Random(0), 0, 0
    end = time.monotonic() + 120
    while any(writer.poll() is None for writer in writers) or n_killed < 4:
        assert time.monotonic() < end
        store = TrialStore(url)
        n_trials = len(list(store))
        assert n_trials >= most, "an event that was seen is gone"
        assert store.warnings == ()
        most = n_trials
        victim = rng.randrange(2)
        if folding[victim].stdout.readline():  # it works by now
            time.sleep(rng.random() / 20)
            os.kill(folding[victim].pid, signal.SIGKILL)
            folding[victim].communicate()
            folding[victim] = started(COMPACTS, url, str(done))
            n_killed += 1
    done.touch()
    for process in (*writers, *folding):
        process.communicate(timeout=600)
    assert [process.returncode for process in (*writers, *folding)] == [0] * 4
    store = TrialStore(url)
    compact(store, before="2026-02-01")
    assert {trial.trial_id for trial in store} == {f"{name}-{number}" for name in ("w1", "w2") for number in range(300)}
    left = Counter(path.parent for path in Path(url, "events").glob("*/*.json") if path.exists())
    assert all(count == 1 for count in left.values())  # one event that came last is not worth a segment
