"""What is known of a store from the last time that it was read; objects are never rewritten, so it stays true."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import SCHEMA_VERSION
from torchx_cubicml.store.backend import Shelf
from torchx_cubicml.store.families import Family
from torchx_cubicml.store.file_cache import read_cache, write_cache
from torchx_cubicml.store.trial_table import from_table, to_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchx_cubicml.records.trial import Trial

FORMAT = [1, SCHEMA_VERSION]  # what is refused today may be legal tomorrow
UNREAD, REFUSED = -1, -2  # in place of the number of a family
_MOST_STORES = 8


@dataclass(slots=True, kw_only=True)
class KnownStore:
    """Every object of a store that was read, and the trials of all.

    Args:
        shelves: place of each folder -> what was in it.
        numbers: place of each folder -> family of each object on it, ``UNREAD`` or ``REFUSED``.
        families: number -> family.
        refused: place of an object that is no event -> why.
    """

    shelves: Mapping[str, Shelf] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    families: dict[int, Family] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def of(self, place: str) -> dict[str, int]:
        """Return name -> number of the objects in one folder."""
        shelf = self.shelves.get(place)
        return dict(zip(shelf.names, self.numbers[place], strict=True)) if shelf is not None else {}


def cache_path(folder: Path, url: str) -> Path:
    """Return where what is known of a store is kept below the folder of caches."""
    return folder / "stores" / f"{hashlib.sha256(url.encode(errors='surrogatepass')).hexdigest()[:32]}.json"


def recall_store(path: Path, url: str) -> KnownStore:
    """Return what is known; nothing where the file is not there or is damaged, whoever damaged it."""
    payload = read_cache(path)
    if payload is None or payload.get("format") != FORMAT or payload.get("url") != url:
        return KnownStore()
    try:
        return _from_json(payload)
    except (RecordError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return KnownStore()


def keep_store(path: Path, url: str, known: KnownStore) -> None:
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


def _from_json(payload: Mapping[str, object]) -> KnownStore:
    table, refused = payload["table"], payload["refused"]
    if not isinstance(table, dict) or not isinstance(refused, dict):
        raise TypeError("the cache is damaged")
    families = _families(_rows(payload["families"]), from_table(table))
    shelves, numbers = {}, {}
    for place, stamp, folders, names, of_names in _rows(payload["shelves"]):
        shelves[place] = Shelf(place=place, stamp=stamp, folders=_texts(folders), names=_texts(names))
        numbers[place] = of_names
        if len(names) != len(of_names) or not families.keys() | {UNREAD, REFUSED} >= set(of_names):
            raise ValueError("the cache is damaged")
    return KnownStore(shelves=shelves, numbers=numbers, families=families, refused=refused)


def _families(rows: list[list[Any]], trials: list[Trial]) -> dict[int, Family]:
    families, start = {}, 0
    for number, (count, firsts, others) in enumerate(rows):
        own = tuple(trials[start : start + count])
        start += count
        ids = {name for trial in own for name in (trial.trial_id, trial.launch_id) if name}
        ids.update(_texts(others))
        families[number] = Family(trials=own, firsts=_texts(firsts), ids=frozenset(ids))
        if not 0 < count == len(own) == len(firsts):
            raise ValueError("the cache is damaged")
    return families


def _other_ids(family: Family) -> list[str]:
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
