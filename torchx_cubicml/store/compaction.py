"""Folds old events into segments: many small objects become few, and no event is ever in neither.

A segment is published and read back before the objects that it holds are removed. Whoever listed those finds them in
the segment; whoever lists again later sees the segment; where both are seen for a while, an event counts once. Nothing
else is touched: what is no event stays, and so does what another process writes meanwhile.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.masking import mask
from torchx_cubicml.store.segment import SUFFIX, encode_segment
from torchx_cubicml.store.trial_store import decode_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.store.trial_store import TrialStore

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_FEWEST = 2  # objects that are worth a segment
_MOST_BYTES = 16 * 1024 * 1024  # of events in one segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What was folded.

    Args:
        n_events: which are in segments now and no objects of their own any more.
        n_segments: that hold them.
    """

    n_events: int
    n_segments: int


def compact(store: TrialStore, *, before: str) -> Compacted:
    """Fold the events of past days into segments; safe beside any number of readers, writers and others that do so.

    Args:
        store: whose events are folded.
        before: the first day that stays as it is, ``YYYY-MM-DD``.

    Raises:
        StoreError: the store cannot be read or written, or a segment is not read back as it was written. Every event
            is still there.
    """
    n_events = n_segments = 0
    for shelf in store.folder.list_objects().shelves.values():
        day = shelf.place.rpartition("/")[2]
        if not _DAY.fullmatch(day) or day >= before or len(shelf.names) < _FEWEST:
            continue
        for events in _parts(store, [f"{shelf.place}/{name}" for name in shelf.names]):
            _fold(store, day, events)
            n_events += len(events)
            n_segments += 1
    return Compacted(n_events=n_events, n_segments=n_segments)


def _parts(store: TrialStore, places: list[str]) -> Iterator[dict[str, bytes]]:
    """Yield place -> content of the events among some objects, as many as one segment takes."""
    part: dict[str, bytes] = {}
    size = 0
    for place, content in store.folder.read(places):
        if isinstance(content, Exception) or not _is_event(content):
            continue
        if size + len(content) > _MOST_BYTES and len(part) >= _FEWEST:
            yield part
            part, size = {}, 0
        part[place] = content
        size += len(content)
    if len(part) >= _FEWEST:
        yield part


def _fold(store: TrialStore, day: str, events: Mapping[str, bytes]) -> None:
    named = {place.rpartition("/")[2]: content for place, content in events.items()}
    data = encode_segment(named)
    place = store.folder.publish_segment(f"{day}-{secrets.token_hex(8)}{SUFFIX}", data)
    for name, written in store.folder.read([f"{place}/{name}" for name in named]):
        original = named[name.rpartition("/")[2]]
        if isinstance(written, Exception) or decode_event(written) != decode_event(original):
            raise StoreError(f"store {mask(store.url)}: segment {place} does not read back; nothing was removed")
    store.folder.remove(list(events))


def _is_event(content: bytes) -> bool:
    try:
        decode_event(content)
    except RecordError:
        return False
    return True
