"""Trials of a store by launch: a tune reads the store often, and queries what it read."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.launch_overhead import LaunchOverhead
from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.records.event import EventKind
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.measurement import MEAN
from torchx_cubicml.records.memory_failure import as_asked
from torchx_cubicml.records.workload import is_same_workload
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import digest_keys
from torchx_cubicml.store.event_groups import EventGroups, folded
from torchx_cubicml.store.index_cache import StoreIndex
from torchx_cubicml.store.reader import StoreReader
from torchx_cubicml.tuner.polling import StoreRetry

if TYPE_CHECKING:
    from datetime import datetime

    from torchx_cubicml.records.device_prices import Prices
    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.job_time import Job
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Workload
    from torchx_cubicml.store.event_groups import EventGroup

_TRAINING_EVENTS = frozenset({EventKind.STARTED, EventKind.MEASURED, EventKind.ENDED})


class TrialLog:
    """Log of all trials of one store, updated by ``refresh``.

    Args:
        store_url: URL of the store.
        retry: retries store operations that fail.
        statistic: statistic of the step times from which throughputs are computed; see ``Measurement.at``.
        prices: prices of a device hour, which each trial gets as a fact; ``None`` for none.
        job: work of the whole job, if the objective needs it.
        workload: whose trials are judged by the time of that job.
    """

    def __init__(
        self,
        store_url: str,
        retry: StoreRetry | None = None,
        *,
        statistic: str = MEAN,
        prices: Prices | None = None,
        job: Job | None = None,
        workload: Workload | None = None,
    ) -> None:
        self.retry = retry or StoreRetry()
        self._statistic = statistic
        self._prices = prices
        self._job, self._workload = job, workload or {}
        self._overhead: LaunchOverhead | None = None
        self._store = TrialStore(store_url)
        self._keys: tuple[str, ...] = ()
        self._groups = EventGroups(statistic=statistic)
        self._folded: dict[str, tuple[EventGroup, list[Trial]]] = {}  # launch id -> its group, folded without others
        self._reader = StoreReader(self._store, StoreIndex(groups=self._groups))

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
        self.retry.read(self._reader.read)
        self._overhead = None

    @property
    def digest_keys(self) -> tuple[str, ...]:
        """Keys of the store's digests; the first job of a store makes one."""
        self._keys = self._keys or self.retry.read(lambda: digest_keys(self._store.url))
        return self._keys

    def trials(self) -> list[Trial]:
        """Return all trials as of the last refresh, in the order of their first events."""
        return self._priced(self._groups.trials())

    def of_launch(self, launch_id: str) -> Trial | None:
        """Return the trial of a launch; of several, one with a measurement first, then one that has ended.

        A scheduler that numbers its jobs anew gives two launches the same trial id; here they stay apart.
        """
        group = self._groups.with_id(launch_id)
        if group is None:
            return None
        if launch_id not in self._folded or self._folded[launch_id][0] is not group:  # new events make a new group
            self._folded[launch_id] = group, with_crowding(folded(self._events(launch_id), self._statistic))
        found = as_asked(self._priced(self._folded[launch_id][1]))
        return max(found, key=lambda trial: (trial.measurement is not None, trial.state.ended), default=None)

    def _priced(self, trials: list[Trial]) -> list[Trial]:
        priced = trials if self._prices is None else [trial.priced(self._prices) for trial in trials]
        return priced if self._job is None else [self._timed(trial, self._job) for trial in priced]

    def _timed(self, trial: Trial, job: Job) -> Trial:
        if not is_same_workload(trial, self._workload):
            return trial
        if self._overhead is None:
            known = self._groups.trials()
            self._overhead = LaunchOverhead.of([each for each in known if is_same_workload(each, self._workload)])
        return self._overhead.timed(trial, job)

    def planned(self, launch_id: str) -> Event | None:
        """Return the planned event of a launch."""
        return next((event for event in self._events(launch_id) if event.kind is EventKind.PLANNED), None)

    def launches(self, prefix: str) -> list[str]:
        """Return the ids of launches that begin with ``prefix``, in order."""
        events = (event for group in self._groups.by_number.values() for event in group.events.values())
        return sorted({event.launch_id for event in events if event.launch_id.startswith(prefix)})

    def attempts(self, launch_id: str) -> list[tuple[datetime, datetime]]:
        """Return the times of the first and the last event of each attempt of a launch, by its own clock, in order."""
        times_of: defaultdict[tuple[int, int], list[datetime]] = defaultdict(list)
        for event in self._events(launch_id):
            time = parse_time(event.time)
            if event.kind in _TRAINING_EVENTS and time is not None:
                times_of[event.attempt].append(time)
        return [(min(times), max(times)) for _, times in sorted(times_of.items())]

    def last_event_at(self, launch_id: str) -> datetime | None:
        """Return the time of the last event of a launch's training, by its own clock."""
        return max((last for _, last in self.attempts(launch_id)), default=None)

    def _events(self, launch_id: str) -> list[Event]:
        """Return the events of a launch, and those of its trial that name no launch."""
        group = self._groups.with_id(launch_id)
        return [event for event in group.events.values() if event.launch_id in {launch_id, ""}] if group else []
