"""Interface of a storage backend: lists, reads and publishes immutable objects over any protocol."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

EVENTS = "events"
STORE_FOLDERS = frozenset({EVENTS, "segments", "digest-key", "tunes"})  # a store has at least one of them
MAX_OBJECT_BYTES = 1024 * 1024  # an event takes a few hundred bytes; more is an accident or an attack
NO_DIRECTORIES: Mapping[str, Directory] = MappingProxyType({})


def never() -> bool:
    """Return ``False``: the default ``out_of_time`` of a caller without a deadline."""
    return False


def unheard(_done: int, _total: int) -> None:
    """Take a number of parts done and of all parts: the default ``report`` of a caller that shows no progress."""


def presence_of(names: Collection[str]) -> Presence:
    """Return the presence of a store in a folder with entries of these names."""
    if not names:
        return Presence.EMPTY
    return Presence.OTHER if STORE_FOLDERS.isdisjoint(names) else Presence.STORE


def path_sort_key(place: str) -> tuple[str, str]:
    """Return the sort key of a path: its file name, which begins with the writer's clock, then the path."""
    return place.rsplit("/", 1)[-1], place


class Presence(StrEnum):
    """Presence of a store at a place."""

    STORE = auto()  # a folder with at least one of ``STORE_FOLDERS``
    EMPTY = auto()  # a folder without entries
    OTHER = auto()  # a folder of other things
    FILE = auto()
    ABSENT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """Listing of one folder of a store.

    Args:
        place: path of the folder.
        names: file names of its objects, sorted; ``place/name`` is the path of an object.
        folders: paths of its subfolders.
        stamp: changes whenever an entry is added or removed; ``None`` where that is unknown, and the folder is listed
            again.
    """

    place: str
    names: tuple[str, ...]
    folders: tuple[str, ...] = ()
    stamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Listing of a whole store.

    Args:
        directories: path of each folder -> its listing.
        too_large: paths of objects above the size limit.
        problems: entries that cannot be listed, with the cause, one sentence each.
        unopened: paths of segments left unopened for lack of time; their objects are not listed.
    """

    directories: Mapping[str, Directory]
    too_large: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    unopened: tuple[str, ...] = ()

    def places(self) -> list[str]:
        """Return the paths of the objects, sorted by name and so by the writers' clocks."""
        found = (f"{directory.place}/{name}" for directory in self.directories.values() for name in directory.names)
        return sorted(found, key=path_sort_key)


class Backend(Protocol):
    """Storage of immutable objects; any number of readers and writers use it at once and never wait for each other."""

    def publish(self, day: str, name: str, data: bytes) -> None:
        """Publish one object atomically below ``events/<day>/``.

        Args:
            day: folder, such as ``2026-03-01``.
            name: globally unique, so that nothing is ever rewritten.
            data: content of the object.

        Raises:
            StoreError: the object cannot be written.
        """

    def presence(self) -> Presence:
        """Return the presence of a store at its place; an object store has no empty folders below its buckets.

        Raises:
            StoreError: the place cannot be reached or read.
        """

    def list_objects(
        self, known: Mapping[str, Directory] = NO_DIRECTORIES, out_of_time: Callable[[], bool] = never
    ) -> Listing:
        """List every object published by now, at any depth; a store that does not exist yet is empty.

        Args:
            known: an earlier listing; a folder that is surely unchanged need not be listed again.
            out_of_time: called before unknown segments are opened.

        Raises:
            StoreError: the store cannot be reached or read.
        """

    def read(self, places: Sequence[str], *, follows: bool = True) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield the path and content of each object, or the error that prevents reading it.

        The content of an object above the limit is cut, but longer than ``MAX_OBJECT_BYTES``.

        Args:
            places: paths, as listed.
            follows: whether an object moved into a segment since the listing is read from that segment.

        Raises:
            StoreError: the store cannot be reached.
        """

    def write_probe(self, name: str, data: bytes) -> tuple[bytes, float | None]:
        """Write one object where events go, read it back and remove it.

        Args:
            name: globally unique, with a leading dot, so that no reader takes it for an event.
            data: content of the object.

        Returns:
            The content as read back, and the time of its last change by the store's clock, in seconds since 1970;
            ``None`` where the store does not tell.

        Raises:
            StoreError: the object cannot be written, read or removed.
        """

    def publish_segment(self, name: str, data: bytes) -> str:
        """Publish one segment atomically and durably, so that it survives a power loss; return its path.

        Args:
            name: globally unique.
            data: a segment from ``encode_segment``.

        Raises:
            StoreError: the segment cannot be written.
        """

    def remove(self, places: Sequence[str]) -> None:
        """Remove objects that a segment contains; an object that is already gone is ignored.

        Raises:
            StoreError: an object cannot be removed.
        """


def is_object(name: str) -> bool:
    """Return whether a file name is that of a published object; a leading dot marks a file still being written."""
    return name.endswith(".json") and not name.startswith(".")
