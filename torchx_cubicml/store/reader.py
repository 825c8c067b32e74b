"""Reads the trials of a store: what was read before is not read again, and only what it concerns is folded anew."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.index_cache import (
    REFUSED,
    UNREAD,
    EventGroup,
    StoreIndex,
    by_name,
    cache_path,
    in_order,
    joined,
    load_index,
    save_index,
)
from torchx_cubicml.store.segments import segment_of
from torchx_cubicml.store.trial_store import TOO_LARGE, decode_event, told_skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.backend import Directory, Listing
    from torchx_cubicml.store.trial_store import TrialStore

_WORTH_KEEPING = 0.01  # of the objects, that were not known: with fewer, writing costs more than reading them again
_ALWAYS_KEPT = 20  # likewise, for small stores


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """A store as it was read.

    Args:
        trials: in the order of their first objects.
        warnings: what could not be read, one sentence per cause.
        shelves: place of each folder -> what was in it.
    """

    trials: list[Trial]
    warnings: tuple[str, ...]
    shelves: Mapping[str, Directory]


@dataclass(slots=True, kw_only=True)
class _Changes:
    """What changed since the store was known."""

    places: list[str] = field(default_factory=list)
    left: set[int] = field(default_factory=set)  # families that an object has left


def read_store(store: TrialStore, *, cache: Path | None, out_of_time: Callable[[], bool]) -> StoreSnapshot:
    """Return the trials of a store.

    Args:
        store: to be read.
        cache: folder in which what is known of stores is kept; ``None`` for nowhere.
        out_of_time: asked before segments are opened and before each object. What was read until then is kept for the
            next reader.

    Raises:
        StoreError: the store cannot be reached or read, or there was no time to read all of it.
    """
    path = cache_path(cache, store.url) if cache is not None else None
    known = load_index(path, store.url) if path is not None else StoreIndex()
    listing = store.folder.list_objects(known.shelves, out_of_time)
    known, news = _as_listed(known, listing)
    reader = _Reader(store, known, out_of_time)
    reader.take(news)
    n_objects = sum(map(len, known.numbers.values()))
    worth = len(news.places) + len(news.left) > max(_ALWAYS_KEPT, _WORTH_KEEPING * n_objects)
    is_part = reader.n_left_out or listing.unopened
    if path is not None and (worth or is_part):
        save_index(path, store.url, known)
    if is_part:
        raise StoreError(
            f"store {mask(store.url)} was not read in time: {n_objects - reader.n_left_out} of {n_objects} objects are"
            + (f" beside {len(listing.unopened)} segments" if listing.unopened else "")
            + (", and the next launch goes on from there" if path is not None else "")
        )
    skipped = [*listing.problems, *(f"{place} ({TOO_LARGE})" for place in sorted(listing.too_large))]
    skipped += [f"{place} ({why})" for place, why in sorted((known.refused | reader.failed).items())]
    return StoreSnapshot(
        trials=in_order(known.families.values()), warnings=told_skipped(store.url, skipped), shelves=known.shelves
    )


def _as_listed(known: StoreIndex, listing: Listing) -> tuple[StoreIndex, _Changes]:
    """Return what is known of the objects that are still there, and what is new."""
    news = _Changes()
    numbers: dict[str, list[int]] = {}
    for place, shelf in listing.shelves.items():
        before = known.shelves.get(place)
        if before is not None and before.names == shelf.names:
            numbers[place] = known.numbers[place]
        else:
            had = known.of(place)
            numbers[place] = [had.pop(name, UNREAD) for name in shelf.names]
            news.left.update(had.values())
        if UNREAD in numbers[place]:
            unread = (name for name, number in zip(shelf.names, numbers[place], strict=True) if number == UNREAD)
            news.places += [f"{place}/{name}" for name in unread]
    for place in known.shelves.keys() - listing.shelves.keys():
        news.left.update(known.numbers[place])
    news.left -= {UNREAD, REFUSED}
    news.places = sorted(set(news.places) - listing.too_large, key=by_name)
    refused = {place: why for place, why in known.refused.items() if _is_listed(listing, place)}
    families = dict(known.families)
    return StoreIndex(shelves=listing.shelves, numbers=numbers, families=families, refused=refused), news


def _is_listed(listing: Listing, place: str) -> bool:
    folder, _, name = place.rpartition("/")
    return folder in listing.shelves and name in listing.shelves[folder].names


class _Reader:
    """Takes new objects into what is known.

    Args:
        store: to read from.
        known: is changed.
        out_of_time: see ``read_store``.
    """

    def __init__(self, store: TrialStore, known: StoreIndex, out_of_time: Callable[[], bool]) -> None:
        self._store = store
        self._known = known
        self._out_of_time = out_of_time
        self._next = count(max(known.families, default=-1) + 1)
        self.failed: dict[str, str] = {}
        self.n_left_out = 0

    def take(self, news: _Changes) -> None:
        """Read what is new, and fold the families that it concerns."""
        numbered: dict[str, int] = {}
        fresh = self._read(news.places, numbered, until=self._out_of_time)
        groups = joined(fresh, self._known.families)
        groups += [({number}, []) for number in news.left.difference(*(numbers for numbers, _ in groups))]
        places = self._places_of(set().union(*(numbers for numbers, _ in groups)))
        again = self._read(sorted(set().union(*places.values()), key=by_name), numbered, until=lambda: False)
        for numbers, new in groups:
            events = {place: fresh[place] for place in new}
            for number in numbers:
                events |= {place: again[place] for place in places.get(number, ()) if place in again}
                self._known.families.pop(number, None)
            if events:
                own = next(self._next)
                self._known.families[own] = EventGroup.of(sorted(events.items(), key=lambda item: by_name(item[0])))
                numbered |= dict.fromkeys(events, own)
        self._number(numbered)

    def _read(self, places: Sequence[str], numbered: dict[str, int], *, until: Callable[[], bool]) -> dict[str, Event]:
        """Return the events in objects; what holds none is told and numbered."""
        events = {}
        places = sorted(places, key=segment_of)  # each is opened once
        if not places or until():
            self.n_left_out += len(places)
            return {}
        for n_read, (place, content) in enumerate(self._store.folder.read(places)):
            if n_read and until():
                self.n_left_out = len(places) - n_read
                break
            try:
                events[place] = decode_event(content)
            except RecordError as error:
                numbered[place] = UNREAD if isinstance(content, Exception) else REFUSED
                (self.failed if isinstance(content, Exception) else self._known.refused)[place] = str(error)
        return events

    def _places_of(self, families: Collection[int]) -> dict[int, set[str]]:
        places: dict[int, set[str]] = {number: set() for number in families}
        for folder, numbers in self._known.numbers.items() if families else ():
            for name, number in zip(self._known.shelves[folder].names, numbers, strict=True):
                if number in places:
                    places[number].add(f"{folder}/{name}")
        return places

    def _number(self, numbered: Mapping[str, int]) -> None:
        of_folders: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for place, number in numbered.items():
            folder, _, name = place.rpartition("/")
            of_folders[folder][name] = number
        for folder, numbers in of_folders.items():
            names, before = self._known.shelves[folder].names, self._known.numbers[folder]
            pairs = zip(names, before, strict=True)
            self._known.numbers[folder] = [numbers.get(name, number) for name, number in pairs]
