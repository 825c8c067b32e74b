from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.store import TrialStore, read_trials, segments
from torchx_cubicml.store.compaction import CompactionResult, compact
from torchx_cubicml.store.fingerprint import fingerprint_of, refresh_if_unchanged
from torchx_cubicml.store.reader import read_store
from torchx_cubicml.store.segments import SUFFIX, decode_segment, encode_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = {"local": lambda folder: str(folder / "store"), "remote": lambda folder: f"memory://{folder}/store"}
N_SEGMENTS = 9


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TrialStore:
    return TrialStore(KINDS[request.param](tmp_path))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each segment that was opened."""
    sizes: list[int] = []

    def count(data: bytes) -> dict[str, bytes]:
        sizes.append(len(data))
        return decode_segment(data)

    monkeypatch.setattr(segments, "decode_segment", count)
    return sizes


def content_of(trial_id: str, sequence: int = 0) -> bytes:
    event = Event(kind=EventKind.MEASURED, trial_id=trial_id, sequence=sequence, observed={"n": sequence})
    return json.dumps(event.to_json()).encode()


def merge(store: TrialStore) -> list[str]:
    """Fill a store as merged ones are: the events of segments alternate in time. Return the trials."""
    for segment in range(N_SEGMENTS):
        objects = {f"{number:03}-{segment}.json": content_of(f"t{segment}-{number}") for number in range(6)}
        store.folder.publish_segment(f"2026-01-01-{segment}{SUFFIX}", encode_segment(objects))
    return [f"t{segment}-{number}" for number in range(6) for segment in range(N_SEGMENTS)]


class HttpError(Exception):
    """As the client of a protocol has it."""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialStore]:
    """A store of one object and of two segments, one of which cannot be fetched."""
    store = TrialStore(KINDS["remote"](tmp_path))
    for day in ("2026-01-01", "2026-01-02", "2026-01-09"):
        for number in range(2):
            store.folder.publish(day, f"{day}-{number}.json", content_of(day, number))
    compact(store, before="2026-01-09")
    fetch = MemoryFileSystem.cat_file

    def cat_file(self: MemoryFileSystem, path: str, *args: object, **more: object) -> bytes:
        if "2026-01-01" in path and path.endswith(SUFFIX):
            raise HttpError("503 Service Unavailable, AccountKey=abcdefSECRET")
        return bytes(fetch(self, path, *args, **more))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    return TrialStore(store.url)


def test_an_unfetchable_segment_is_reported(failing: TrialStore) -> None:
    assert [trial.trial_id for trial in failing] == ["2026-01-02", "2026-01-09"]
    trials, warnings = read_trials(failing.url)
    assert [trial.trial_id for trial in trials] == ["2026-01-02", "2026-01-09"]
    assert compact(failing, before="2026-01-09") == CompactionResult(n_events=0, n_segments=0)
    for warning in (*failing.warnings, *warnings):
        assert "HttpError: 503 Service Unavailable" in warning
        assert "SECRET" not in warning


def test_client_errors_about_segments_are_masked(failing: TrialStore) -> None:
    (segment,) = [
        place for place in failing.folder._segment_places()[0] if place.rpartition("/")[2].startswith("2026-01-01")
    ]
    ((_, content),) = failing.folder.read([f"{segment}/2026-01-01-0.json"])
    assert isinstance(content, StoreError)
    assert "503" in str(content)
    assert "SECRET" not in str(content)


def test_segments_whose_events_alternate_are_opened_once(store: TrialStore, opened: list[int]) -> None:
    ids = merge(store)
    assert [trial.trial_id for trial in store] == ids
    assert len(opened) == N_SEGMENTS


def test_each_segment_is_opened_at_most_twice(
    store: TrialStore, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MOST_BYTES", 1)
    ids = merge(store)
    assert [trial.trial_id for trial in read_store(store, cache=None, out_of_time=lambda: False).trials] == ids
    assert len(opened) <= 2 * N_SEGMENTS


def test_late_segments_are_opened_at_the_next_launches(store: TrialStore, opened: list[int], tmp_path: Path) -> None:
    ids, cache = merge(store), tmp_path / "cache"
    for launch in range(N_SEGMENTS):
        answers = iter([False])  # there is time for one
        with pytest.raises(StoreError, match="the next launch continues from there") as raised:
            read_store(TrialStore(store.url), cache=cache, out_of_time=lambda left=answers: next(left, True))
        unopened = N_SEGMENTS - 1 - launch
        assert f"0 of {6 * (launch + 1)} objects" in str(raised.value)
        assert (f"{unopened} segments unread" in str(raised.value)) == (unopened > 0)
    found = read_store(TrialStore(store.url), cache=cache, out_of_time=lambda: False)
    assert [trial.trial_id for trial in found.trials] == ids
    assert len(opened) == 2 * N_SEGMENTS  # to list, one a launch, and to read


def test_asking_for_changes_opens_no_segment(store: TrialStore, opened: list[int]) -> None:
    for number in range(3):
        store.folder.publish("2026-01-01", f"{number}.json", content_of("t", number))
    before = fingerprint_of(store.folder.list_objects().directories)
    assert refresh_if_unchanged(store.folder, before) is not None
    merge(store)
    assert refresh_if_unchanged(TrialStore(store.url).folder, before) is None
    assert opened == []


@pytest.mark.parametrize(
    ("number", "is_fatal"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)], ids=errno.errorcode.get
)
def test_a_file_system_that_cannot_sync_folders_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_fatal: bool
) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = TrialStore(str(tmp_path / "store"))
    if is_fatal:
        with pytest.raises(StoreError, match="cannot write to store"):
            merge(store)
    else:
        ids = merge(store)
        assert [trial.trial_id for trial in store] == ids


def test_a_stale_object_is_read_from_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number in range(2):
        store.folder.publish("2026-01-01", f"{number}.json", content_of("t", number))
    places = store.folder.list_objects().places()
    compact(TrialStore(store.url), before="2026-01-02")
    open_ = os.open

    def stale(path: str, *args: int) -> int:
        if str(path) in places:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return open_(path, *args)

    monkeypatch.setattr(os, "open", stale)
    assert all(isinstance(content, bytes) for _, content in store.folder.read(places))
