"""Local cache of a store's index: its objects, and the trials folded from each group of related events."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import SCHEMA_VERSION
from torchx_cubicml.records.json_fields import items_of, texts_of
from torchx_cubicml.store.backend import Directory
from torchx_cubicml.store.event_groups import EventGroup, EventGroups
from torchx_cubicml.store.file_cache import read_cache, write_cache
from torchx_cubicml.store.known_objects import REFUSED, UNREAD, KnownObjects
from torchx_cubicml.store.trial_table import from_table, to_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchx_cubicml.records.trial import Trial

FORMAT = [4, SCHEMA_VERSION]  # an object refused under this schema may be legal under the next
_MAX_STORES = 8


@dataclass(slots=True, kw_only=True)
class StoreIndex:
    """Index of a store: its objects as last read, and the trials folded from them.

    Args:
        objects: objects, each with the number of its group.
        groups: groups of events.
        refused: path of an object that is no event -> cause.
    """

    objects: KnownObjects = field(default_factory=KnownObjects)
    groups: EventGroups = field(default_factory=EventGroups)
    refused: dict[str, str] = field(default_factory=dict)


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
    groups = list(known.groups.by_number.values())
    number_of = {UNREAD: UNREAD, REFUSED: REFUSED}
    number_of |= {number: index for index, number in enumerate(known.groups.by_number)}
    directories = [
        [
            directory.place,
            directory.stamp,
            directory.folders,
            directory.names,
            [number_of[number] for number in known.objects.numbers[directory.place].values()],
        ]
        for directory in known.objects.directories.values()
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
        numbers[place] = dict(zip(names, of_names, strict=True))
        if not {*range(len(groups)), UNREAD, REFUSED} >= set(of_names):
            raise ValueError("the cache is damaged")
    objects = KnownObjects(directories=directories, numbers=numbers)
    return StoreIndex(objects=objects, groups=EventGroups(groups), refused=refused)


def _groups_from_json(rows: list[list[Any]], trials: list[Trial]) -> list[EventGroup]:
    groups, start = [], 0
    for count, firsts, others in rows:
        own = tuple(trials[start : start + count])
        start += count
        ids = {name for trial in own for name in (trial.trial_id, trial.launch_id) if name}
        ids.update(texts_of(others, "others"))
        groups.append(EventGroup(trials=own, firsts=texts_of(firsts, "firsts"), ids=frozenset(ids)))
        if not 0 < count == len(own) == len(firsts):
            raise ValueError("the cache is damaged")
    return groups


def _other_ids(group: EventGroup) -> list[str]:
    return sorted(group.ids.difference(*({trial.trial_id, trial.launch_id} for trial in group.trials)))
