"""The objects of a folder, each read once: a tune reads its store often, and objects never change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.store.backend import Folder, Shelf


class Arrivals:
    """What has come into a folder since the last look.

    Args:
        folder: of immutable objects.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._shelves: Mapping[str, Shelf] = {}
        self._unread: set[str] = set()

    def read(self) -> Iterator[bytes]:
        """Yield each object that was not read before, by name; one that cannot be read is tried again at the next look.

        Raises:
            StoreError: the folder cannot be reached.
        """
        listing = self._folder.list_objects(self._shelves)
        for place, shelf in listing.shelves.items():
            before = self._shelves.get(place)
            if before is None or before.names != shelf.names:
                had = set(before.names) if before is not None else set()
                self._unread.update(f"{place}/{name}" for name in shelf.names if name not in had)
        self._shelves = listing.shelves
        self._unread -= listing.too_large
        for place, content in self._folder.read(sorted(self._unread, key=lambda place: place.rpartition("/")[2])):
            if not isinstance(content, Exception):
                self._unread.discard(place)
                yield content
