"""Fingerprint of a store, for cache validation: objects are immutable, so equal names mean equal content."""

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
"""Path of each folder -> its stamp, and a digest of the names in it."""


def fingerprint_of(directories: Mapping[str, Directory]) -> Fingerprint:
    """Return the fingerprint of a store, which differs from that of any other set of objects."""
    return {place: (directory.stamp, _digest(directory)) for place, directory in directories.items()}


def refresh_if_unchanged(folder: Backend, fingerprint: Fingerprint) -> Fingerprint | None:
    """Return the fingerprint with current stamps if the store holds the same objects, else ``None``.

    Raises:
        StoreError: the store cannot be reached or read.
    """
    inside: defaultdict[str, list[str]] = defaultdict(list)
    for place in fingerprint:
        inside[place.rpartition("/")[0]].append(place)
    known = {
        place: Directory(place=place, names=(), folders=tuple(inside[place]), stamp=stamp)
        for place, (stamp, _) in fingerprint.items()
    }
    listing = folder.list_objects(known, lambda: True)  # an unknown segment is change enough; no need to open it
    directories = listing.directories
    if listing.unopened or directories.keys() != fingerprint.keys():
        return None
    digests = {
        place: fingerprint[place][1] if directory is known[place] else _digest(directory)
        for place, directory in directories.items()
    }
    now = {place: (directory.stamp, digests[place]) for place, directory in directories.items()}
    return now if all(digest == fingerprint[place][1] for place, digest in digests.items()) else None


def fingerprint_from_json(value: object) -> Fingerprint:
    """Return the fingerprint held by a JSON value.

    Raises:
        TypeError: the value is damaged.
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


def _digest(directory: Directory) -> str:
    return hashlib.sha256("/".join(directory.names).encode(errors="surrogatepass")).hexdigest()[:32]
