"""What a place that holds objects can do, whatever its protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

EVENTS = "events"
MAX_OBJECT_BYTES = 1024 * 1024  # an event takes a few hundred bytes; more is an accident or an attack


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The objects of a store.

    Args:
        sizes: place of each object -> its bytes, ``None`` where the listing does not tell.
        problems: what could not be listed and why, one sentence each.
    """

    sizes: Mapping[str, int | None]
    problems: tuple[str, ...] = field(default=())


class Folder(Protocol):
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

    def list_objects(self) -> Listing:
        """Return every published object as it stands now, at any depth; none where there is no store yet.

        Raises:
            StoreError: the place cannot be reached or read.
        """

    def read(self, places: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """Yield each object, or why it cannot be read; of one that is too large, more than ``MAX_OBJECT_BYTES``.

        Raises:
            StoreError: the place cannot be reached.
        """


def is_object(name: str) -> bool:
    """Whether a file of this name is a published object; a name that begins with a dot is being written."""
    return name.endswith(".json") and not name.startswith(".")
