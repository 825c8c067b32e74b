"""Objects of a folder as last listed, compared with the next listing: which are new, and which were removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.store.backend import path_sort_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from torchx_cubicml.store.backend import Directory, Listing

READ, UNREAD, REFUSED = 0, -1, -2  # numbers of objects; where objects are grouped, a read one has its group's number


@dataclass(slots=True, kw_only=True)
class KnownObjects:
    """Objects of a folder as last listed, each with a number; a new object is ``UNREAD`` until it is given another.

    Args:
        directories: path of each folder -> its listing.
        numbers: path of each folder -> number of each of its objects, by name.
    """

    directories: Mapping[str, Directory] = field(default_factory=dict)
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)

    def update(self, listing: Listing) -> tuple[list[str], set[int]]:
        """Replace the listing; return the paths of unread objects, ordered by name, and the numbers of removed ones."""
        before, self.directories = self.directories, listing.directories
        known, self.numbers = self.numbers, {}
        removed = {number for folder in known.keys() - self.directories.keys() for number in known[folder].values()}
        for folder, directory in self.directories.items():
            if folder in before and before[folder].names == directory.names:
                self.numbers[folder] = known[folder]
            else:
                previous = known.get(folder, {})
                self.numbers[folder] = {name: previous.pop(name, UNREAD) for name in directory.names}
                removed.update(previous.values())
        return [place for place in self.places_of({UNREAD}) if place not in listing.too_large], removed

    def places_of(self, numbers: AbstractSet[int]) -> list[str]:
        """Return the paths of the objects with one of some numbers, ordered by name."""
        found = (
            f"{folder}/{name}"
            for folder, of_names in self.numbers.items()
            if not numbers.isdisjoint(of_names.values())
            for name, number in of_names.items()
            if number in numbers
        )
        return sorted(found, key=path_sort_key)

    def assign(self, numbers: Mapping[str, int]) -> None:
        """Give objects their numbers, by path; an object that is listed no more is ignored."""
        for place, number in numbers.items():
            folder, _, name = place.rpartition("/")
            if name in self.numbers.get(folder, ()):
                self.numbers[folder][name] = number
