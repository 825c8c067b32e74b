"""Compaction of the store: merges the small objects of past days into segments without ever losing an event.

A segment is published and read back before its objects are removed. A reader with an old listing finds them in the
segment, and a reader with a new listing finds the segment. An event seen in both counts once. Compaction leaves
everything else alone: objects that are no events, and whatever other processes write meanwhile.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.segments import SUFFIX, encode_line, encode_segment
from torchx_cubicml.store.trial_store import decode_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.store.trial_store import TrialStore

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_MIN_OBJECTS = 2  # objects that justify a segment
_MAX_SEGMENT_CONTENT_BYTES = 16 * 1024 * 1024  # of events in one segment


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """Result of one compaction.

    Args:
        n_events: number of events moved from objects of their own into segments.
        n_segments: number of segments written.
    """

    n_events: int
    n_segments: int


def compact(store: TrialStore, *, before: str) -> CompactionResult:
    """Merge the events of past days into segments; safe beside any number of readers, writers and other compactions.

    Args:
        store: store to compact.
        before: first day that is left alone, ``YYYY-MM-DD``.

    Raises:
        StoreError: the store cannot be read or written, or a segment does not read back as it was written. No event is
            lost.
    """
    n_events = n_segments = 0
    directories = [*store.folder.list_objects().directories.values()]
    segments = [directory for directory in directories if directory.place.endswith(SUFFIX)]
    SystemRandom().shuffle(directories)  # two compactions that start together take different days
    for directory in directories:
        day = directory.place.rpartition("/")[2]
        if not _DAY.fullmatch(day) or day >= before or len(directory.names) < _MIN_OBJECTS:
            continue
        of_day = [segment for segment in segments if segment.place.rpartition("/")[2].startswith(f"{day}-")]
        held = {name: segment.place for segment in of_day for name in segment.names}
        for events in _batches(store, [f"{directory.place}/{name}" for name in directory.names if name not in held]):
            if _is_merged(store, events):
                continue
            _merge(store, day, events)
            n_events += len(events)
            n_segments += 1
        n_events += _finish(
            store, {f"{directory.place}/{name}": held[name] for name in directory.names if name in held}
        )
    return CompactionResult(n_events=n_events, n_segments=n_segments)


def _batches(store: TrialStore, places: list[str]) -> Iterator[dict[str, bytes]]:
    """Yield path -> content of the events among some objects, in batches of one segment each.

    Events that another process has compacted since the listing are left out.
    """
    batch: dict[str, bytes] = {}
    size = 0
    for place, content in store.folder.read(places, follows=False):
        if isinstance(content, Exception) or not _is_compactable(place.rpartition("/")[2], content):
            continue
        if size + len(content) > _MAX_SEGMENT_CONTENT_BYTES and len(batch) >= _MIN_OBJECTS:
            yield batch
            batch, size = {}, 0
        batch[place] = content
        size += len(content)
    if len(batch) >= _MIN_OBJECTS:
        yield batch


def _is_merged(store: TrialStore, events: Mapping[str, bytes]) -> bool:
    """Return whether another process has compacted the events; it removes them in order, so the first is enough."""
    return any(isinstance(content, Exception) for _, content in store.folder.read([next(iter(events))], follows=False))


def _merge(store: TrialStore, day: str, events: Mapping[str, bytes]) -> None:
    named = {place.rpartition("/")[2]: content for place, content in events.items()}
    data = encode_segment(named)
    place = store.folder.publish_segment(f"{day}-{secrets.token_hex(8)}{SUFFIX}", data)
    for name, written in store.folder.read([f"{place}/{name}" for name in named]):
        if not _is_same_event(written, named[name.rpartition("/")[2]]):
            raise StoreError(f"store {mask(store.url)}: segment {place} differs when read back; nothing was removed")
    store.folder.remove(list(events))


def _finish(store: TrialStore, held: Mapping[str, str]) -> int:
    """Finish an interrupted compaction: remove objects that a segment contains already; return their number.

    Args:
        store: store of the objects.
        held: path of an object -> segment with an object of that name.
    """
    originals = dict(store.folder.read(list(held), follows=False))
    merged = dict(store.folder.read([f"{segment}/{place.rpartition('/')[2]}" for place, segment in held.items()]))
    done = [
        place
        for place, segment in held.items()
        if _is_same_event(merged[f"{segment}/{place.rpartition('/')[2]}"], originals[place])
    ]
    store.folder.remove(done)
    return len(done)


def _is_same_event(written: bytes | Exception, original: bytes | Exception) -> bool:
    if isinstance(written, Exception) or isinstance(original, Exception):
        return False
    try:
        return decode_event(written) == decode_event(original)
    except (RecordError, RecursionError):
        return False


def _is_compactable(name: str, content: bytes) -> bool:
    """Return whether an object is an event that survives the round trip through a segment."""
    try:
        return name.isascii() and name.isprintable() and _is_same_event(encode_line(content), content)
    except (ValueError, RecursionError):  # not JSON, or nested too deep for any reader
        return False
