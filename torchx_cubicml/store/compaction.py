"""Folds old events into segments: many small objects become few, and no event is ever in neither.

A segment is published and read back before the objects that it holds are removed. Whoever listed those finds them in
the segment; whoever lists again later sees the segment; where both are seen for a while, an event counts once. Nothing
else is touched: what is no event stays, and so does what another process writes meanwhile.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.segments import SUFFIX, encode_segment, line_of
from torchx_cubicml.store.trial_store import decode_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.store.trial_store import TrialStore

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_FEWEST = 2  # objects that are worth a segment
_MOST_BYTES = 16 * 1024 * 1024  # of events in one segment


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """What was folded.

    Args:
        n_events: which are in segments now and no objects of their own any more.
        n_segments: that hold them.
    """

    n_events: int
    n_segments: int


def compact(store: TrialStore, *, before: str) -> CompactionResult:
    """Fold the events of past days into segments; safe beside any number of readers, writers and others that do so.

    Args:
        store: whose events are folded.
        before: the first day that stays as it is, ``YYYY-MM-DD``.

    Raises:
        StoreError: the store cannot be read or written, or a segment is not read back as it was written. Every event
            is still there.
    """
    n_events = n_segments = 0
    shelves = [*store.folder.list_objects().shelves.values()]
    segments = [shelf for shelf in shelves if shelf.place.endswith(SUFFIX)]
    SystemRandom().shuffle(shelves)  # of two that begin together, one folds what the other does not
    for shelf in shelves:
        day = shelf.place.rpartition("/")[2]
        if not _DAY.fullmatch(day) or day >= before or len(shelf.names) < _FEWEST:
            continue
        of_day = [segment for segment in segments if segment.place.rpartition("/")[2].startswith(f"{day}-")]
        held = {name: segment.place for segment in of_day for name in segment.names}
        for events in _parts(store, [f"{shelf.place}/{name}" for name in shelf.names if name not in held]):
            if _is_folded(store, events):
                continue
            _fold(store, day, events)
            n_events += len(events)
            n_segments += 1
        n_events += _finish(store, {f"{shelf.place}/{name}": held[name] for name in shelf.names if name in held})
    return CompactionResult(n_events=n_events, n_segments=n_segments)


def _parts(store: TrialStore, places: list[str]) -> Iterator[dict[str, bytes]]:
    """Yield place -> content of the events among some objects, as many as one segment takes.

    What another process has folded since they were listed is left out.
    """
    part: dict[str, bytes] = {}
    size = 0
    for place, content in store.folder.read(places, follows=False):
        if isinstance(content, Exception) or not _folds(place.rpartition("/")[2], content):
            continue
        if size + len(content) > _MOST_BYTES and len(part) >= _FEWEST:
            yield part
            part, size = {}, 0
        part[place] = content
        size += len(content)
    if len(part) >= _FEWEST:
        yield part


def _is_folded(store: TrialStore, events: Mapping[str, bytes]) -> bool:
    """Whether another process has folded the events since they were read: it removes them in the same order."""
    return any(isinstance(content, Exception) for _, content in store.folder.read([next(iter(events))], follows=False))


def _fold(store: TrialStore, day: str, events: Mapping[str, bytes]) -> None:
    named = {place.rpartition("/")[2]: content for place, content in events.items()}
    data = encode_segment(named)
    place = store.folder.publish_segment(f"{day}-{secrets.token_hex(8)}{SUFFIX}", data)
    for name, written in store.folder.read([f"{place}/{name}" for name in named]):
        if not _are_one_event(written, named[name.rpartition("/")[2]]):
            raise StoreError(f"store {mask(store.url)}: segment {place} does not read back; nothing was removed")
    store.folder.remove(list(events))


def _finish(store: TrialStore, held: Mapping[str, str]) -> int:
    """Remove events that a segment holds already, for whoever folded them came no further; return how many.

    Args:
        store: whose events they are.
        held: place of an object -> segment with an object of that name.
    """
    originals = dict(store.folder.read(list(held), follows=False))
    folded = dict(store.folder.read([f"{segment}/{place.rpartition('/')[2]}" for place, segment in held.items()]))
    done = [
        place
        for place, segment in held.items()
        if _are_one_event(folded[f"{segment}/{place.rpartition('/')[2]}"], originals[place])
    ]
    store.folder.remove(done)
    return len(done)


def _are_one_event(written: bytes | Exception, original: bytes | Exception) -> bool:
    if isinstance(written, Exception) or isinstance(original, Exception):
        return False
    try:
        return decode_event(written) == decode_event(original)
    except (RecordError, RecursionError):
        return False


def _folds(name: str, content: bytes) -> bool:
    """Whether an object is an event that stays what it is in a segment."""
    try:
        return name.isascii() and name.isprintable() and _are_one_event(line_of(content), content)
    except (ValueError, RecursionError):  # no JSON, or none that anyone reads
        return False
