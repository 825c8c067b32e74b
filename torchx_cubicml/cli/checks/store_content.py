"""Checks of what the store holds: its objects, the trials that they tell of, and the local cache of both."""

from __future__ import annotations

import shlex
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.context import READ_DEADLINE_S, CheckContext, Finding, ok, skipped, some, warning, wrong
from torchx_cubicml.cli.checks.store_place import MAX_OFFSET_S
from torchx_cubicml.cli.component_command import follow_up
from torchx_cubicml.records.event import TUNER, Event, EventKind
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import State, short_id
from torchx_cubicml.settings import cache_folder
from torchx_cubicml.store.deadline import within
from torchx_cubicml.store.event_groups import EventGroup
from torchx_cubicml.store.file_cache import read_cache
from torchx_cubicml.store.index_cache import StoreIndex, cache_path, load_index
from torchx_cubicml.store.obstacle import place_obstacle
from torchx_cubicml.store.reader import StoreReader
from torchx_cubicml.store.segments import segment_of
from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OWN_FOLDERS = "stores", "suggestions"  # of ``store.index_cache`` and ``rewrite.cache``: other files are not ours
_KEPT_DAYS = 7  # that `history compact` leaves alone by default
# A launch reads a store for at most 5 s. 1,000 objects took 2.2 s from an S3 server on the same host; a folder is
# some hundred times as fast.
_MOST_REMOTE, _MOST_LOCAL = 1_000, 20_000
_SILENCE = timedelta(days=7)


def _objects(context: CheckContext) -> Finding:
    """Check, without the cache, that each object can be read and holds an event."""
    stored = context.stored
    if stored.cause:
        compact = follow_up("history", "compact", store=context.url)
        cure = f"check the network and the credentials; {compact} makes a large store quick to read"
        return wrong(stored.cause, cure)
    if stored.problem:
        return skipped(stored.problem)
    found = f"{len(context.trials)} trials in {len(stored.events)} readable objects"
    if stored.unreadable:
        count = len(stored.unreadable)
        text = f"{found}; {count} unreadable object{'s' if count > 1 else ''}: {some(list(stored.unreadable))}"
        return warning(text, "launches skip them; move them out of the store once you have seen what they are")
    return ok(found)


def _compaction(context: CheckContext) -> Finding:
    """Check the number of small objects that ``history compact`` would merge: they slow down each reading."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    first_kept = f"{datetime.now(UTC) - timedelta(days=_KEPT_DAYS):%Y-%m-%d}"
    days = [place.split("/")[-2:-1] for place in context.stored.events if not segment_of(place)]
    old = sum(1 for day in days if day and day[0] < first_kept)
    found = f"{old:,} objects older than {_KEPT_DAYS} days are not compacted"
    if old > (_MOST_LOCAL if context.is_local else _MOST_REMOTE):
        cure = follow_up("history", "compact", store=context.url)
        return warning(f"{found}: launches may not read the store in time", cure)
    return ok(found)


def _conflicts(context: CheckContext) -> Finding:
    """Check that the events of each trial tell of one program, one config and one end, thus of one launch."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    groups: defaultdict[str, list[Event]] = defaultdict(list)
    for event in context.stored.events.values():
        if event.trial_id and event.kind is not EventKind.PLANNED and event.writer != TUNER:
            groups[event.trial_id].append(event)
    found = [f"{short_id(name)} has {why}" for name, events in groups.items() if (why := _conflict(events))]
    if found:
        cure = (
            "two launches wrote under one id, as after copying a job's environment: no number of such a trial is to be "
            "trusted; move its objects out of the store, and unset TORCHX_CUBICML_LAUNCH where jobs are submitted"
        )
        return wrong(some(found), cure)
    return ok(f"{len(groups)} trials, each of one launch")


def _conflict(events: Sequence[Event]) -> str:
    """Return the fields in which events of one trial disagree; empty if they agree. Another attempt may differ."""
    programs = {str(event.workload["program"]) for event in events if "program" in event.workload}
    if len(programs) > 1:
        return f"the programs {' and '.join(sorted(programs))}"
    written: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in events:
        written[event.attempt, event.writer, event.sequence, event.kind].append(event)
    for (_, writer, _, kind), same in written.items():
        for name in ("config", "state", "measurement"):
            if any(getattr(event, name) != getattr(same[0], name) for event in same):
                return f"{len(same)} {kind} events of {writer or 'one writer'} with different {name}"
    return ""


def _ends(context: CheckContext) -> Finding:
    """Check trials that count as running by the time of their last event: killed jobs cannot record their end."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    timed = ((event.trial_id, parse_time(event.time)) for event in context.stored.events.values())
    last = dict(sorted((name, time) for name, time in timed if time is not None))
    now = datetime.now(UTC)
    running = [trial.trial_id for trial in context.trials if trial.state is State.RUNNING]
    silent = [short_id(name) for name in running if name in last and now - last[name] > _SILENCE]
    if silent:
        found = f"{len(silent)} trials count as running and last reported over {_SILENCE.days} days ago: {some(silent)}"
        cure = (
            "if their jobs are gone, they were killed at once: give jobs some seconds to end (Slurm's KillWait), and "
            "raise TORCHX_CUBICML_WRITE_DEADLINE_S in the job"
        )
        return warning(found, cure)
    return ok(f"{len(running)} trials count as running, none of them silent for over {_SILENCE.days} days")


def _clocks(context: CheckContext) -> Finding:
    """Check that no event is later than now: else its clock is wrong, or the one here."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    now = datetime.now(UTC)
    ahead: dict[str, float] = {}
    for event in context.stored.events.values():
        time = parse_time(event.time)
        seconds = (time - now).total_seconds() if time is not None else 0.0
        if seconds > MAX_OFFSET_S:
            name = event.trial_id or event.launch_id
            ahead[name] = max(seconds, ahead.get(name, 0.0))
    if ahead:
        times = some([f"{short_id(name)} by {seconds:.0f} s" for name, seconds in ahead.items()])
        found = f"{len(ahead)} trial{'s are' if len(ahead) > 1 else ' is'} of the future: {times}"
        return wrong(found, f"set the clock of their hosts, or the one here (it says {now:%Y-%m-%d %H:%M} UTC), by NTP")
    return ok("no event is later than now")


def _cache(context: CheckContext) -> Finding:
    """Check the folder of the cache, each file in it, and that its index tells the same trials as the store."""
    folder = cache_folder()
    if folder is None:
        return skipped("switched off, or there is no home directory")
    if obstacle := place_obstacle(folder):
        cure = "set TORCHX_CUBICML_CACHE to a folder of your own, or to off"
        return warning(f"cannot write to {folder}: {obstacle}", f"{cure}; without it each launch reads the whole store")
    files = sorted(path for name in OWN_FOLDERS for path in (folder / name).glob("[!.]*.json"))
    bad = [path for path in files if read_cache(path) is None]
    if bad:
        count = f"{len(bad)} damaged file{'s' if len(bad) > 1 else ''}"
        found = f"{count}, or writable by others: {some([str(path) for path in bad])}"
        return warning(found, f"rm {shlex.join(map(str, bad))} (what they held is computed again)")
    if stale := _stale_trials(context, folder):
        index = cache_path(folder, context.url)
        cure = f"rm {shlex.quote(str(index))} (it is made again; objects of a store must never be edited in place)"
        return wrong(f"the index {index} is stale: it differs from the store in {some(stale)}", cure)
    return ok(f"{folder}: {len(files)} files")


def _stale_trials(context: CheckContext, folder: Path) -> list[str]:
    """Return the trials that the cached index tells otherwise than the very objects that it lists for them.

    Trials are compared as folded from their own events: what other trials change in them is in no index. Objects that
    were written after ``context.stored`` was read are left out with their group.
    """
    if context.stored.problem or not (path := cache_path(folder, context.url)).exists():
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


CHECKS = {
    "store: objects": _objects,
    "store: compaction": _compaction,
    "trials: conflicts": _conflicts,
    "trials: ends": _ends,
    "trials: clocks": _clocks,
    "cache": _cache,
}
