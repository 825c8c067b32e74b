"""Context of the checks: the options, and what several checks need, found out once; and the findings of checks."""

from __future__ import annotations

import configparser
from argparse import Namespace
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import configured, split_command
from torchx_cubicml.cli.component_command import is_launcher_command, with_scheduler
from torchx_cubicml.errors import CubicMLError, LaunchError, RecordError, StoreError
from torchx_cubicml.launch import ComponentLaunch, workload_of
from torchx_cubicml.launch.scheduler import recorded_scheduler, scheduler_of
from torchx_cubicml.records.event import Event, trials_of
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.settings import default_store_url, option
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.deadline import within
from torchx_cubicml.store.obstacle import write_obstacle
from torchx_cubicml.store.probe import StoreProbe, probe_store
from torchx_cubicml.store.trial_store import TOO_LARGE, decode_event, open_backend
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, absolute_url, split_url

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial

READ_DEADLINE_S = 60.0
_PROBE_DEADLINE_S = 30.0


class Level(StrEnum):
    """Level of a finding."""

    OK = "ok"
    SKIPPED = "skipped"  # not checked, for the reason that the finding gives
    WARNING = "warning"  # launches go on, and something is lost or doubtful
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of one check.

    Args:
        level: its level.
        found: text of what was found.
        cure: text of what to do; empty where nothing need be done.
    """

    level: Level
    found: str
    cure: str = ""

    def to_json(self, name: str) -> dict[str, str]:
        """Return the finding of the check ``name`` as JSON, with secrets masked."""
        return {"check": name, "level": str(self.level), "found": shown(self.found), "cure": shown(self.cure)}


def ok(found: str) -> Finding:
    """Return a finding that needs no cure."""
    return Finding(level=Level.OK, found=found)


def skipped(found: str) -> Finding:
    """Return the finding of a check that was not made."""
    return Finding(level=Level.SKIPPED, found=found)


def warning(found: str, cure: str) -> Finding:
    """Return a finding of something lost or doubtful."""
    return Finding(level=Level.WARNING, found=found, cure=cure)


def wrong(found: str, cure: str) -> Finding:
    """Return a finding of something broken."""
    return Finding(level=Level.WRONG, found=found, cure=cure)


def shown(text: str) -> str:
    """Return a text on one line, with secrets masked and control characters escaped."""
    return printable(mask(" ".join(text.split())))


def some(texts: list[str], *, most: int = 3) -> str:
    """Return the first of some texts, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"]), some(["a"])
    ('a; b; c and 2 more', 'a')
    """
    return "; ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvents:
    """Objects of a store as read.

    Args:
        events: event of each readable object, by the object's path.
        unreadable: unreadable objects, each with the cause.
        problem: reason why nothing was read; empty if the store was read.
        cause: error that ended the reading; empty without one.
    """

    events: dict[str, Event] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    problem: str = ""
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """Options of the doctor, and what its checks share.

    Args:
        args: options of the command.
    """

    args: Namespace

    @cached_property
    def url(self) -> str:
        """Absolute URL of the store.

        Raises:
            StoreError: the URL is not legal.
        """
        return absolute_url(self._setting("store") or default_store_url(), for_launch=True)

    @property
    def is_local(self) -> bool:
        """Return whether the store is a folder.

        Raises:
            StoreError: the URL is not legal.
        """
        return split_url(self.url)[0] in LOCAL_PROTOCOLS

    @cached_property
    def space_file(self) -> str:
        """Path of the space file; empty without one."""
        return self._setting("space")

    def _setting(self, name: str) -> str:
        """Return an option as a launch settles it; a ``.torchxconfig`` that cannot be read is another check's."""
        try:
            in_file = configured(name)
        except (OSError, ValueError, configparser.Error):
            in_file = None
        return getattr(self.args, name) or in_file or option(name) or ""

    @cached_property
    def scheduler(self) -> str:
        """Scheduler of the options, else of ``.torchxconfig``, of the latest launch of the program, or of TorchX."""
        if self.args.scheduler:
            return str(self.args.scheduler)
        typed = self._parsed[0] if self.args.command and not self.is_torchrun else None
        workload = {} if typed is None else workload_of(typed.launch)
        return recorded_scheduler(self.trials, workload) or scheduler_of([])

    @cached_property
    def probe(self) -> StoreProbe:
        """Probe of the store from this process."""
        return self._probed[0]

    @cached_property
    def address_problem(self) -> str:
        """Reason why the store's URL cannot be used here: it is not legal, or lacks its client; empty without one."""
        try:
            return "" if self.is_local else write_obstacle(self.url)
        except StoreError as error:
            return str(error)

    @cached_property
    def _probed(self) -> tuple[StoreProbe, bool]:
        """Probe of the store, and whether the store answers at all."""
        if self.address_problem:
            return StoreProbe(presence="", obstacle=self.address_problem), False
        url, writes = self.url, not self.args.no_probe
        try:
            return within(_PROBE_DEADLINE_S, lambda: probe_store(url, writes=writes), what="reaching the store"), True
        except CubicMLError as error:
            return StoreProbe(presence="", obstacle=str(error)), False

    @cached_property
    def stored(self) -> StoredEvents:
        """All objects of the store, read without the cache."""
        if self.probe.presence == Presence.ABSENT.name.lower():
            return StoredEvents(problem="the store does not exist yet")
        if not self._probed[1]:
            return StoredEvents(problem="the store was not read: it cannot be reached")
        url = self.url
        try:
            return within(READ_DEADLINE_S, lambda: _read(url), what="reading the store")
        except CubicMLError as error:
            return StoredEvents(problem="the store was not read", cause=str(error))

    @cached_property
    def trials(self) -> list[Trial]:
        """Trials of the store."""
        return trials_of(self.stored.events.values())

    @cached_property
    def is_torchrun(self) -> bool:
        """Return whether the command is one of torchrun or another launcher."""
        return bool(self.args.command) and is_launcher_command(split_command(self.args.command)[0])

    @cached_property
    def component(self) -> ComponentLaunch:
        """Component of the command, with its scheduler.

        Raises:
            LaunchError: the command cannot be read.
        """
        typed, problem = self._parsed
        if typed is None:
            raise LaunchError(problem)
        return with_scheduler(typed, Namespace(**{**vars(self.args), "scheduler": self.scheduler}))

    @cached_property
    def _parsed(self) -> tuple[ComponentLaunch | None, str]:
        """Component of the command as typed, ``None`` with the reason where it cannot be read."""
        try:
            name, words = split_command(self.args.command)
            return ComponentLaunch.parse(name, words), ""
        except LaunchError as error:
            return None, str(error)
        except SystemExit:
            return None, f"{name} rejects its arguments; see the line above"


def _read(url: str) -> StoredEvents:
    folder = open_backend(url)
    listing = folder.list_objects()
    unreadable = [*listing.problems, *(f"{place} ({TOO_LARGE})" for place in sorted(listing.too_large))]
    events = {}
    for place, content in folder.read([each for each in listing.places() if each not in listing.too_large]):
        try:
            events[place] = decode_event(content)
        except RecordError as error:
            unreadable.append(f"{place} ({error})")
    return StoredEvents(events=events, unreadable=tuple(unreadable))
