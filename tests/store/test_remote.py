from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store.backend import MAX_OBJECT_BYTES, Directory
from torchx_cubicml.store.remote import RemoteBackend
from torchx_cubicml.store.segments import encode_segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY = "2026-01-01"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path}/store"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects were fetched at once, each time."""
    sizes: list[int] = []
    real = MemoryFileSystem.cat_ranges

    def cat_ranges(self: MemoryFileSystem, paths: Sequence[str], *args: object, **more: object) -> list[bytes]:
        sizes.append(len(paths))
        return list(real(self, paths, *args, **more))

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", cat_ranges)
    return sizes


def test_objects_are_fetched_in_batches(url: str, fetched: list[int]) -> None:
    backend = RemoteBackend(url, "memory")
    for number in range(300):
        backend.publish(DAY, f"{number:03}.json", str(number).encode())
    places = backend.list_objects().places()
    assert [content for _, content in backend.read(places)] == [str(number).encode() for number in range(300)]
    assert fetched == [256, 44]
    assert list(backend.read([])) == []
    assert fetched == [256, 44]


def test_an_object_is_read_up_to_the_limit(url: str) -> None:
    backend = RemoteBackend(url, "memory")
    for more in (0, 1, 9):
        backend.publish(DAY, f"{more}.json", b"x" * (MAX_OBJECT_BYTES + more))
    listing = backend.list_objects()
    root = url.removeprefix("memory://")
    assert listing.too_large == {f"{root}/events/{DAY}/{more}.json" for more in (1, 9)}
    lengths = [len(content) for _, content in backend.read(listing.places()) if isinstance(content, bytes)]
    assert lengths == [MAX_OBJECT_BYTES, MAX_OBJECT_BYTES + 1, MAX_OBJECT_BYTES + 1]


def test_a_store_is_listed_by_folders_in_order(url: str, tmp_path: Path) -> None:
    backend = RemoteBackend(f"{url}/", "memory")
    for day, name in ((DAY, "b.json"), ("2025-12-31", "c.json"), (DAY, "a.json"), (DAY, "x.txt"), (DAY, ".a.json")):
        backend.publish(day, name, b"{}")
    segments = [backend.publish_segment(f"{DAY}-{name}.events.gz", encode_segment({})) for name in "ba"]
    backend.publish_segment("notes.txt", b"")
    backend.publish_segment(".c.events.gz", b"")
    root = f"{tmp_path}/store"
    assert segments == [f"{root}/segments/{DAY}-{name}.events.gz" for name in "ba"]
    listing = backend.list_objects()
    assert list(listing.directories.values()) == [
        Directory(place=f"{root}/events/2025-12-31", names=("c.json",)),
        Directory(place=f"{root}/events/{DAY}", names=("a.json", "b.json")),
        Directory(place=f"{root}/segments/{DAY}-a.events.gz", names=(), stamp=0),
        Directory(place=f"{root}/segments/{DAY}-b.events.gz", names=(), stamp=0),
    ]
    assert backend.list_objects(out_of_time=lambda: True).unopened == tuple(sorted(segments))


def test_an_object_of_unknown_size_is_no_large_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RemoteBackend(url, "memory")
    backend.publish(DAY, "a.json", b"{}")
    real = MemoryFileSystem.find

    def find(self: MemoryFileSystem, path: str, **more: object) -> dict[str, dict[str, object]]:
        return {name: {**info, "size": None} for name, info in real(self, path, **more).items()}

    monkeypatch.setattr(MemoryFileSystem, "find", find)
    listing = backend.list_objects()
    assert (len(listing.places()), listing.too_large) == (1, frozenset())


def test_a_moved_object_is_read_from_its_segment_if_asked(url: str) -> None:
    backend = RemoteBackend(url, "memory")
    for name in ("1.json", "2.json"):
        backend.publish(DAY, name, b"{}")
    places = backend.list_objects().places()
    backend.publish_segment(f"{DAY}-a.events.gz", encode_segment({"1.json": b'"moved"'}))
    backend.remove([places[0], places[0]])
    assert [content for _, content in backend.read(places)] == [b'"moved"', b"{}"]
    missing, kept = (content for _, content in backend.read(places, follows=False))
    assert isinstance(missing, FileNotFoundError)
    assert kept == b"{}"
    backend.remove(places)
    assert isinstance([content for _, content in backend.read(places)][1], FileNotFoundError)


@pytest.mark.parametrize(
    ("protocol", "package"),
    [
        ("s3", "s3fs: pip install 'torchx-cubicml[s3]'"),
        ("s3a", "s3fs: pip install 'torchx-cubicml[s3]'"),
        ("gs", "a client package"),
    ],
)
def test_a_missing_client_is_named(protocol: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise ImportError("no client")

    monkeypatch.setattr("fsspec.core.url_to_fs", absent)
    with pytest.raises(StoreError) as raised:
        RemoteBackend(f"{protocol}://me:hunter2@x/y", protocol).list_objects()
    assert str(raised.value) == f"store {protocol}://***@x/y needs {package} (no client)"


@pytest.mark.parametrize("call", ["publish", "remove", "list_objects", "read"])
def test_a_failed_call_says_what_failed(call: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    backend = RemoteBackend(url, "memory")
    calls = {
        "publish": (lambda: backend.publish(DAY, "a.json", b""), "cannot write to"),
        "remove": (lambda: backend.remove([]), "cannot remove an object from"),
        "list_objects": (backend.list_objects, "cannot read"),
        "read": (lambda: list(backend.read(["a"])), "cannot read"),
    }
    run, what = calls[call]
    with pytest.raises(StoreError) as raised:
        run()
    assert str(raised.value) == f"{what} store {url}: RuntimeError: password=***"


def test_each_backend_has_one_connection_of_its_own(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    real = fsspec.core.url_to_fs

    def url_to_fs(place: str, **options: object) -> tuple[object, str]:
        made.append(options)
        return real(place, **options)

    monkeypatch.setattr("fsspec.core.url_to_fs", url_to_fs)
    for backend in (RemoteBackend(url, "memory"), RemoteBackend(url, "memory")):
        for _ in range(2):
            backend.list_objects()
    assert made == [{"skip_instance_cache": True}] * 2


def test_calls_of_a_client_run_in_daemon_threads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []

    class Loop:
        def set_default_executor(self, executor: object) -> None:
            chosen.append(executor)

        def call_soon_threadsafe(self, function: object, executor: object) -> None:
            function(executor)

    monkeypatch.setattr(MemoryFileSystem, "loop", Loop(), raising=False)
    RemoteBackend(url, "memory").list_objects()
    (executor,) = chosen
    assert executor.submit(threading.current_thread).result(60).daemon
    assert executor.submit(divmod, 7, 2).result(60) == (3, 1)
    failed = executor.submit(divmod, 7, 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(60)
