"""Events of a store, grouped by the trials and launches that they share; each group is folded on its own."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.records.event import fold_events
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import State
from torchx_cubicml.store.backend import path_sort_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGroup:
    """Connected component of events that share trial or launch ids, folded into its trials.

    Args:
        trials: trials in the order of their first objects.
        firsts: path of the first object of each trial.
        ids: ids of its trials and launches.
        events: path -> event, in the order of their names; empty for a group from the index cache.
    """

    trials: tuple[Trial, ...]
    firsts: tuple[str, ...]
    ids: frozenset[str]
    events: Mapping[str, Event] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Mapping[str, Event], statistic: str | None = None) -> EventGroup:
        """Fold the events of one group into its trials.

        Args:
            events: path -> event, in any order.
            statistic: see ``EventGroups``.
        """
        ordered = {place: events[place] for place in sorted(events, key=path_sort_key)}
        trials = folded(ordered.values(), statistic)
        firsts = tuple(_first_path(trial, ordered) for trial in trials)
        ids = frozenset(name for event in events.values() for name in (event.trial_id, event.launch_id) if name)
        return cls(trials=tuple(trials), firsts=firsts, ids=ids, events=ordered)


def folded(events: Iterable[Event], statistic: str | None) -> list[Trial]:
    """Fold events into trials; see ``EventGroups`` for the statistic."""
    trials = fold_events(events)
    return trials if statistic is None else [trial.at(statistic) for trial in trials]


class EventGroups:
    """Groups of all events by number; a number is never used again.

    Args:
        groups: groups that are numbered from 0.
        statistic: statistic of the step times at which throughputs are given; as recorded by default.
    """

    def __init__(self, groups: Iterable[EventGroup] = (), *, statistic: str | None = None) -> None:
        self._statistic = statistic
        self.by_number = dict(enumerate(groups))
        self._number_of = {name: number for number, group in self.by_number.items() for name in group.ids}
        self._unused = count(len(self.by_number))

    def with_id(self, name: str) -> EventGroup | None:
        """Return the group of a trial or launch id."""
        return self.by_number[self._number_of[name]] if name in self._number_of else None

    def joined_by(self, events: Iterable[Event]) -> set[int]:
        """Return the numbers of the groups that new events belong to."""
        names = (name for event in events for name in (event.trial_id, event.launch_id))
        return {self._number_of[name] for name in names if name in self._number_of}

    def without_events(self, numbers: Iterable[int]) -> set[int]:
        """Return those numbers of groups whose events are not in memory."""
        return {number for number in numbers if number in self.by_number and not self.by_number[number].events}

    def regroup(
        self, numbers: Iterable[int], events: Mapping[str, Event], *, report: Callable[[int], None] = lambda _done: None
    ) -> dict[str, int]:
        """Group the events of some groups anew, with others; return path -> number of the group of each.

        Args:
            numbers: groups, which are replaced.
            events: path -> event: new ones, and those of the groups that are not in memory.
            report: takes the number of events folded by now.
        """
        events = dict(events)
        for number in numbers:
            group = self.by_number.pop(number)
            events |= group.events
            for name in group.ids:
                self._number_of.pop(name, None)
        numbered: dict[str, int] = {}
        for component in _connected_components(events):
            number, group = next(self._unused), EventGroup.of(component, self._statistic)
            self.by_number[number] = group
            self._number_of |= dict.fromkeys(group.ids, number)
            numbered |= dict.fromkeys(component, number)
            report(len(numbered))
        return numbered

    def trials(self) -> list[Trial]:
        """Return all trials in the order that folding all events at once would give; see ``with_crowding``."""
        pairs = [pair for group in self.by_number.values() for pair in zip(group.firsts, group.trials, strict=True)]
        pairs.sort(key=lambda pair: path_sort_key(pair[0]))
        return with_crowding(trial for _, trial in pairs)

    def last_events(self) -> dict[str, str]:
        """Return trial id -> time of the last event, of each running trial whose events are in memory."""
        last: dict[str, str] = {}
        for group in self.by_number.values():
            running = {trial.trial_id for trial in group.trials if trial.state is State.RUNNING}
            for event in group.events.values() if running else ():
                if event.trial_id in running and event.time:
                    last[event.trial_id] = max(event.time, last.get(event.trial_id, ""), key=_moment)
        return last


def _moment(time: str) -> float:
    parsed = parse_time(time)
    return parsed.timestamp() if parsed is not None else -math.inf


def _connected_components(events: Mapping[str, Event]) -> Iterable[dict[str, Event]]:
    """Split events into those that share trial or launch ids (union-find)."""
    parents: dict[str, str] = {}

    def root_of(name: str) -> str:
        while parents.setdefault(name, name) != name:
            parents[name] = name = parents[parents[name]]
        return name

    for event in events.values():
        if event.trial_id and event.launch_id:
            parents[root_of(event.trial_id)] = root_of(event.launch_id)
    components: defaultdict[str, dict[str, Event]] = defaultdict(dict)
    for place, event in events.items():
        components[root_of(event.trial_id or event.launch_id)][place] = event
    return components.values()


def _first_path(trial: Trial, events: Mapping[str, Event]) -> str:
    own = {event.launch_id for event in events.values() if event.trial_id == trial.trial_id}
    joined_launches = {event.launch_id for event in events.values() if event.trial_id}
    plans = own if trial.trial_id in joined_launches else own | {trial.trial_id}
    return next(
        place
        for place, event in events.items()
        if (event.trial_id == trial.trial_id if event.trial_id else event.launch_id in plans)
    )
