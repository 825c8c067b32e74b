"""Incremental reader of a store: reads only new objects, and folds only the trials that they change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import Listing, never, unheard
from torchx_cubicml.store.index_cache import StoreIndex, cache_path, load_index, save_index
from torchx_cubicml.store.known_objects import REFUSED, UNREAD
from torchx_cubicml.store.segments import segment_of
from torchx_cubicml.store.trial_store import TOO_LARGE, decode_event, skipped_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.backend import Directory
    from torchx_cubicml.store.trial_store import TrialStore

_MIN_SAVED_SHARE = 0.01  # share of new objects; below it, writing the index costs more than reading the objects again
_OBJECTS_PER_REPORT = 64  # objects read between two reports
_MIN_SAVED_OBJECTS = 20  # number of new objects that is too few to save, for small stores


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """Snapshot of a store.

    Args:
        trials: trials in the order of their first objects.
        warnings: objects that cannot be read, one sentence per cause.
        directories: path of each folder -> its listing.
        last_events: id of a running trial -> time of its last event; without those that came from the cached index.
    """

    trials: list[Trial]
    warnings: tuple[str, ...]
    directories: Mapping[str, Directory]
    last_events: Mapping[str, str] = field(default_factory=dict)


def read_store(
    store: TrialStore,
    *,
    cache: Path | None,
    out_of_time: Callable[[], bool],
    report: Callable[[int, int], None] = unheard,
) -> StoreSnapshot:
    """Read the trials of a store once, starting from the cached index.

    Args:
        store: store to read.
        cache: folder of the cached indexes; ``None`` for no cache.
        out_of_time: called before segments are opened and before each object. If it returns true, what was read so far
            is cached for the next reader.
        report: takes the number of parts done and of all parts, once the objects are listed.

    Raises:
        StoreError: the store cannot be reached or read, or there was no time to read all of it.
    """
    path = cache_path(cache, store.url) if cache is not None else None
    index = load_index(path, store.url) if path is not None else StoreIndex()
    reader = StoreReader(store, index, out_of_time, report)
    reader.read()
    listing, n_objects = reader.listing, sum(map(len, index.objects.numbers.values()))
    is_worth_saving = reader.n_changes > max(_MIN_SAVED_OBJECTS, _MIN_SAVED_SHARE * n_objects)
    is_partial = reader.n_left_out or listing.unopened
    if path is not None and (is_worth_saving or is_partial):
        save_index(path, store.url, index)
    if is_partial:
        raise StoreError(
            f"store {mask(store.url)} was not read in time: read {n_objects - reader.n_left_out} of {n_objects} objects"
            + (f", with {len(listing.unopened)} segments unread" if listing.unopened else "")
            + ("; the next launch continues from there" if path is not None else "")
        )
    return StoreSnapshot(
        trials=index.groups.trials(),
        warnings=skipped_warnings(store.url, reader.skipped()),
        directories=index.objects.directories,
        last_events=index.groups.last_events(),
    )


class StoreReader:
    """Reader that keeps the index of a store up to date; a tune calls it every few seconds.

    An event that it has read counts from then on, even if the object is removed or cannot be listed for a while. A
    group from the index cache is read again if it has lost an object.

    Args:
        store: store to read.
        index: index to update, in place.
        out_of_time: see ``read_store``.
        report: likewise.

    Attributes:
        index: the index.
        listing: listing of the last reading.
        failed: path of an object that could not be read by the last reading -> cause.
        n_changes: number of unread objects that the last reading found, and of cached groups that had lost an object.
        n_left_out: number of objects that the last reading had no time for.
    """

    def __init__(
        self,
        store: TrialStore,
        index: StoreIndex,
        out_of_time: Callable[[], bool] = never,
        report: Callable[[int, int], None] = unheard,
    ) -> None:
        self._folder = store.folder
        self.index = index
        self._out_of_time = out_of_time
        self._report = report
        self.listing = Listing(directories={})
        self.failed: dict[str, str] = {}
        self.n_changes = self.n_left_out = 0

    def read(self) -> None:
        """Read the new objects, and fold the groups that they change.

        An object that cannot be read is tried again at the next call.

        Raises:
            StoreError: the store cannot be reached or read.
        """
        self.failed, self.n_left_out = {}, 0
        index = self.index
        self.listing = self._folder.list_objects(index.objects.directories, self._out_of_time)
        unread, removed = index.objects.update(self.listing)
        if REFUSED in removed:
            listed = set(index.objects.places_of({REFUSED}))
            index.refused = {place: why for place, why in index.refused.items() if place in listed}
        changed = index.groups.without_events(removed)
        self.n_changes = len(unread) + len(changed)
        n_parts = 2 * len(unread)  # each object is read, then folded
        events: dict[str, Event] = {}
        try:
            events.update(self._read(unread, until=self._out_of_time, report=lambda done: self._report(done, n_parts)))
        finally:  # objects read before the store failed are not read again
            changed |= index.groups.joined_by(events.values())
            cached = index.objects.places_of(index.groups.without_events(changed))
            events.update(self._read(cached, until=never))
            numbers = index.groups.regroup(
                changed, events, report=lambda done: self._report(min(len(unread) + done, n_parts), n_parts)
            )
            index.objects.assign(numbers)

    def skipped(self) -> list[str]:
        """Return what the last reading skipped: the path of each, with the cause in brackets."""
        listing, refused = self.listing, self.index.refused | self.failed
        causes = [*((place, TOO_LARGE) for place in sorted(listing.too_large)), *sorted(refused.items())]
        return [*listing.problems, *(f"{place} ({why})" for place, why in causes)]

    def _read(
        self, places: Sequence[str], *, until: Callable[[], bool], report: Callable[[int], None] = lambda _done: None
    ) -> Iterator[tuple[str, Event]]:
        """Yield path and event of the objects; one without a legal event is noted with its cause."""
        if not places or until():
            self.n_left_out += len(places)
            return
        ordered = sorted(places, key=segment_of)  # so that each segment is opened once
        for n_read, (place, content) in enumerate(self._folder.read(ordered)):
            if n_read % _OBJECTS_PER_REPORT == 0:
                report(n_read)
            if n_read and until():
                self.n_left_out = len(places) - n_read
                return
            try:
                event = decode_event(content)
            except RecordError as error:
                failed = isinstance(content, Exception)
                self.index.objects.assign({place: UNREAD if failed else REFUSED})
                (self.failed if failed else self.index.refused)[place] = str(error)
            else:
                yield place, event
