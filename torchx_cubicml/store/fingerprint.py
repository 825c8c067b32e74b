"""Whether a store holds the objects that it held: objects are never rewritten, so then it says the same."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

from torchx_cubicml.store.backend import Directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from torchx_cubicml.store.backend import Backend

Fingerprint: TypeAlias = "dict[str, tuple[int | None, str]]"
"""Place of each folder -> its stamp, and a digest of the names in it."""


def fingerprint_of(shelves: Mapping[str, Directory]) -> Fingerprint:
    """Return what tells a store from one that holds other objects."""
    return {place: (shelf.stamp, _digest(shelf)) for place, shelf in shelves.items()}


def still_holds(folder: Backend, fingerprint: Fingerprint) -> Fingerprint | None:
    """Return the fingerprint with stamps as they are now; ``None`` where the store holds other objects.

    Raises:
        StoreError: the place cannot be reached or read.
    """
    inside: defaultdict[str, list[str]] = defaultdict(list)
    for place in fingerprint:
        inside[place.rpartition("/")[0]].append(place)
    known = {
        place: Directory(place=place, names=(), folders=tuple(inside[place]), stamp=stamp)
        for place, (stamp, _) in fingerprint.items()
    }
    listing = folder.list_objects(known, lambda: True)  # a segment that is not known says enough
    shelves = listing.shelves
    if listing.unopened or shelves.keys() != fingerprint.keys():
        return None
    digests = {
        place: fingerprint[place][1] if shelf is known[place] else _digest(shelf) for place, shelf in shelves.items()
    }
    now = {place: (shelf.stamp, digests[place]) for place, shelf in shelves.items()}
    return now if all(digest == fingerprint[place][1] for place, digest in digests.items()) else None


def fingerprint_from_json(value: object) -> Fingerprint:
    """Return the fingerprint that was written as JSON.

    Raises:
        TypeError: it is damaged.
        ValueError: likewise.
    """
    if not isinstance(value, dict):
        raise TypeError("a fingerprint is an object")
    found: Fingerprint = {}
    for place, (stamp, digest) in value.items():
        if not (stamp is None or isinstance(stamp, int)) or not isinstance(digest, str):
            raise TypeError("the fingerprint is damaged")
        found[place] = stamp, digest
    return found


def _digest(shelf: Directory) -> str:
    return hashlib.sha256("/".join(shelf.names).encode(errors="surrogatepass")).hexdigest()[:32]
