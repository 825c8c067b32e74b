"""The trials of a store, read on from where the last reading ended: a tune reads it often, and events never change."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import Event, EventKind, fold_events
from torchx_cubicml.records.trial import MEAN
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.trial_store import decode_event
from torchx_cubicml.tuner.polling import NewObjects, StoreRetry, instant

if TYPE_CHECKING:
    from datetime import datetime

    from torchx_cubicml.records.trial import Trial

_OF_A_TRAINING = frozenset({EventKind.STARTED, EventKind.MEASURED, EventKind.ENDED})


class TrialLog:
    """All trials of one store.

    Args:
        store_url: of the store.
        patience: with the store.
        statistic: of the steps, by which throughputs are told; see ``Measurement.at``.
    """

    def __init__(self, store_url: str, patience: StoreRetry | None = None, *, statistic: str = MEAN) -> None:
        self.patience = patience or StoreRetry()
        self._statistic = statistic
        self._store = TrialStore(store_url)
        self._arrivals = NewObjects(self._store.folder)
        self._groups: defaultdict[str, list[Event]] = defaultdict(list)
        self._folded: dict[str, list[Trial]] = {}
        self._launch_of: dict[str, str] = {}  # trial id -> launch id

    def append(self, event: Event) -> None:
        """Add one event to the store.

        Raises:
            StoreError: the store cannot be written.
        """
        self.patience.write(lambda: self._store.append(event))

    def refresh(self) -> None:
        """Read what is new.

        Raises:
            StoreError: the store cannot be read.
        """
        self.patience.read(self._read_on)

    def trials(self) -> list[Trial]:
        """Return all trials as of the last refresh."""
        return [trial for trials in self._folded.values() for trial in trials]

    def of_launch(self, launch_id: str) -> Trial | None:
        """Return the trial of a launch: of several, the one that tells most."""
        found = self._folded.get(launch_id, [])
        return max(found, key=lambda trial: (trial.measurement is not None, trial.state.ended), default=None)

    def planned(self, launch_id: str) -> Event | None:
        """Return the plan of a launch."""
        return next((event for event in self._groups.get(launch_id, ()) if event.kind is EventKind.PLANNED), None)

    def launches(self, prefix: str) -> list[str]:
        """Return the ids of launches that begin with ``prefix``, in order."""
        return sorted(key for key in self._groups if key.startswith(prefix))

    def attempts(self, launch_id: str) -> list[tuple[datetime, datetime]]:
        """Return when each attempt of a launch told something first and last, by its own clock, in their order."""
        told: defaultdict[tuple[int, int], list[datetime]] = defaultdict(list)
        for event in self._groups.get(launch_id, ()):
            time = instant(event.time)
            if event.kind in _OF_A_TRAINING and time is not None:
                told[event.attempt].append(time)
        return [(min(times), max(times)) for _, times in sorted(told.items())]

    def last_event_at(self, launch_id: str) -> datetime | None:
        """Return when the training of a launch told something last, by its own clock."""
        return max((last for _, last in self.attempts(launch_id)), default=None)

    def _read_on(self) -> None:
        changed: set[str] = set()
        try:
            for content in self._arrivals.read():
                with suppress(RecordError):  # a reader of the whole store tells of it
                    changed.add(self._place(decode_event(content)))
        finally:  # what was read before the store failed is not read again
            for key in changed:
                if key in self._groups:
                    self._folded[key] = [trial.at(self._statistic) for trial in fold_events(self._groups[key])]

    def _place(self, event: Event) -> str:
        """Put an event with the others of its launch, and return the name of that group."""
        if event.launch_id and event.trial_id and event.trial_id not in self._launch_of:
            self._launch_of[event.trial_id] = event.launch_id
            # Events that came before any told the launch.
            self._groups[event.launch_id] += self._groups.pop(event.trial_id, [])
            self._folded.pop(event.trial_id, None)
        key = event.launch_id or self._launch_of.get(event.trial_id, event.trial_id)
        self._groups[key].append(event)
        return key
