"""Progress of work that takes more than two seconds: a bar with the time left, on a terminal only."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING

from torchx_cubicml.cli.terminal import open_console
from torchx_cubicml.records.job_time import seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from rich.progress import Progress, Task

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.reader import StoreSnapshot

DELAY_S = 2.0
"""Seconds of work before the bar is shown."""
_READ_DEADLINE_S = 60.0
_UPDATE_S = 0.05


@contextmanager
def progress(what: str, *, is_json: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr while the block runs, if that takes long and both outputs are a terminal.

    Nothing is shown where stdout or stderr is a file or a pipe, or the result is JSON. The bar is gone afterwards.

    Args:
        what: work that is done.
        is_json: whether the result is printed as JSON.

    Yields:
        Function that takes the number of parts done and of all parts. Without a call, the time spent is shown instead
        of the time left.
    """
    if is_json or not (_is_terminal(sys.stdout) and _is_terminal(sys.stderr)):
        yield lambda _done, _total: None
        return
    bar = _bar()
    task = bar.add_task(what, total=None)
    timer = Timer(DELAY_S, bar.start)
    timer.daemon = True
    timer.start()
    updated = -_UPDATE_S

    def update(done: int, total: int) -> None:
        nonlocal updated
        now = monotonic()
        if done >= total or now - updated >= _UPDATE_S:  # an update takes longer than a part of quick work
            updated = now
            bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def read_store(url: str, *, is_json: bool, may_be_absent: bool = False) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the trials of a store and warnings about unreadable objects, with a bar while it is read.

    Args:
        url: URL as ``TrialStore`` accepts it.
        is_json: whether the result is printed as JSON.
        may_be_absent: whether a store that does not exist yet is empty.

    Raises:
        StoreError: there is no store at the URL, or it cannot be read.
    """
    if not may_be_absent:
        snapshot = read_snapshot(url, is_json=is_json)
        return snapshot.trials, snapshot.warnings
    from torchx_cubicml.store import read_trials

    with progress("reading the store", is_json=is_json) as report:
        return read_trials(url, deadline_s=_READ_DEADLINE_S, report=report)


def read_snapshot(url: str, *, is_json: bool) -> StoreSnapshot:
    """Return the snapshot of an existing store; see ``read_store``."""
    from torchx_cubicml.store.presence import recorded_snapshot

    with progress("reading the store", is_json=is_json) as report:
        return recorded_snapshot(url, deadline_s=_READ_DEADLINE_S, report=report)


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class TimeColumn(ProgressColumn):
        """Column with the time left where it can be told, else with the time spent."""

        def render(self, task: Task) -> Text:
            return Text(_time_text(task))

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), TimeColumn())
    return Progress(*columns, console=open_console(stderr=True), transient=True, refresh_per_second=4)


def _time_text(task: Task) -> str:
    if task.total is not None and task.time_remaining is not None:
        return f"about {seconds_text(task.time_remaining)} left"
    return f"{task.elapsed or 0.0:.0f} s so far"


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a bar can be drawn on a stream: a terminal that moves its cursor."""
    return stream is not None and stream.isatty() and not open_console(stderr=True).is_dumb_terminal
