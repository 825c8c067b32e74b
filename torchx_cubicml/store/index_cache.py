"""Local cache of a store's index: its objects, and the trials folded from each group of related events."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import SCHEMA_VERSION, fold_events
from torchx_cubicml.records.json_fields import items_of, texts_of
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
    """Connected component of events that share trial or launch ids, folded into its trials.

    Args:
        trials: trials in the order of their first objects.
        firsts: path of the first object of each trial.
        ids: ids of its trials and launches.
    """

    trials: tuple[Trial, ...]
    firsts: tuple[str, ...]
    ids: frozenset[str]

    @classmethod
    def of(cls, events: Sequence[tuple[str, Event]]) -> EventGroup:
        """Fold the events of one group into its trials.

        Args:
            events: path and event, in the order of their names.
        """
        trials = fold_events(event for _, event in events)
        firsts = [_first_path(trial, events) for trial in trials]
        return cls(trials=tuple(trials), firsts=tuple(firsts), ids=frozenset().union(*(ids_of(e) for _, e in events)))


def ids_of(event: Event) -> set[str]:
    """Return the trial and launch ids by which an event is joined with others."""
    return {event.trial_id, event.launch_id} - {""}


def path_sort_key(place: str) -> tuple[str, str]:
    """Return the sort key of a path: its file name, which begins with the writer's clock, then the path."""
    return place.rsplit("/", 1)[-1], place


def trials_in_order(groups: Iterable[EventGroup]) -> list[Trial]:
    """Return all trials in the order that folding all events at once would give."""
    found = [pair for group in groups for pair in zip(group.firsts, group.trials, strict=True)]
    found.sort(key=lambda pair: path_sort_key(pair[0]))
    return [trial for _, trial in found]


def connected_components(
    events: Mapping[str, Event], groups: Mapping[int, EventGroup]
) -> list[tuple[set[int], list[str]]]:
    """Merge new events with known groups (union-find); return the group numbers and new paths of each component.

    Args:
        events: path of each new object -> its event.
        groups: number -> group, as known before.
    """
    group_of = {name: number for number, group in groups.items() for name in group.ids}
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = name = root[root[name]]
        return name

    for event in events.values():
        first, *others = sorted(ids_of(event) | _joined_ids(event, group_of, groups))
        for other in others:
            root[find(other)] = find(first)
    components: dict[str, tuple[set[int], list[str]]] = {}
    for place, event in events.items():
        numbers, places = components.setdefault(find(event.trial_id or event.launch_id), (set(), []))
        places.append(place)
        numbers.update(group_of[name] for name in ids_of(event) if name in group_of)
    return list(components.values())


def _joined_ids(event: Event, group_of: Mapping[str, int], groups: Mapping[int, EventGroup]) -> set[str]:
    """Return all ids of the groups that an event belongs to."""
    numbers = {group_of[name] for name in ids_of(event) if name in group_of}
    return set().union(*(groups[number].ids for number in numbers))


def _first_path(trial: Trial, events: Sequence[tuple[str, Event]]) -> str:
    own = {event.launch_id for _, event in events if event.trial_id == trial.trial_id} - {""}
    joined_launches = {event.launch_id for _, event in events if event.trial_id}
    plans = own if trial.trial_id in joined_launches else own | {trial.trial_id}
    return min(
        (
            place
            for place, event in events
            if (event.trial_id == trial.trial_id if event.trial_id else event.launch_id in plans)
        ),
        key=path_sort_key,
    )


FORMAT = [1, SCHEMA_VERSION]  # an object refused under this schema may be legal under the next
UNREAD, REFUSED = -1, -2  # in place of a group number
_MAX_STORES = 8


@dataclass(slots=True, kw_only=True)
class StoreIndex:
    """Index of a store: its objects as last read, and the trials folded from them.

    Args:
        directories: path of each folder -> its listing.
        numbers: path of each folder -> group number of each of its objects, ``UNREAD`` or ``REFUSED``.
        groups: number -> group.
        refused: path of an object that is no event -> cause.
    """

    directories: Mapping[str, Directory] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    groups: dict[int, EventGroup] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def of(self, place: str) -> dict[str, int]:
        """Return name -> group number of the objects in one folder."""
        directory = self.directories.get(place)
        return dict(zip(directory.names, self.numbers[place], strict=True)) if directory is not None else {}


def cache_path(folder: Path, url: str) -> Path:
    """Return the path of a store's index below the cache folder."""
    return folder / "stores" / f"{hashlib.sha256(url.encode(errors='surrogatepass')).hexdigest()[:32]}.json"


def load_index(path: Path, url: str) -> StoreIndex:
    """Return the cached index; an empty one where the file is missing or damaged."""
    payload = read_cache(path)
    if payload is None or payload.get("format") != FORMAT or payload.get("url") != url:
        return StoreIndex()
    try:
        return _from_json(payload)
    except (RecordError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return StoreIndex()


def save_index(path: Path, url: str, known: StoreIndex) -> None:
    """Write the index for the next reader."""
    groups = list(known.groups.values())
    number_of = {number: index for index, number in enumerate(known.groups)} | {UNREAD: UNREAD, REFUSED: REFUSED}
    directories = [
        [
            directory.place,
            directory.stamp,
            directory.folders,
            directory.names,
            [number_of[number] for number in known.numbers[directory.place]],
        ]
        for directory in known.directories.values()
    ]
    payload = {
        "format": FORMAT,
        "url": url,
        "shelves": directories,
        "refused": known.refused,
        "families": [[len(group.trials), group.firsts, _other_ids(group)] for group in groups],
        "table": to_table(trial for group in groups for trial in group.trials),
    }
    write_cache(path, payload, most=_MAX_STORES)


def _from_json(payload: Mapping[str, object]) -> StoreIndex:
    table, refused = payload["table"], payload["refused"]
    if not isinstance(table, dict) or not isinstance(refused, dict):
        raise TypeError("the cache is damaged")
    groups = _groups_from_json(items_of(payload["families"], "families"), from_table(table))
    directories, numbers = {}, {}
    for place, stamp, folders, names, of_names in items_of(payload["shelves"], "shelves"):
        directories[place] = Directory(
            place=place, stamp=stamp, folders=texts_of(folders, "folders"), names=texts_of(names, "names")
        )
        numbers[place] = of_names
        if len(names) != len(of_names) or not groups.keys() | {UNREAD, REFUSED} >= set(of_names):
            raise ValueError("the cache is damaged")
    return StoreIndex(directories=directories, numbers=numbers, groups=groups, refused=refused)


def _groups_from_json(rows: list[list[Any]], trials: list[Trial]) -> dict[int, EventGroup]:
    groups, start = {}, 0
    for number, (count, firsts, others) in enumerate(rows):
        own = tuple(trials[start : start + count])
        start += count
        ids = {name for trial in own for name in (trial.trial_id, trial.launch_id) if name}
        ids.update(texts_of(others, "others"))
        groups[number] = EventGroup(trials=own, firsts=texts_of(firsts, "firsts"), ids=frozenset(ids))
        if not 0 < count == len(own) == len(firsts):
            raise ValueError("the cache is damaged")
    return groups


def _other_ids(group: EventGroup) -> list[str]:
    return sorted(group.ids.difference(*({trial.trial_id, trial.launch_id} for trial in group.trials)))
