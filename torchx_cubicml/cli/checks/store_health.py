"""Checks of the store: its place, what it holds, the trials that its objects tell of, and the local cache of both."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, skipped, some, warning, wrong
from torchx_cubicml.cli.component_command import follow_up
from torchx_cubicml.errors import CubicMLError, StoreError
from torchx_cubicml.launch.scheduler import folder_doubt
from torchx_cubicml.records.event import TUNER, Event, EventKind
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import State, short_id
from torchx_cubicml.settings import cache_folder
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.event_groups import EventGroup
from torchx_cubicml.store.file_cache import read_cache
from torchx_cubicml.store.index_cache import StoreIndex, cache_path, load_index
from torchx_cubicml.store.obstacle import nearest_existing, place_obstacle
from torchx_cubicml.store.segments import segment_of
from torchx_cubicml.store.url import split_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_OFFSET_S = 60.0
"""Seconds by which two clocks may differ: far above a file system's ticks, far below what confuses a person."""
OWN_FOLDERS = "stores", "suggestions"  # of ``store.index_cache`` and ``rewrite.cache``: other files are not ours
_CURES = {
    "no space left": "free space on that file system, or name another store (--store URL)",
    "disk quota": "free space within your quota, or name another store (--store URL)",
    "not a folder": "a store is a folder: name another place (--store URL), or move the file away",
    "permission": "let your user write there, or name another store (--store URL)",
    "access": "let your credentials write there, or name another store (--store URL)",
    "read-only": "name a store on a file system that can be written (--store URL)",
    "of the kernel": "name a folder on a disk (--store URL)",
    " needs ": "install it here and in the job's image",
    "longer than": "check the network and the server; a folder: check that its file system answers",
    "": "check the place, the network and the credentials, or name another store (--store URL)",
}
_MIB = 1024 * 1024
LEAST_BYTES = 64 * _MIB  # an event takes a few hundred bytes: room for some 10,000 launches at 4 KiB a file
LEAST_FILES = 10_000
_KEPT = timedelta(days=7)  # that `history compact` leaves alone by default
# A launch reads a store for at most 5 s. 1,000 objects took 2.2 s from an S3 server on the same host; a folder is
# some hundred times as fast.
MOST_REMOTE, MOST_LOCAL = 1_000, 20_000
_SILENCE = timedelta(days=7)


def _url(context: CheckContext) -> Finding:
    """Check without asking its server that the URL is legal, has its client, and is visible to jobs."""
    problem, args = context.address_problem, context.args
    if problem:
        correct = "correct --store, `store` of .torchxconfig or TORCHX_CUBICML_STORE"
        return wrong(problem, _CURES[" needs "] if " needs " in problem else correct)
    doubt = folder_doubt(context.scheduler) if context.is_local else ""
    if doubt and (args.scheduler or args.command or args.job):  # else the scheduler is a guess, TorchX's default
        cure = "use an object store (--store s3://...), or mount the folder; --job tells for sure"
        return warning(f"{context.url} {doubt}", cure)
    return ok(context.url)


def _write(context: CheckContext) -> Finding:
    """Check it with a small object that is written, read back and removed; ``--no-probe`` writes none."""
    probe, place = context.probe, context.url
    if probe.obstacle:
        return wrong(probe.obstacle, write_cure(probe.obstacle))
    if probe.presence == Presence.ABSENT and not probe.is_written:
        return ok(f"{place} does not exist yet; the first launch can make it")
    known = "nothing known prevents writing (no probe was written)"
    written = "a probe was written, read back and removed" if probe.is_written else known
    if probe.presence == Presence.OTHER:
        cure = "check --store for a typing error; else the first launch makes a store among them"
        return warning(f"{place} holds other files and no store: {written}", cure)
    return ok(f"{place}: {written}")


def write_cure(obstacle: str) -> str:
    """Return the cure of an obstacle to writing."""
    return next(cure for part, cure in _CURES.items() if part in obstacle.lower())


def _space(context: CheckContext) -> Finding:
    """Check free bytes and free files of the store's file system, as for this user."""
    if not context.is_local:
        return skipped("known of a local store alone")
    place = nearest_existing(Path(split_url(context.url)[1]))
    status, is_root = os.statvfs(place), os.geteuid() == 0
    free = (status.f_bfree if is_root else status.f_bavail) * status.f_frsize
    files = status.f_ffree if is_root else status.f_favail
    left = {f"{free / _MIB:,.1f} MiB": free / LEAST_BYTES} if status.f_blocks else {}
    left |= {f"{files:,} files": files / LEAST_FILES} if status.f_files else {}
    found = f"{' and '.join(left) or 'nobody knows how many bytes'} are left on the file system of {place}"
    if min(left.values(), default=1.0) >= 1.0:
        return ok(found)
    cure = f"free space on the file system of {place}, or name another store (--store URL)"
    return warning(found, cure) if all(left.values()) else wrong(found, cure)


def _clock(context: CheckContext) -> Finding:
    """Check the stamp that the store gave the probe."""
    offset = context.probe.clock_offset_s
    if offset is None:
        return skipped("no probe was written, or the store does not tell when")
    if abs(offset) > MAX_OFFSET_S:
        return wrong_clock("the store's clock", offset)
    return ok(f"agrees with the clock here within {MAX_OFFSET_S:g} s")


def wrong_clock(whose: str, offset_s: float) -> Finding:
    """Return the finding of a clock that is ahead of the one here, or behind if negative.

    >>> wrong_clock("the store's clock", -3600.0).found
    "the store's clock is 3600 s behind the one here"
    """
    found = f"{whose} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the one here"
    return wrong(found, "set both clocks by NTP (timedatectl); signed requests and the order of records depend on them")


def _objects(context: CheckContext) -> Finding:
    """Check, without the cache, that each object can be read and holds an event."""
    reading = context.reading
    if isinstance(reading, CubicMLError):
        compact = follow_up("history", "compact", store=context.url)
        cure = f"check the network and the credentials; {compact} makes a large store quick to read"
        return wrong(str(reading), cure)
    found, unreadable = f"{len(context.trials)} trials in {len(context.events)} readable objects", reading.skipped()
    if unreadable:
        found += f"; {len(unreadable)} unreadable object{'s' if len(unreadable) > 1 else ''}: {some(unreadable)}"
        return warning(found, "launches skip them; move them out of the store once you have seen what they are")
    return ok(found)


def _compaction(context: CheckContext) -> Finding:
    """Check the number of small objects that ``history compact`` would merge: they slow down each reading."""
    first_kept = f"{datetime.now(UTC) - _KEPT:%Y-%m-%d}"
    days = [Path(place).parent.name for place in context.events if not segment_of(place)]
    old = sum(day < first_kept for day in days)
    found = f"{old:,} objects older than {_KEPT.days} days are not compacted"
    if old > (MOST_LOCAL if context.is_local else MOST_REMOTE):
        cure = follow_up("history", "compact", store=context.url)
        return warning(f"{found}: launches may not read the store in time", cure)
    return ok(found)


def _conflicts(context: CheckContext) -> Finding:
    """Check that the events of each trial tell of one program, one config and one end, thus of one launch."""
    trials: defaultdict[str, list[Event]] = defaultdict(list)
    for event in context.events.values():
        if event.trial_id and event.kind is not EventKind.PLANNED and event.writer != TUNER:
            trials[event.trial_id].append(event)
    if found := [f"{short_id(name)} has {why}" for name, events in trials.items() if (why := _conflict(events))]:
        cure = (
            "two launches wrote under one id, as after copying a job's environment: no number of such a trial is to be "
            "trusted; move its objects out of the store, and unset TORCHX_CUBICML_LAUNCH where jobs are submitted"
        )
        return wrong(some(found), cure)
    return ok(f"{len(trials)} trials, each of one launch")


def _conflict(events: Sequence[Event]) -> str:
    """Return the fields in which events of one trial disagree; empty if they agree. Another attempt may differ."""
    programs = sorted({str(event.workload["program"]) for event in events if "program" in event.workload})
    if len(programs) > 1:
        return f"the programs {' and '.join(programs)}"
    first: dict[tuple[object, ...], Event] = {}
    for event in events:
        other = first.setdefault((event.attempt, event.writer, event.sequence, event.kind), event)
        for name in ("config", "state", "measurement"):
            if getattr(event, name) != getattr(other, name):
                return f"{event.kind} events of {event.writer or 'one writer'} with different {name}"
    return ""


def _ends(context: CheckContext) -> Finding:
    """Check trials that count as running by the time of their last event: killed jobs cannot record their end."""
    now, last = datetime.now(UTC), context.groups.last_events()
    running = [trial.trial_id for trial in context.trials if trial.state is State.RUNNING]
    times = {name: parse_time(last.get(name, "")) for name in running}
    if silent := [short_id(name) for name, time in times.items() if time is not None and now - time > _SILENCE]:
        found = f"{len(silent)} trials count as running and last reported over {_SILENCE.days} days ago: {some(silent)}"
        cure = (
            "if their jobs are gone, they were killed at once: give jobs some seconds to end (Slurm's KillWait), and "
            "raise TORCHX_CUBICML_WRITE_DEADLINE_S in the job"
        )
        return warning(found, cure)
    return ok(f"{len(running)} trials count as running, none of them silent for over {_SILENCE.days} days")


def _clocks(context: CheckContext) -> Finding:
    """Check that no event is later than now: else its clock is wrong, or the one here."""
    now = datetime.now(UTC)
    timed = [(parse_time(event.time) or now, event.trial_id or event.launch_id) for event in context.events.values()]
    ahead = {name: seconds for time, name in sorted(timed) if (seconds := (time - now).total_seconds()) > MAX_OFFSET_S}
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
    if bad := [str(path) for path in files if read_cache(path) is None]:
        found = f"{len(bad)} damaged file{'s' if len(bad) > 1 else ''}, or writable by others: {some(bad)}"
        return warning(found, f"rm {shlex.join(bad)} (what they held is computed again)")
    with suppress(StoreError):  # nothing was read to compare with
        path = cache_path(folder, context.url)
        if stale := _stale_trials(context.events, load_index(path, context.url)):
            cure = f"rm {shlex.quote(str(path))} (it is made again; objects of a store must never be edited in place)"
            return wrong(f"the index {path} is stale: it differs from the store in {some(stale)}", cure)
    return ok(f"{folder}: {len(files)} files")


def _stale_trials(events: Mapping[str, Event], index: StoreIndex) -> list[str]:
    """Return the trials that a cached index tells otherwise than the very objects that it lists for them.

    Trials are compared as folded from their own events: what other trials change in them is in no index. A group that
    has lost an object since is left out: its next reader reads it anew.
    """
    places, stale = defaultdict[int, set[str]](set), list[str]()
    for folder, numbers in index.objects.numbers.items():
        for name, number in numbers.items():
            places[number].add(f"{folder}/{name}")
    for number, group in index.groups.by_number.items():
        if events.keys() >= places[number]:
            fresh = EventGroup.of({place: events[place] for place in places[number]}).trials
            stale += [trial.trial_id for trial in fresh if trial not in group.trials]
    return sorted(stale)


CHECKS = {
    "store: URL": _url,
    "store: write": _write,
    "store: space": _space,
    "store: clock": _clock,
    "store: objects": _objects,
    "store: compaction": _compaction,
    "trials: conflicts": _conflicts,
    "trials: ends": _ends,
    "trials: clocks": _clocks,
    "cache": _cache,
}
