"""Check of the local cache: writable, readable, and telling the same trials as the store."""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.context import READ_DEADLINE_S
from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, some, warning, wrong
from torchx_cubicml.settings import cache_folder
from torchx_cubicml.store.deadline import within

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.cli.checks.context import CheckContext
    from torchx_cubicml.store.index_cache import StoreIndex

NAME, PLACE = "cache", 150
OWN_FOLDERS = "stores", "suggestions"  # of ``store.index_cache`` and ``rewrite.cache``: other files are not ours


def check(context: CheckContext) -> Finding:
    """Check the folder, each file in it, and the index of this store."""
    from torchx_cubicml.store.file_cache import read_cache
    from torchx_cubicml.store.obstacle import place_obstacle

    folder = cache_folder()
    if folder is None:
        return skipped("switched off, or there is no home directory")
    if obstacle := place_obstacle(folder):
        cure = (
            "set TORCHX_CUBICML_CACHE to a folder of your own, or to off; without it each launch reads the whole store"
        )
        return warning(f"cannot write to {folder}: {obstacle}", cure)
    files = sorted(path for name in OWN_FOLDERS for path in (folder / name).glob("[!.]*.json"))
    bad = [path for path in files if read_cache(path) is None]
    if bad:
        count = f"{len(bad)} damaged file{'s' if len(bad) > 1 else ''}"
        found = f"{count}, or writable by others: {some([str(path) for path in bad])}"
        return warning(found, f"rm {_words(bad)} (what they held is computed again)")
    stale = _stale_trials(context, folder)
    if stale:
        path = _index_path(context, folder)
        found = f"the index {path} is stale: it differs from the store in {some(stale)}"
        return wrong(found, f"rm {_words([path])} (it is made again; objects of a store must never be edited in place)")
    return ok(f"{folder}: {len(files)} files")


def _stale_trials(context: CheckContext, folder: Path) -> list[str]:
    """Return the trials that the cached index tells otherwise than the very objects that it lists for them.

    Trials are compared as folded from their own events: what other trials change in them is in no index. Objects that
    were written after ``context.stored`` was read are left out with their group.
    """
    from torchx_cubicml.store.event_groups import EventGroup
    from torchx_cubicml.store.index_cache import load_index
    from torchx_cubicml.store.reader import StoreReader
    from torchx_cubicml.store.trial_store import TrialStore

    if context.stored.problem or not (path := _index_path(context, folder)).exists():
        return []
    index = load_index(path, context.url)
    reader = StoreReader(TrialStore(context.url), index)  # in memory alone
    within(READ_DEADLINE_S, reader.read, what="reading the store")
    places, events, stale = _places_by_group(index), context.stored.events, list[str]()
    for number in index.groups.without_events(places):
        if events.keys() >= places[number]:
            told = {trial.trial_id: trial for trial in index.groups.by_number[number].trials}
            fresh = EventGroup.of({place: events[place] for place in places[number]}).trials
            stale += [trial.trial_id for trial in fresh if told.get(trial.trial_id) != trial]
    return sorted(stale)


def _places_by_group(index: StoreIndex) -> dict[int, set[str]]:
    places: defaultdict[int, set[str]] = defaultdict(set)
    for folder, numbers in index.objects.numbers.items():
        for name, number in numbers.items():
            places[number].add(f"{folder}/{name}")
    return places


def _index_path(context: CheckContext, folder: Path) -> Path:
    from torchx_cubicml.store.index_cache import cache_path

    return cache_path(folder, context.url)


def _words(paths: list[Path]) -> str:
    return " ".join(shlex.quote(str(path)) for path in paths)
