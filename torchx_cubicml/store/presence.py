"""Check that a place holds a store, for commands that only read: a mistyped place is no empty store."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import STORE_FOLDERS, Presence, unheard
from torchx_cubicml.store.deadline import read_with_deadline, within
from torchx_cubicml.store.trial_store import open_backend
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, absolute_url, split_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.store.reader import StoreSnapshot

_MAX_SEEN = 1000  # entries of a folder in which a store is looked for


def recorded_snapshot(
    url: str, *, deadline_s: float = 60.0, report: Callable[[int, int], None] = unheard
) -> StoreSnapshot:
    """Return the snapshot of an existing store.

    Args:
        url: URL as ``TrialStore`` accepts it.
        deadline_s: seconds after which the reading is abandoned.
        report: see ``read_store``.

    Raises:
        StoreError: there is no store at the URL, or it cannot be read before the deadline.
    """
    snapshot = read_with_deadline(url, deadline_s=deadline_s, report=report)
    if not snapshot.trials:
        check_store(url, deadline_s=deadline_s)
    return snapshot


def check_store(url: str, *, deadline_s: float = 60.0) -> None:
    """Check that there is a store, or an empty folder, at a URL.

    Raises:
        StoreError: there is none; the message names a store nearby, if there is one.
    """
    url = absolute_url(url)
    try:
        presence = within(deadline_s, open_backend(url).presence, what="reading")
    except LaunchError:
        raise StoreError(f"store {mask(url)} was not read within {deadline_s:g} s") from None
    rule = _RULES.get(presence)
    if rule is not None:
        near = _store_near(url)
        raise StoreError(f"{rule.format(mask(url))}{f'; did you mean {mask(near)}?' if near else ''}")


def check_target(url: str, *, deadline_s: float = 60.0) -> None:
    """Check that a store can be made or extended at a URL: it is one, or there is nothing.

    Raises:
        StoreError: there is something else.
    """
    presence = within(deadline_s, open_backend(absolute_url(url)).presence, what="reading")
    if presence in {Presence.OTHER, Presence.FILE}:
        raise StoreError(_RULES[presence].format(mask(url)))


_RULES = {
    Presence.ABSENT: "there is no store at {}: the place does not exist",
    Presence.OTHER: "there is no store at {}: the folder holds other files",
    Presence.FILE: "there is no store at {}: it is a file, and a store is a folder",
}


def _store_near(url: str) -> str:
    """Return a local store inside the place, around it, or beside it under a similar name; empty without one."""
    protocol, path = split_url(url)
    if protocol not in LOCAL_PROTOCOLS:
        return ""
    place = Path(path)
    inner = [entry for entry in _entries(place) if _is_store(entry)]
    if inner:
        return str(inner[0]) if len(inner) == 1 else ""
    if _is_store(place.parent):
        return str(place.parent)
    beside = {entry.name: entry for entry in _entries(place.parent)}
    close = get_close_matches(place.name, beside, n=3, cutoff=0.7)
    return next((str(beside[name]) for name in close if _is_store(beside[name])), "")


def _is_store(folder: Path) -> bool:
    try:
        return any((folder / name).is_dir() for name in STORE_FOLDERS)
    except OSError:
        return False


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(islice(folder.iterdir(), _MAX_SEEN))
    except OSError:
        return []  # a hint only
