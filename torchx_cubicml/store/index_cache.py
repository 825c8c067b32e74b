"""Local cache of a remote store's index: which objects it holds, grouped by trial."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import SCHEMA_VERSION, fold_events
from torchx_cubicml.store.backend import Directory
from torchx_cubicml.store.file_cache import read_cache, write_cache
from torchx_cubicml.store.trial_table import from_table, to_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGroup:
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
    def of(cls, events: Sequence[tuple[str, Event]]) -> EventGroup:
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


def in_order(families: Iterable[EventGroup]) -> list[Trial]:
    """Return all trials in the order in which folding all events at once gives them."""
    found = [pair for family in families for pair in zip(family.firsts, family.trials, strict=True)]
    found.sort(key=lambda pair: by_name(pair[0]))
    return [trial for _, trial in found]


def joined(events: Mapping[str, Event], families: Mapping[int, EventGroup]) -> list[tuple[set[int], list[str]]]:
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


def _kin(event: Event, family_of: Mapping[str, int], families: Mapping[int, EventGroup]) -> set[str]:
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


FORMAT = [1, SCHEMA_VERSION]  # what is refused today may be legal tomorrow
UNREAD, REFUSED = -1, -2  # in place of the number of a family
_MOST_STORES = 8


@dataclass(slots=True, kw_only=True)
class StoreIndex:
    """Every object of a store that was read, and the trials of all.

    Args:
        shelves: place of each folder -> what was in it.
        numbers: place of each folder -> family of each object on it, ``UNREAD`` or ``REFUSED``.
        families: number -> family.
        refused: place of an object that is no event -> why.
    """

    shelves: Mapping[str, Directory] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    families: dict[int, EventGroup] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def of(self, place: str) -> dict[str, int]:
        """Return name -> number of the objects in one folder."""
        shelf = self.shelves.get(place)
        return dict(zip(shelf.names, self.numbers[place], strict=True)) if shelf is not None else {}


def cache_path(folder: Path, url: str) -> Path:
    """Return where what is known of a store is kept below the folder of caches."""
    return folder / "stores" / f"{hashlib.sha256(url.encode(errors='surrogatepass')).hexdigest()[:32]}.json"


def load_index(path: Path, url: str) -> StoreIndex:
    """Return what is known; nothing where the file is not there or is damaged, whoever damaged it."""
    payload = read_cache(path)
    if payload is None or payload.get("format") != FORMAT or payload.get("url") != url:
        return StoreIndex()
    try:
        return _from_json(payload)
    except (RecordError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return StoreIndex()


def save_index(path: Path, url: str, known: StoreIndex) -> None:
    """Write what is known for the next reader."""
    families = list(known.families.values())
    number_of = {number: index for index, number in enumerate(known.families)} | {UNREAD: UNREAD, REFUSED: REFUSED}
    shelves = [
        [
            shelf.place,
            shelf.stamp,
            shelf.folders,
            shelf.names,
            [number_of[number] for number in known.numbers[shelf.place]],
        ]
        for shelf in known.shelves.values()
    ]
    payload = {
        "format": FORMAT,
        "url": url,
        "shelves": shelves,
        "refused": known.refused,
        "families": [[len(family.trials), family.firsts, _other_ids(family)] for family in families],
        "table": to_table(trial for family in families for trial in family.trials),
    }
    write_cache(path, payload, most=_MOST_STORES)


def _from_json(payload: Mapping[str, object]) -> StoreIndex:
    table, refused = payload["table"], payload["refused"]
    if not isinstance(table, dict) or not isinstance(refused, dict):
        raise TypeError("the cache is damaged")
    families = _families(_rows(payload["families"]), from_table(table))
    shelves, numbers = {}, {}
    for place, stamp, folders, names, of_names in _rows(payload["shelves"]):
        shelves[place] = Directory(place=place, stamp=stamp, folders=_texts(folders), names=_texts(names))
        numbers[place] = of_names
        if len(names) != len(of_names) or not families.keys() | {UNREAD, REFUSED} >= set(of_names):
            raise ValueError("the cache is damaged")
    return StoreIndex(shelves=shelves, numbers=numbers, families=families, refused=refused)


def _families(rows: list[list[Any]], trials: list[Trial]) -> dict[int, EventGroup]:
    families, start = {}, 0
    for number, (count, firsts, others) in enumerate(rows):
        own = tuple(trials[start : start + count])
        start += count
        ids = {name for trial in own for name in (trial.trial_id, trial.launch_id) if name}
        ids.update(_texts(others))
        families[number] = EventGroup(trials=own, firsts=_texts(firsts), ids=frozenset(ids))
        if not 0 < count == len(own) == len(firsts):
            raise ValueError("the cache is damaged")
    return families


def _other_ids(family: EventGroup) -> list[str]:
    return sorted(family.ids.difference(*({trial.trial_id, trial.launch_id} for trial in family.trials)))


def _rows(value: object) -> list[list[Any]]:
    if isinstance(value, list):
        return value
    raise TypeError("the cache is damaged")


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("the cache is damaged")
    for text in value:
        if type(text) is not str:
            raise TypeError("the cache is damaged")
    return tuple(value)
