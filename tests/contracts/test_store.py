"""What every kind of store keeps; a new kind is one more entry of ``KINDS``."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem

from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.store import TrialStore, read_trials
from torchx_cubicml.store.backend import Presence

if TYPE_CHECKING:
    from pathlib import Path


class MovingFileSystem(LocalFileSystem):
    """Stands for protocols such as sftp, where a file is seen while it is written, so that it must be moved."""

    protocol = "moving"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(str(path).removeprefix("moving://"))


class AwaitedFileSystem(AsyncFileSystemWrapper):
    """Stands for protocols such as s3, which fetch many objects at once in a loop of their own."""

    protocol = "awaited"

    def __init__(self, **kwargs: object) -> None:
        super().__init__(LocalFileSystem(auto_mkdir=True), asynchronous=False)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("awaited://").rstrip("/")


KINDS = {
    "path": lambda folder: str(folder / "store"),
    "file": lambda folder: f"file://{folder}/store",
    "memory": lambda folder: f"memory://{folder}/store",
    "moving": lambda folder: f"moving://{folder}/store",
    "awaited": lambda folder: f"awaited://{folder}/store",
}


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    fsspec.register_implementation("moving", MovingFileSystem, clobber=True)
    fsspec.register_implementation("awaited", AwaitedFileSystem, clobber=True)
    return KINDS[request.param](tmp_path)


def trial_of(number: int) -> Trial:
    return Trial.completed(
        workload={"program": "train.py", "n_layers": 2},
        config={"micro_batch_size": number},
        tokens_per_second=100.0 + number,
    )


def by_id(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.trial_id)


def objects(url: str) -> dict[str, bytes]:
    """Return every file of a store with its content, read by other means than the store's own."""
    system, root = fsspec.core.url_to_fs(url)
    system.invalidate_cache()
    return {path: system.cat_file(path) for path in system.find(root)}


def put(url: str, name: str, data: bytes) -> None:
    system, root = fsspec.core.url_to_fs(url)
    system.makedirs(f"{root}/events/2026-03-01", exist_ok=True)
    system.pipe_file(f"{root}/events/2026-03-01/{name}", data)


class TestEveryStore:
    def test_a_missing_store_is_empty(self, url: str) -> None:
        store = TrialStore(url)
        assert list(store) == []
        assert store.warnings == ()
        assert read_trials(url) == ([], ())
        assert objects(url) == {}

    def test_what_is_at_its_place(self, url: str) -> None:
        system, root = fsspec.core.url_to_fs(url)
        assert TrialStore(url).folder.presence() is Presence.ABSENT
        system.makedirs(root)
        assert TrialStore(url).folder.presence() is Presence.EMPTY
        system.pipe_file(f"{root}/notes.json", b"{}")
        assert TrialStore(url).folder.presence() is Presence.OTHER
        assert TrialStore(f"{url}/notes.json").folder.presence() is Presence.FILE
        TrialStore(url).add(trial_of(1))
        assert TrialStore(url).folder.presence() is Presence.STORE

    @pytest.mark.parametrize("state", State)
    def test_a_trial_of_any_state_comes_back_equal(self, url: str, state: State) -> None:
        trial = Trial(
            trial_id=f"slurm://torchx/{state}",
            workload={"program": "-m größe.训练", "world_size": 8},
            config={"sharding_strategy": ("FULL_SHARD", "NO_SHARD"), "lr": 3e-4, "compile": False},
            state=state,
            observed={"n_params": 10**9, "host": "knötchen"},
            measurement=Measurement(samples_per_second=2.5, steps_counted=7, step_time_s=(0.1, 0.2, 0.3)),
            origin=Origin.REWRITE,
            launch_id="tune-1",
            attempts=1 if state is State.PLANNED else 3,
            reason="Speicher voll: \U0001f4a5" if state.ended else "",
            suggestion={"throughput": 3.5, "reason": "größer"},
            started_at="2026-03-01T10:00:00+00:00",
            ended_at="2026-03-01T11:00:00+00:00" if state.ended else "",
        )
        TrialStore(url).add(trial)
        assert list(TrialStore(url)) == [trial]
        assert read_trials(url) == ([trial], ())

    def test_the_layout_is_one_object_per_event_below_its_day(self, url: str) -> None:
        TrialStore(url).append(Event(kind=EventKind.STARTED, trial_id="a"))
        [(place, data)] = objects(url).items()
        events, day, name = place.rsplit("/", 3)[-3:]
        assert events == "events"
        assert name.replace("-", "")[:8] == day.replace("-", "")
        assert json.loads(data) == {
            "schema": 1, "event": "started", "trial_id": "a", "attempt": [0, 0], "sequence": 0, "origin": "user",
        }  # fmt: skip

    def test_names_sort_by_time(self, url: str) -> None:
        store = TrialStore(url)
        for sequence in range(20):
            store.append(Event(kind=EventKind.STARTED, trial_id="a", sequence=sequence))
        assert [event.sequence for event in TrialStore(url).events()] == list(range(20))

    def test_objects_are_never_rewritten(self, url: str) -> None:
        store = TrialStore(url)
        store.add(trial_of(1))
        before = objects(url)
        store.add(trial_of(2))
        list(store)
        after = objects(url)
        assert before.items() <= after.items()
        assert len(after) == len(before) + 2

    def test_an_open_reader_sees_what_another_has_written_since(self, url: str) -> None:
        reader, writer = TrialStore(url), TrialStore(url)
        writer.add(trial_of(1))
        assert len(list(reader)) == 1
        writer.add(trial_of(2))
        assert len(list(reader)) == 2

    def test_two_writers_lose_nothing(self, url: str) -> None:
        written = [[trial_of(number) for number in range(start, start + 15)] for start in (0, 100)]

        def write(trials: list[Trial]) -> None:
            store = TrialStore(url)
            for trial in trials:
                store.add(trial)

        writers = [threading.Thread(target=write, args=(trials,)) for trials in written]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert by_id(list(TrialStore(url))) == by_id(written[0] + written[1])

    def test_unreadable_objects_give_one_warning(self, url: str) -> None:
        store = TrialStore(url)
        store.add(trial_of(1))
        whole = next(iter(objects(url).values()))
        bad = {
            "half.json": whole[: len(whole) // 2],
            "empty.json": b"",
            "newer.json": b'{"schema": 2, "event": "started", "trial_id": "b"}',
            "constant.json": b'{"schema": 1, "event": "started", "trial_id": "b", "x": NaN}',
            "deep.json": b"[" * 200_000,
        }
        for name, data in bad.items():
            put(url, name, data)
        assert len(list(store)) == 1
        [warning] = store.warnings
        assert all(name in warning for name in bad)
        assert read_trials(url)[1] == store.warnings

    def test_an_object_that_is_too_large_is_skipped(self, url: str) -> None:
        put(url, "large.json", b'{"schema": 1, "event": "started", "trial_id": "b"' + b" " * 2_000_000 + b"}")
        store = TrialStore(url)
        assert list(store) == []
        assert "large.json" in store.warnings[0]
        assert "larger" in store.warnings[0]

    def test_a_flood_of_bad_objects_is_one_short_warning(self, url: str) -> None:
        for number in range(30):
            put(url, f"{number}.json", b"{")
        store = TrialStore(url)
        assert list(store) == []
        [warning] = store.warnings
        assert warning.startswith("skipped 30 unreadable objects")
        assert warning.endswith("25 more")

    def test_a_good_reading_forgets_old_warnings(self, url: str) -> None:
        store = TrialStore(url)
        put(url, "half.json", b"{")
        assert list(store) == []
        system, root = fsspec.core.url_to_fs(url)
        system.rm_file(f"{root}/events/2026-03-01/half.json")
        assert list(store) == []
        assert store.warnings == ()

    @pytest.mark.parametrize(
        "name", [".20260301-ab.json.tmp", ".20260301-ab.json", "notes.txt", "20260301-ab.json.tmp"]
    )
    def test_a_half_written_object_is_not_seen(self, url: str, name: str) -> None:
        put(url, name, b'{"schema": 1, "event": "started", "trial_id": "b"}')
        store = TrialStore(url)
        assert list(store) == []
        assert store.warnings == ()

    def test_two_stores_are_merged_by_copying_files(self, url: str) -> None:
        other = f"{url}-other"
        mine, theirs = trial_of(1), trial_of(2)
        TrialStore(url).add(mine)
        TrialStore(other).add(theirs)
        started = Event(kind=EventKind.STARTED, trial_id="shared", config={"x": 1})
        TrialStore(url).append(started)
        TrialStore(other).append(Event(kind=EventKind.ENDED, trial_id="shared", sequence=1, state=State.COMPLETED))
        target, root = fsspec.core.url_to_fs(url)
        for place, data in objects(other).items():
            day, name = place.rsplit("/", 2)[-2:]
            for folder in (f"{root}/events/{day}", f"{root}/events/copied twice/{day}"):
                target.makedirs(folder, exist_ok=True)
                target.pipe_file(f"{folder}/{name}", data)
        merged = {trial.trial_id: trial for trial in TrialStore(url)}
        assert merged[mine.trial_id] == mine
        assert merged[theirs.trial_id] == theirs
        assert (merged["shared"].config, merged["shared"].state) == ({"x": 1}, State.COMPLETED)
        assert len(merged) == 3
