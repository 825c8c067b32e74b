"""Trials of a store, read incrementally: a tune reads them often, and events never change."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import Event, EventKind, fold_events
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import MEAN
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.trial_store import decode_event
from torchx_cubicml.tuner.polling import NewObjects, StoreRetry

if TYPE_CHECKING:
    from datetime import datetime

    from torchx_cubicml.records.trial import Trial

_TRAINING_EVENTS = frozenset({EventKind.STARTED, EventKind.MEASURED, EventKind.ENDED})


class TrialLog:
    """Log of all trials of one store, updated by ``refresh``.

    Args:
        store_url: URL of the store.
        retry: retries store operations that fail.
        statistic: statistic of the step times from which throughputs are computed; see ``Measurement.at``.
    """

    def __init__(self, store_url: str, retry: StoreRetry | None = None, *, statistic: str = MEAN) -> None:
        self.retry = retry or StoreRetry()
        self._statistic = statistic
        self._store = TrialStore(store_url)
        self._new_objects = NewObjects(self._store.folder)
        self._groups: defaultdict[str, list[Event]] = defaultdict(list)
        self._folded: dict[str, list[Trial]] = {}
        self._launch_of: dict[str, str] = {}  # trial id -> launch id

    def append(self, event: Event) -> None:
        """Append one event to the store.

        Raises:
            StoreError: the store cannot be written.
        """
        self.retry.write(lambda: self._store.append(event))

    def refresh(self) -> None:
        """Read the new events.

        Raises:
            StoreError: the store cannot be read.
        """
        self.retry.read(self._read_new)

    def trials(self) -> list[Trial]:
        """Return all trials as of the last refresh."""
        return [trial for trials in self._folded.values() for trial in trials]

    def of_launch(self, launch_id: str) -> Trial | None:
        """Return the trial of a launch; of several, one with a measurement first, then one that has ended."""
        found = self._folded.get(launch_id, [])
        return max(found, key=lambda trial: (trial.measurement is not None, trial.state.ended), default=None)

    def planned(self, launch_id: str) -> Event | None:
        """Return the planned event of a launch."""
        return next((event for event in self._groups.get(launch_id, ()) if event.kind is EventKind.PLANNED), None)

    def launches(self, prefix: str) -> list[str]:
        """Return the ids of launches that begin with ``prefix``, in order."""
        return sorted(key for key in self._groups if key.startswith(prefix))

    def attempts(self, launch_id: str) -> list[tuple[datetime, datetime]]:
        """Return the times of the first and the last event of each attempt of a launch, by its own clock, in order."""
        times_of: defaultdict[tuple[int, int], list[datetime]] = defaultdict(list)
        for event in self._groups.get(launch_id, ()):
            time = parse_time(event.time)
            if event.kind in _TRAINING_EVENTS and time is not None:
                times_of[event.attempt].append(time)
        return [(min(times), max(times)) for _, times in sorted(times_of.items())]

    def last_event_at(self, launch_id: str) -> datetime | None:
        """Return the time of the last event of a launch's training, by its own clock."""
        return max((last for _, last in self.attempts(launch_id)), default=None)

    def _read_new(self) -> None:
        changed: set[str] = set()
        try:
            for content in self._new_objects.read():
                with suppress(RecordError):  # readers of the whole store report it
                    changed.add(self._add(decode_event(content)))
        finally:  # objects read before the store failed are not read again
            for key in changed:
                if key in self._groups:
                    self._folded[key] = [trial.at(self._statistic) for trial in fold_events(self._groups[key])]

    def _add(self, event: Event) -> str:
        """Add an event to the group of its launch, and return the key of the group."""
        if event.launch_id and event.trial_id and event.trial_id not in self._launch_of:
            self._launch_of[event.trial_id] = event.launch_id
            # Earlier events of the trial, without a launch id.
            self._groups[event.launch_id] += self._groups.pop(event.trial_id, [])
            self._folded.pop(event.trial_id, None)
        key = event.launch_id or self._launch_of.get(event.trial_id, event.trial_id)
        self._groups[key].append(event)
        return key
