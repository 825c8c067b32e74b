from __future__ import annotations

from torchx_cubicml.store.backend import Directory, Listing
from torchx_cubicml.store.known_objects import READ, REFUSED, UNREAD, KnownObjects


def listing(*places: str, too_large: frozenset[str] = frozenset()) -> Listing:
    folders = {place.rpartition("/")[0] for place in places}
    named = {
        folder: tuple(sorted(place.rpartition("/")[2] for place in places if place.rpartition("/")[0] == folder))
        for folder in folders
    }
    directories = {folder: Directory(place=folder, names=names) for folder, names in named.items()}
    return Listing(directories=directories, too_large=too_large)


def test_an_object_is_new_until_it_is_given_a_number() -> None:
    known = KnownObjects()
    assert known.update(listing("/b/1", "/a/2", "/a/3")) == (["/b/1", "/a/2", "/a/3"], set())
    known.assign({"/b/1": 7, "/a/2": REFUSED, "/a/3": UNREAD})
    assert known.update(listing("/b/1", "/a/2", "/a/3")) == (["/a/3"], set())
    assert known.update(listing("/b/1", "/a/2", "/a/3", "/a/0")) == (["/a/0", "/a/3"], set())
    assert known.places_of({7, REFUSED}) == ["/b/1", "/a/2"]
    assert known.places_of(set()) == []


def test_removed_objects_are_reported_once() -> None:
    known = KnownObjects()
    known.update(listing("/a/1", "/a/2", "/b/3"))
    known.assign({"/a/1": 1, "/a/2": 2, "/b/3": 3})
    assert known.update(listing("/a/2")) == ([], {1, 3})
    assert known.update(listing("/a/2")) == ([], set())
    assert known.update(listing("/a/2", "/b/3")) == (["/b/3"], set())


def test_an_object_that_is_too_large_is_not_to_be_read() -> None:
    known = KnownObjects()
    assert known.update(listing("/a/1", "/a/2", too_large=frozenset({"/a/1"}))) == (["/a/2"], set())


def test_an_object_that_is_listed_no_more_is_given_no_number() -> None:
    known = KnownObjects()
    known.update(listing("/a/1"))
    known.assign({"/a/1": READ, "/a/2": READ, "/b/1": READ})
    assert known.numbers == {"/a": {"1": READ}}


def test_the_numbers_of_objects_without_a_group_are_stored() -> None:
    assert (READ, UNREAD, REFUSED) == (0, -1, -2)
