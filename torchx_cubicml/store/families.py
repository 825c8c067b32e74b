"""Events that belong together, so that a few new ones need not be folded with all that were ever written.

A family is all events that share ids, of a trial or of a launch, directly or through others. Its trials depend on no
event outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.event import fold_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Trials that share events, and the objects that these are in.

    Args:
        trials: in the order of their first objects.
        firsts: place of the first object of each trial.
        ids: of its trials and launches.
    """

    trials: tuple[Trial, ...]
    firsts: tuple[str, ...]
    ids: frozenset[str]

    @classmethod
    def of(cls, events: Sequence[tuple[str, Event]]) -> Family:
        """Return what the events of one family, each with its place, fold to.

        Args:
            events: in the order of their names.
        """
        trials = fold_events(event for _, event in events)
        firsts = [_first(trial, events) for trial in trials]
        return cls(trials=tuple(trials), firsts=tuple(firsts), ids=frozenset().union(*(ids_of(e) for _, e in events)))


def ids_of(event: Event) -> set[str]:
    """Return the ids that join an event with others."""
    return {event.trial_id, event.launch_id} - {""}


def by_name(place: str) -> tuple[str, str]:
    """Return what places are sorted by: their names, and so the writers' clocks."""
    return place.rsplit("/", 1)[-1], place


def in_order(families: Iterable[Family]) -> list[Trial]:
    """Return all trials in the order in which folding all events at once gives them."""
    found = [pair for family in families for pair in zip(family.firsts, family.trials, strict=True)]
    found.sort(key=lambda pair: by_name(pair[0]))
    return [trial for _, trial in found]


def joined(events: Mapping[str, Event], families: Mapping[int, Family]) -> list[tuple[set[int], list[str]]]:
    """Return which families each group of new events belongs to, and the places of those events.

    Args:
        events: place of each new object -> its event.
        families: number -> family, as known before.
    """
    family_of = {name: number for number, family in families.items() for name in family.ids}
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = name = root[root[name]]
        return name

    for event in events.values():
        first, *others = sorted(ids_of(event) | _kin(event, family_of, families))
        for other in others:
            root[find(other)] = find(first)
    groups: dict[str, tuple[set[int], list[str]]] = {}
    for place, event in events.items():
        numbers, places = groups.setdefault(find(event.trial_id or event.launch_id), (set(), []))
        places.append(place)
        numbers.update(family_of[name] for name in ids_of(event) if name in family_of)
    return list(groups.values())


def _kin(event: Event, family_of: Mapping[str, int], families: Mapping[int, Family]) -> set[str]:
    """Return the other ids of the families that an event belongs to."""
    numbers = {family_of[name] for name in ids_of(event) if name in family_of}
    return set().union(*(families[number].ids for number in numbers))


def _first(trial: Trial, events: Sequence[tuple[str, Event]]) -> str:
    own = {event.launch_id for _, event in events if event.trial_id == trial.trial_id} - {""}
    joined_launches = {event.launch_id for _, event in events if event.trial_id}
    plans = own if trial.trial_id in joined_launches else own | {trial.trial_id}
    return min(
        (
            place
            for place, event in events
            if (event.trial_id == trial.trial_id if event.trial_id else event.launch_id in plans)
        ),
        key=by_name,
    )
