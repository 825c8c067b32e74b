"""Incremental reader of a store: reads only new objects, and folds only the trials that they change."""

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
    cache_path,
    connected_components,
    load_index,
    path_sort_key,
    save_index,
    trials_in_order,
)
from torchx_cubicml.store.segments import segment_of
from torchx_cubicml.store.trial_store import TOO_LARGE, decode_event, skipped_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.backend import Directory, Listing
    from torchx_cubicml.store.trial_store import TrialStore

_MIN_SAVED_SHARE = 0.01  # share of new objects; below it, writing the index costs more than reading the objects again
_MIN_SAVED_OBJECTS = 20  # number of new objects that is too few to save, for small stores


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """Snapshot of a store.

    Args:
        trials: trials in the order of their first objects.
        warnings: objects that cannot be read, one sentence per cause.
        directories: path of each folder -> its listing.
    """

    trials: list[Trial]
    warnings: tuple[str, ...]
    directories: Mapping[str, Directory]


@dataclass(slots=True, kw_only=True)
class _Changes:
    """Changes of a store since it was indexed."""

    places: list[str] = field(default_factory=list)
    left: set[int] = field(default_factory=set)  # groups that lost an object


def read_store(store: TrialStore, *, cache: Path | None, out_of_time: Callable[[], bool]) -> StoreSnapshot:
    """Read the trials of a store, reusing the cached index.

    Args:
        store: store to read.
        cache: folder of the cached indexes; ``None`` for no cache.
        out_of_time: called before segments are opened and before each object. If it returns true, what was read so far
            is cached for the next reader.

    Raises:
        StoreError: the store cannot be reached or read, or there was no time to read all of it.
    """
    path = cache_path(cache, store.url) if cache is not None else None
    known = load_index(path, store.url) if path is not None else StoreIndex()
    listing = store.folder.list_objects(known.directories, out_of_time)
    known, changes = _compare(known, listing)
    reader = _Reader(store, known, out_of_time)
    reader.update(changes)
    n_objects = sum(map(len, known.numbers.values()))
    is_worth_saving = len(changes.places) + len(changes.left) > max(_MIN_SAVED_OBJECTS, _MIN_SAVED_SHARE * n_objects)
    is_partial = reader.n_left_out or listing.unopened
    if path is not None and (is_worth_saving or is_partial):
        save_index(path, store.url, known)
    if is_partial:
        raise StoreError(
            f"store {mask(store.url)} was not read in time: read {n_objects - reader.n_left_out} of {n_objects} objects"
            + (f", with {len(listing.unopened)} segments unread" if listing.unopened else "")
            + ("; the next launch continues from there" if path is not None else "")
        )
    skipped = [*listing.problems, *(f"{place} ({TOO_LARGE})" for place in sorted(listing.too_large))]
    skipped += [f"{place} ({why})" for place, why in sorted((known.refused | reader.failed).items())]
    return StoreSnapshot(
        trials=trials_in_order(known.groups.values()),
        warnings=skipped_warnings(store.url, skipped),
        directories=known.directories,
    )


def _compare(known: StoreIndex, listing: Listing) -> tuple[StoreIndex, _Changes]:
    """Compare the index with a listing; return the index of the objects that remain, and the changes."""
    changes = _Changes()
    numbers: dict[str, list[int]] = {}
    for place, directory in listing.directories.items():
        before = known.directories.get(place)
        if before is not None and before.names == directory.names:
            numbers[place] = known.numbers[place]
        else:
            previous = known.of(place)
            numbers[place] = [previous.pop(name, UNREAD) for name in directory.names]
            changes.left.update(previous.values())
        if UNREAD in numbers[place]:
            unread = (name for name, number in zip(directory.names, numbers[place], strict=True) if number == UNREAD)
            changes.places += [f"{place}/{name}" for name in unread]
    for place in known.directories.keys() - listing.directories.keys():
        changes.left.update(known.numbers[place])
    changes.left -= {UNREAD, REFUSED}
    changes.places = sorted(set(changes.places) - listing.too_large, key=path_sort_key)
    refused = {place: why for place, why in known.refused.items() if _is_listed(listing, place)}
    groups = dict(known.groups)
    return StoreIndex(directories=listing.directories, numbers=numbers, groups=groups, refused=refused), changes


def _is_listed(listing: Listing, place: str) -> bool:
    folder, _, name = place.rpartition("/")
    return folder in listing.directories and name in listing.directories[folder].names


class _Reader:
    """Updater of an index: reads new objects and folds the groups that they change.

    Args:
        store: store to read from.
        known: index to update in place.
        out_of_time: see ``read_store``.
    """

    def __init__(self, store: TrialStore, known: StoreIndex, out_of_time: Callable[[], bool]) -> None:
        self._store = store
        self._known = known
        self._out_of_time = out_of_time
        self._next = count(max(known.groups, default=-1) + 1)
        self.failed: dict[str, str] = {}
        self.n_left_out = 0

    def update(self, changes: _Changes) -> None:
        """Read the new objects, and fold the groups that changed."""
        numbered: dict[str, int] = {}
        added = self._read(changes.places, numbered, until=self._out_of_time)
        groups = connected_components(added, self._known.groups)
        groups += [({number}, []) for number in changes.left.difference(*(numbers for numbers, _ in groups))]
        places = self._paths_of_groups(set().union(*(numbers for numbers, _ in groups)))
        reread = self._read(sorted(set().union(*places.values()), key=path_sort_key), numbered, until=lambda: False)
        for numbers, new in groups:
            events = {place: added[place] for place in new}
            for number in numbers:
                events |= {place: reread[place] for place in places.get(number, ()) if place in reread}
                self._known.groups.pop(number, None)
            if events:
                own = next(self._next)
                self._known.groups[own] = EventGroup.of(sorted(events.items(), key=lambda item: path_sort_key(item[0])))
                numbered |= dict.fromkeys(events, own)
        self._assign_numbers(numbered)

    def _read(self, places: Sequence[str], numbered: dict[str, int], *, until: Callable[[], bool]) -> dict[str, Event]:
        """Return path -> event of the objects; one without a legal event is noted with its cause."""
        events = {}
        places = sorted(places, key=segment_of)  # so that each segment is opened once
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

    def _paths_of_groups(self, groups: Collection[int]) -> dict[int, set[str]]:
        places: dict[int, set[str]] = {number: set() for number in groups}
        for folder, numbers in self._known.numbers.items() if groups else ():
            for name, number in zip(self._known.directories[folder].names, numbers, strict=True):
                if number in places:
                    places[number].add(f"{folder}/{name}")
        return places

    def _assign_numbers(self, numbered: Mapping[str, int]) -> None:
        of_folders: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for place, number in numbered.items():
            folder, _, name = place.rpartition("/")
            of_folders[folder][name] = number
        for folder, numbers in of_folders.items():
            names, before = self._known.directories[folder].names, self._known.numbers[folder]
            pairs = zip(names, before, strict=True)
            self._known.numbers[folder] = [numbers.get(name, number) for name, number in pairs]
