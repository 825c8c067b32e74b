"""Deadlines of store calls: an answer within seconds, or none."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.reader import StoreSnapshot


_T = TypeVar("_T")


def within(deadline_s: float, step: Callable[[], _T], *, what: str) -> _T:
    """Return what ``step`` makes, or raise what it raises.

    Args:
        deadline_s: seconds after which ``step`` is given up; it is left behind in a thread that delays neither the
            caller nor the exit of the process.
        step: pure, for nobody stops it.
        what: it does, for the message.

    Raises:
        LaunchError: ``step`` was not done before the deadline.
    """
    made: Future[_T] = Future()
    threading.Thread(target=_fill, args=(made, step), name="torchx-cubicml-think", daemon=True).start()
    try:
        return made.result(deadline_s)
    except TimeoutError:
        if not made.done():
            raise LaunchError(f"{what} was not done within {deadline_s:g} s") from None
        return made.result()


def _fill(made: Future[_T], step: Callable[[], _T]) -> None:
    try:
        made.set_result(step())
    except BaseException as error:  # noqa: BLE001 - it is raised again by who waits
        made.set_exception(error)


_LEFT_TO_KEEP = 0.4  # of the time: to write down what was read, where it is not all
_NOBODY_WAITS_S = 1.0  # any more


def read_trials(url: str, *, deadline_s: float = 5.0) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the trials of a store, and what could not be read of it; a store that does not exist yet is empty.

    Args:
        url: as ``TrialStore`` takes it.
        deadline_s: see ``read_within``.

    Raises:
        StoreError: the store cannot be reached or read, or not before the deadline.
    """
    reading = read_within(url, deadline_s=deadline_s)
    return reading.trials, reading.warnings


def read_within(url: str, *, deadline_s: float, cache: Path | None = None) -> StoreSnapshot:
    """Return a store as it was read.

    Args:
        url: as ``TrialStore`` takes it.
        deadline_s: seconds after which the reading is given up. What hangs is left behind in a thread that delays
            neither the caller nor the exit of the process.
        cache: see ``read_store``.

    Raises:
        StoreError: the store cannot be reached or read, or not before the deadline.
    """
    from torchx_cubicml.store.reader import read_store  # most launches find that nothing has changed

    store = TrialStore(url)
    end = time.monotonic() + (deadline_s * (1 - _LEFT_TO_KEEP) if cache is not None else deadline_s + _NOBODY_WAITS_S)

    def out_of_time() -> bool:
        return time.monotonic() > end

    try:
        return within(deadline_s, lambda: read_store(store, cache=cache, out_of_time=out_of_time), what="reading")
    except LaunchError:
        raise StoreError(f"store {mask(store.url)} was not read within {deadline_s:g} s") from None
