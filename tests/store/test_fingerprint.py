from __future__ import annotations

import pytest

from torchx_cubicml.store.backend import Directory, Listing
from torchx_cubicml.store.fingerprint import fingerprint_from_json, fingerprint_of, refresh_if_unchanged


def folder_of(place: str, *names: str, folders: tuple[str, ...] = (), stamp: int | None = None) -> Directory:
    return Directory(place=place, names=names, folders=folders, stamp=stamp)


def by_place(*directories: Directory) -> dict[str, Directory]:
    return {directory.place: directory for directory in directories}


class Folder:
    """Backend that lists what it is given, and keeps folders whose stamp is known."""

    def __init__(self, *directories: Directory, unopened: tuple[str, ...] = ()) -> None:
        self.directories = by_place(*directories)
        self.unopened = unopened

    def list_objects(self, known: dict[str, Directory], out_of_time: object) -> Listing:
        self.known, self.out_of_time = known, out_of_time
        kept = {
            place: known[place] if place in known and known[place].stamp == directory.stamp is not None else directory
            for place, directory in self.directories.items()
        }
        return Listing(directories=kept, unopened=self.unopened)


BEFORE = (
    folder_of("/s", stamp=1, folders=("/s/a", "/s/b")),
    folder_of("/s/a", "1", "2"),
    folder_of("/s/b", "3", stamp=3),
)


def test_equal_names_give_new_stamps() -> None:
    before = fingerprint_of(by_place(*BEFORE))
    now = (BEFORE[0], folder_of("/s/a", "1", "2", stamp=7), folder_of("/s/b", "3", stamp=8))
    folder = Folder(*now)
    assert refresh_if_unchanged(folder, before) == fingerprint_of(by_place(*now))
    assert folder.known == by_place(
        folder_of("/s", stamp=1, folders=("/s/a", "/s/b")), folder_of("/s/a"), folder_of("/s/b", stamp=3)
    )
    assert folder.out_of_time() is True


def test_an_equal_stamp_is_believed() -> None:
    before = fingerprint_of(by_place(*BEFORE))
    assert refresh_if_unchanged(Folder(*BEFORE[:2], folder_of("/s/b", "other", stamp=3)), before) == before


@pytest.mark.parametrize(
    "now",
    [
        (*BEFORE[:2], folder_of("/s/b", "3", "4", stamp=9)),
        (BEFORE[0], folder_of("/s/a", "1", "3"), BEFORE[2]),
        (BEFORE[0], folder_of("/s/a", "1"), BEFORE[2]),
        (BEFORE[0], folder_of("/s/a"), BEFORE[2]),
        BEFORE[:2],
        (*BEFORE, folder_of("/s/c")),
    ],
    ids=["new", "renamed", "removed", "empty", "folder gone", "new folder"],
)
def test_another_set_of_objects_is_a_change(now: tuple[Directory, ...]) -> None:
    assert refresh_if_unchanged(Folder(*now), fingerprint_of(by_place(*BEFORE))) is None


def test_an_unopened_segment_is_a_change() -> None:
    assert refresh_if_unchanged(Folder(*BEFORE, unopened=("x",)), fingerprint_of(by_place(*BEFORE))) is None


def test_a_digest_is_stored_and_compared_in_later_releases() -> None:
    found = fingerprint_of(by_place(folder_of("/s", "a", "b"), folder_of("/t", "a/b\udcff", stamp=4)))
    assert found["/s"] == (None, "c14cddc033f64b9dea80ea675cf280a0")
    assert found["/t"][0] == 4
    assert len(found["/t"][1]) == 32
    assert fingerprint_from_json({place: list(pair) for place, pair in found.items()}) == found


@pytest.mark.parametrize(
    "value", [None, [], {"/s": ["1", "x"]}, {"/s": [1, None]}, {"/s": [1.5, "x"]}, {"/s": [None, 5]}], ids=repr
)
def test_a_damaged_fingerprint_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="fingerprint"):
        fingerprint_from_json(value)


@pytest.mark.parametrize("value", [{"/s": [1]}, {"/s": [1, "x", 2]}], ids=repr)
def test_a_fingerprint_of_other_length_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="unpack"):
        fingerprint_from_json(value)
