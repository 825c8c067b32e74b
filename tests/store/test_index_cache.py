from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.records.event import Event, EventKind, fold_events
from torchx_cubicml.store.backend import Directory, Listing
from torchx_cubicml.store.index_cache import StoreIndex, cache_path, load_index, save_index
from torchx_cubicml.store.known_objects import REFUSED, UNREAD

if TYPE_CHECKING:
    from pathlib import Path

URL = "/data/store"
EVENTS = {
    "/s/1.json": Event(kind=EventKind.PLANNED, launch_id="l", config={"x": 1}),
    "/s/2.json": Event(kind=EventKind.STARTED, trial_id="a", launch_id="l"),
    "/s/3.json": Event(kind=EventKind.STARTED, trial_id="b", launch_id="l"),
    "/s/4.json": Event(kind=EventKind.STARTED, trial_id="c"),
}


def index_of_a_store() -> StoreIndex:
    """Return the index of four events in two groups, a refused object and an unread one."""
    names = ("1.json", "2.json", "3.json", "4.json", "5.json", "6.json")
    index = StoreIndex()
    root = Directory(place="/s", names=names, folders=("/s/new",), stamp=7)
    index.objects.update(Listing(directories={"/s": root, "/s/new": Directory(place="/s/new", names=())}))
    index.groups.regroup([], {"/s/0.json": Event(kind=EventKind.STARTED, trial_id="gone")})
    numbers = index.groups.regroup([], EVENTS)
    index.groups.by_number.pop(0)  # numbers have gaps where groups were joined
    index.objects.assign({**numbers, "/s/5.json": REFUSED})
    index.refused["/s/5.json"] = "no event"
    return index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = cache_path(tmp_path, URL)
    save_index(path, URL, index_of_a_store())
    return path


def test_an_index_comes_back_with_its_groups_numbered_anew(path: Path) -> None:
    index, found = index_of_a_store(), load_index(path, URL)
    assert found.objects.directories == index.objects.directories
    assert found.objects.numbers == {
        "/s": {"1.json": 0, "2.json": 0, "3.json": 0, "4.json": 1, "5.json": REFUSED, "6.json": UNREAD},
        "/s/new": {},
    }
    assert found.refused == {"/s/5.json": "no event"}
    assert found.groups.trials() == index.groups.trials() == fold_events(EVENTS.values())
    assert [sorted(group.ids) for group in found.groups.by_number.values()] == [["a", "b", "l"], ["c"]]
    assert [group.firsts for group in found.groups.by_number.values()] == [("/s/1.json", "/s/1.json"), ("/s/4.json",)]
    assert found.groups.joined_by([EVENTS["/s/1.json"]]) == {0}
    assert found.groups.without_events({0, 1, 2}) == {0, 1}


def test_the_path_is_of_the_url(tmp_path: Path) -> None:
    place = cache_path(tmp_path, "a/b")
    assert place == tmp_path / "stores" / "c14cddc033f64b9dea80ea675cf280a0.json"
    assert cache_path(tmp_path, "a/b\udcff") != place


def test_the_indexes_of_eight_stores_are_kept(tmp_path: Path) -> None:
    for number in range(12):
        save_index(cache_path(tmp_path, str(number)), str(number), StoreIndex())
    assert len(list((tmp_path / "stores").iterdir())) == 8


def test_an_index_of_another_store_or_schema_is_not_read(path: Path) -> None:
    assert load_index(path, "/other").objects.numbers == {}
    assert load_index(path.with_name("absent"), URL).objects.numbers == {}
    payload = json.loads(path.read_text())
    assert payload["format"] == [4, 1]
    path.write_text(json.dumps({**payload, "format": [1, 2]}))
    assert load_index(path, URL).objects.numbers == {}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("table",), 5),
        (("refused",), 5),
        (("families",), 5),
        (("shelves",), 5),
        (("families", 0, 0), 0),
        (("families", 0, 0), 1),
        (("families", 0, 0), 3),
        (("families", 0, 1), ["x"]),
        (("families", 0, 1), 5),
        (("families", 0, 2), 5),
        (("families", 0, 2), [5]),
        (("shelves", 0, 2), 5),
        (("shelves", 0, 3), 5),
        (("shelves", 0, 4), [0]),
        (("shelves", 0, 4, 0), 2),
        (("shelves", 0, 4, 0), -3),
        (("table", "pairs"), 5),
    ],
    ids=str,
)
def test_a_damaged_index_is_empty(path: Path, place: tuple[str | int, ...], value: object) -> None:
    payload = json.loads(path.read_text())
    inner = payload
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(payload))
    found = load_index(path, URL)
    assert (found.objects.numbers, found.groups.by_number, found.refused) == ({}, {}, {})


def test_a_group_without_trials_is_damage(path: Path) -> None:
    payload = json.loads(path.read_text())
    payload["families"].append([0, [], []])
    path.write_text(json.dumps(payload))
    assert load_index(path, URL).objects.numbers == {}


def test_all_kinds_of_objects_may_be_in_one_folder(tmp_path: Path) -> None:
    index = StoreIndex()
    index.objects.update(Listing(directories={"/s": Directory(place="/s", names=("1.json", "2.json", "3.json"))}))
    index.objects.assign({**index.groups.regroup([], {"/s/1.json": EVENTS["/s/4.json"]}), "/s/2.json": REFUSED})
    path = cache_path(tmp_path, URL)
    save_index(path, URL, index)
    assert load_index(path, URL).objects.numbers == {"/s": {"1.json": 0, "2.json": REFUSED, "3.json": UNREAD}}
