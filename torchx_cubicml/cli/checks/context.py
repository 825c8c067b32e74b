"""Context of the checks: the options, and what several checks need, found out once; and the findings of checks."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from torchx_cubicml.cli.component_command import on_latest_scheduler, typed_command
from torchx_cubicml.errors import CubicMLError, LaunchError, StoreError
from torchx_cubicml.launch import ComponentLaunch
from torchx_cubicml.launch.scheduler import recorded_scheduler, scheduler_of
from torchx_cubicml.rewrite.rewriter import Options
from torchx_cubicml.settings import default_store_url, option
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.deadline import within
from torchx_cubicml.store.index_cache import StoreIndex
from torchx_cubicml.store.obstacle import write_obstacle
from torchx_cubicml.store.probe import StoreProbe, probe_store
from torchx_cubicml.store.reader import StoreReader
from torchx_cubicml.store.trial_store import TrialStore
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, absolute_url, split_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.cli.component_command import TypedCommand
    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.event_groups import EventGroups

PROBE_DEADLINE_S, READ_DEADLINE_S = 30.0, 60.0
_SILENT = "silent"  # presence of a store that did not answer in time


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of one check.

    Args:
        level: ``ok``; ``skipped``: not checked, for the reason found; ``warning``: launches go on, and something is
            lost or doubtful; or ``wrong``.
        found: text of what was found.
        cure: text of what to do; empty where nothing need be done.
    """

    level: str
    found: str
    cure: str = ""


ok, skipped, warning, wrong = (partial(Finding, level) for level in ("ok", "skipped", "warning", "wrong"))


def some(texts: list[str], *, most: int = 3) -> str:
    """Return the first of some texts, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"]), some(["a"])
    ('a; b; c and 2 more', 'a')
    """
    return "; ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """Options of the doctor, and what its checks share.

    Args:
        args: options of the command.
    """

    args: Namespace

    @cached_property
    def options(self) -> Options:
        """Options as a launch settles them; a ``.torchxconfig`` that cannot be read is another check's."""
        space, store = self.args.space, self.args.store or ""
        try:
            return Options.resolved(space=space, store=store)
        except LaunchError:
            return Options(space=space or option("space") or "", store=store or option("store") or "")

    @cached_property
    def url(self) -> str:
        """Absolute URL of the store.

        Raises:
            StoreError: the URL is not legal.
        """
        return absolute_url(self.options.store or default_store_url(), for_launch=True)

    @property
    def is_local(self) -> bool:
        """Return whether the store is a folder.

        Raises:
            StoreError: the URL is not legal.
        """
        return split_url(self.url)[0] in LOCAL_PROTOCOLS

    @cached_property
    def address_problem(self) -> str:
        """Reason why the store's URL cannot be used here: it is not legal, or lacks its client; empty without one."""
        try:
            return "" if self.is_local else write_obstacle(self.url)
        except StoreError as error:
            return str(error)

    @cached_property
    def probe(self) -> StoreProbe:
        """Probe of the store from this process.

        Raises:
            StoreError: its URL cannot be used.
        """
        if self.address_problem:
            raise StoreError("the store's URL cannot be used")
        url, writes = self.url, not self.args.no_probe
        try:
            return within(PROBE_DEADLINE_S, lambda: probe_store(url, writes=writes), what="reaching the store")
        except CubicMLError as error:
            return StoreProbe(presence=_SILENT, obstacle=str(error))

    @cached_property
    def reading(self) -> StoreReader | CubicMLError:
        """Reader that has read all objects of the store, without the cache, or the error that ended the reading.

        Raises:
            StoreError: there is nothing to read.
        """
        if self.probe.presence == Presence.ABSENT:
            raise StoreError("the store does not exist yet")
        if self.probe.presence == _SILENT:
            raise StoreError("the store was not read: it cannot be reached")
        try:
            reader = StoreReader(TrialStore(self.url), StoreIndex())
            within(READ_DEADLINE_S, reader.read, what="reading the store")
        except CubicMLError as error:
            return error
        return reader

    @property
    def groups(self) -> EventGroups:
        """Events of the store, by the trials that they tell of.

        Raises:
            StoreError: the store was not read.
        """
        if isinstance(self.reading, CubicMLError):
            raise StoreError("the store was not read")
        return self.reading.index.groups

    @cached_property
    def events(self) -> dict[str, Event]:
        """Path -> event of the readable objects of the store.

        Raises:
            StoreError: the store was not read.
        """
        return {place: event for group in self.groups.by_number.values() for place, event in group.events.items()}

    @cached_property
    def trials(self) -> list[Trial]:
        """Trials of the store; none where it was not read."""
        try:
            return self.groups.trials()
        except StoreError:
            return []

    @cached_property
    def typed(self) -> TypedCommand | LaunchError:
        """Command, a component's on its scheduler; or the reason why it cannot be read."""
        args = Namespace(**{**vars(self.args), "scheduler": ""})  # by which a launcher's command is known as such
        try:
            typed = typed_command(args, env={})
            args.scheduler = self.args.scheduler
            return on_latest_scheduler(typed, args, self.trials)
        except LaunchError as error:
            return error
        except SystemExit:
            return LaunchError("the component rejects its arguments; see the line above")

    @cached_property
    def scheduler(self) -> str:
        """Scheduler of the options, else of ``.torchxconfig``, of the latest launch of the program, or of TorchX."""
        if isinstance(self.typed, ComponentLaunch):
            return self.typed.launch.scheduler
        return self.args.scheduler or recorded_scheduler(self.trials, {}) or scheduler_of([])


def finding_of(check: Callable[[CheckContext], Finding], context: CheckContext) -> Finding:
    """Return the finding of a check; one that fails is itself a finding."""
    try:
        return check(context)
    except CubicMLError as error:
        return skipped(str(error))  # another check tells the cure
    except Exception as error:  # noqa: BLE001 - one check that fails must not hide the others
        return warning(f"the check failed: {type(error).__name__}: {error}", "report this line; the other checks count")
