from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store.backend import MAX_OBJECT_BYTES, Directory, Listing, is_object, never, path_sort_key
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.store.segments import MAX_SEGMENT_BYTES, encode_segment

if TYPE_CHECKING:
    from collections.abc import Callable

DAY = "2026-01-01"
SECOND_NS = 10**9


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(str(tmp_path / "new" / "store"))


def put(backend: LocalBackend, tmp_path: Path, name: str = "a.json", data: bytes = b"{}") -> str:
    backend.publish(DAY, name, data)
    return str(tmp_path / "new" / "store" / "events" / DAY / name)


def segment(backend: LocalBackend, name: str = f"{DAY}-a.events.gz", data: bytes = b"") -> str:
    return backend.publish_segment(name, data)


def let_pass(monkeypatch: pytest.MonkeyPatch, folder: Path, nanoseconds: int) -> None:
    """Let the present be so long after the last change of a folder."""
    now = folder.stat().st_ctime_ns + nanoseconds
    monkeypatch.setattr("torchx_cubicml.store.local.time", SimpleNamespace(time_ns=lambda: now))


@pytest.mark.parametrize(
    "size", [0, 1, 16_383, 16_384, 16_385, MAX_OBJECT_BYTES - 1, MAX_OBJECT_BYTES, MAX_OBJECT_BYTES + 1]
)
def test_an_object_is_read_whole_up_to_the_limit(backend: LocalBackend, tmp_path: Path, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    place = put(backend, tmp_path, data=data)
    assert list(backend.read([place])) == [(place, data)]


def test_a_longer_object_is_cut_beyond_the_limit(backend: LocalBackend, tmp_path: Path) -> None:
    assert MAX_OBJECT_BYTES == 1_048_576
    place = put(backend, tmp_path, data=b"x" * (MAX_OBJECT_BYTES + 9))
    ((_, content),) = backend.read([place])
    assert content == b"x" * (MAX_OBJECT_BYTES + 1)


def test_an_object_that_is_gone_is_an_error(backend: LocalBackend, tmp_path: Path) -> None:
    place = put(backend, tmp_path)
    backend.remove([place, place])
    assert [type(content) for _, content in backend.read([place])] == [FileNotFoundError]
    assert [type(content) for _, content in backend.read([place], follows=False)] == [FileNotFoundError]
    assert [type(content) for _, content in backend.read([str(tmp_path)])] == [IsADirectoryError]


def test_removal_of_what_cannot_go_is_reported(backend: LocalBackend, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^cannot remove an object from store "):
        backend.remove([str(tmp_path)])


@pytest.mark.parametrize("name", [f"events/{DAY}", "segments"])
@pytest.mark.parametrize(
    ("age_ns", "known"), [(3 * SECOND_NS + 1, True), (3 * SECOND_NS, False), (0, False), (-SECOND_NS, False)]
)
def test_only_a_folder_unchanged_for_seconds_is_known(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, age_ns: int, known: bool
) -> None:
    put(backend, tmp_path)
    segment(backend)
    folder = tmp_path / "new" / "store" / name
    let_pass(monkeypatch, folder, age_ns)
    before = backend.list_objects().directories
    assert before[str(folder)].stamp == (folder.stat().st_ctime_ns if known else None)
    again = backend.list_objects(before).directories
    assert (again[str(folder)] is before[str(folder)]) is known
    assert again == before


def test_a_folder_changed_since_is_listed_again(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(backend, tmp_path)
    segment(backend, data=encode_segment({"b.json": b"{}"}))
    let_pass(monkeypatch, tmp_path, 3600 * SECOND_NS)
    now = backend.list_objects()
    earlier = {
        place: Directory(place=place, names=(), stamp=(directory.stamp or 0) - 1)
        for place, directory in now.directories.items()
        if not place.endswith(".gz")
    }
    assert backend.list_objects(earlier) == now
    unstamped = {place: replace(directory, stamp=None) for place, directory in earlier.items()}
    assert backend.list_objects(unstamped) == now


def test_a_walk_lists_folders_and_objects_in_order(backend: LocalBackend, tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    for name in ("b.json", "a.json"):
        put(backend, tmp_path, name)
    backend.publish("2025-12-31", "c.json", b"{}")
    (root / "events" / "link").symlink_to(root / "events" / DAY)
    (root / "events" / DAY / "link.json").symlink_to(root / "events" / DAY / "a.json")
    (root / "events" / DAY / "x.json").mkdir()
    (root / "events" / DAY / "notes.txt").write_text("")
    (root / "events" / DAY / ".d.json").write_text("")
    os.mkfifo(root / "events" / DAY / "pipe.json")
    listing = backend.list_objects()
    days = [f"{root}/events/{day}" for day in ("2025-12-31", DAY)]
    assert listing.directories == {
        f"{root}/events": Directory(place=f"{root}/events", names=(), folders=(days[0], days[1])),
        days[0]: Directory(place=days[0], names=("c.json",)),
        days[1]: Directory(place=days[1], names=("a.json", "b.json", "link.json"), folders=(f"{days[1]}/x.json",)),
        f"{days[1]}/x.json": Directory(place=f"{days[1]}/x.json", names=()),
    }
    assert (listing.problems, listing.unopened, listing.too_large) == ((), (), frozenset())


def test_segments_are_listed_after_the_events(backend: LocalBackend, tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    places = [segment(backend, f"{DAY}-{name}.events.gz", b"no gzip") for name in "ba"]
    assert places == [f"{root}/segments/{DAY}-{name}.events.gz" for name in "ba"]
    (root / "segments" / "x.events.gz").mkdir()
    (root / "segments" / ".y.events.gz").write_text("")
    (root / "segments" / "z.txt").write_text("")
    listing = backend.list_objects()
    folders = tuple(sorted(places))
    assert listing.directories == {f"{root}/segments": Directory(place=f"{root}/segments", names=(), folders=folders)}
    assert [problem.partition(" ")[0] for problem in listing.problems] == sorted(places)
    assert backend.list_objects(out_of_time=lambda: True).unopened == tuple(sorted(places))


def test_a_failed_listing_of_one_day_or_of_all(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        backend.publish(day, f"{day}.json", b"{}")
    real = os.scandir

    def refusing(suffix: str) -> Callable[[str], object]:
        def scandir(place: str) -> object:
            if str(place).endswith(suffix):
                raise PermissionError(13, "Permission denied")
            return real(place)

        return scandir

    monkeypatch.setattr(os, "scandir", refusing("02"))
    listing = backend.list_objects()
    assert [Path(place).stem for place in listing.places()] == ["2026-01-01", "2026-01-03"]
    assert listing.problems == (f"{tmp_path}/new/store/events/2026-01-02 (Permission denied)",)
    monkeypatch.setattr(os, "scandir", refusing("events"))
    with pytest.raises(StoreError, match=r"^cannot read store .*Permission denied"):
        backend.list_objects()


def test_a_day_that_vanishes_while_listed_is_left_out(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        backend.publish(day, f"{day}.json", b"{}")
    real = os.scandir

    def scandir(place: str) -> object:
        if str(place).endswith("02"):
            raise FileNotFoundError(2, "No such file or directory")
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = backend.list_objects()
    assert [Path(place).stem for place in listing.places()] == ["2026-01-01", "2026-01-03"]
    assert listing.problems == ()


def test_new_folders_have_the_mode_of_the_store(backend: LocalBackend, tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    root.mkdir(parents=True)
    root.chmod(0o2770)
    put(backend, tmp_path)
    (root / "events").chmod(0o700)
    backend.publish("2026-01-02", "b.json", b"{}")
    segment(backend)
    modes = {place.name: place.stat().st_mode & 0o7777 for place in root.rglob("*") if place.is_dir()}
    assert modes == {"events": 0o700, DAY: 0o2770, "2026-01-02": 0o2770, "segments": 0o2770}


def test_a_failed_segment_leaves_no_file(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", no_space)
    with pytest.raises(StoreError, match=r"^cannot write to store .*No space left"):
        segment(backend)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_segment_file_is_cut_beyond_the_limit(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    place = segment(backend)
    with Path(place).open("wb") as file:
        file.truncate(MAX_SEGMENT_BYTES + 9)

    def decode(data: bytes) -> dict[str, bytes]:
        seen.append(len(data))
        return {}

    monkeypatch.setattr("torchx_cubicml.store.segments.decode_segment", decode)
    backend.list_objects()
    assert seen == [MAX_SEGMENT_BYTES + 1]


def test_names_sort_objects_and_tell_which_are_objects() -> None:
    listing = Listing(
        directories={
            "/s/z": Directory(place="/s/z", names=("1.json", "3.json")),
            "/s/a": Directory(place="/s/a", names=("2.json", "3.json")),
        }
    )
    assert listing.places() == ["/s/z/1.json", "/s/a/2.json", "/s/a/3.json", "/s/z/3.json"]
    assert path_sort_key("a/b/c") == ("c", "a/b/c")
    assert path_sort_key("c") == ("c", "c")
    assert [is_object(name) for name in ("a.json", ".a.json", "a.txt", ".a.txt", "json")] == [True] + [False] * 4
    assert never() is False
