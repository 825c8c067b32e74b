"""What a place that holds objects can do, whatever its protocol."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

EVENTS = "events"
MAX_OBJECT_BYTES = 1024 * 1024  # an event takes a few hundred bytes; more is an accident or an attack
NO_SHELVES: Mapping[str, Directory] = MappingProxyType({})


def never() -> bool:
    """Return that there is time."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """One folder of a store, as listed.

    Args:
        place: of the folder.
        names: of the objects on it, sorted; joined to the place by a slash, one is a place.
        folders: places of the folders in it.
        stamp: changes whenever an entry comes or goes; ``None`` where that cannot be told, so that it is listed again.
    """

    place: str
    names: tuple[str, ...]
    folders: tuple[str, ...] = ()
    stamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The objects of a store.

    Args:
        shelves: place of each folder -> what is in it.
        too_large: places of objects that are larger than is legal.
        problems: what could not be listed and why, one sentence each.
        unopened: places of segments for which there was no time; what they hold is not listed.
    """

    shelves: Mapping[str, Directory]
    too_large: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    unopened: tuple[str, ...] = ()

    def places(self) -> list[str]:
        """Return where the objects are, by name and so by the writers' clocks."""
        found = ((name, f"{shelf.place}/{name}") for shelf in self.shelves.values() for name in shelf.names)
        return [place for _, place in sorted((name.rsplit("/", 1)[-1], place) for name, place in found)]


class Backend(Protocol):
    """A place for immutable objects with any number of writers and readers, none of whom waits for another."""

    def publish(self, day: str, name: str, data: bytes) -> None:
        """Make one object visible below ``events/<day>/``, whole or not at all.

        Args:
            day: folder, such as ``2026-03-01``.
            name: globally unique, so that nothing is ever rewritten.
            data: what it holds.

        Raises:
            StoreError: it cannot be written.
        """

    def list_objects(
        self, known: Mapping[str, Directory] = NO_SHELVES, out_of_time: Callable[[], bool] = never
    ) -> Listing:
        """Return every published object as it stands now, at any depth; none where there is no store yet.

        Args:
            known: as listed before; what surely has not changed since need not be listed again.
            out_of_time: asked before segments that are not known are opened.

        Raises:
            StoreError: the place cannot be reached or read.
        """

    def read(self, places: Sequence[str], *, follows: bool = True) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield each object, or why it cannot be read; of one that is too large, more than ``MAX_OBJECT_BYTES``.

        Args:
            places: as listed.
            follows: whether one that was folded into a segment since then is read from there.

        Raises:
            StoreError: the place cannot be reached.
        """

    def publish_segment(self, name: str, data: bytes) -> str:
        """Make one segment visible, whole or not at all, so that it outlives a loss of power; return its place.

        Args:
            name: globally unique.
            data: as ``encode_segment`` makes it.

        Raises:
            StoreError: it cannot be written.
        """

    def remove(self, places: Sequence[str]) -> None:
        """Remove objects that a segment holds; one that another process has removed is no matter.

        Raises:
            StoreError: one cannot be removed.
        """


def is_object(name: str) -> bool:
    """Whether a file of this name is a published object; a name that begins with a dot is being written."""
    return name.endswith(".json") and not name.startswith(".")
