"""Deadlines of store calls: a call returns within seconds or fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import unheard
from torchx_cubicml.store.collector import without_collector
from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.store.reader import StoreSnapshot


_T = TypeVar("_T")


def within(deadline_s: float, step: Callable[[], _T], *, what: str) -> _T:
    """Run ``step`` under a deadline and return its result; an error that it raises is raised here.

    Args:
        deadline_s: seconds after which ``step`` is abandoned. It goes on in a daemon thread that delays neither the
            caller nor the exit of the process.
        step: function without side effects, because it cannot be stopped.
        what: description of the step for the error message.

    Raises:
        LaunchError: ``step`` did not end before the deadline.
    """
    from concurrent.futures import Future  # with logging and others, which a recorded process needs not

    future: Future[_T] = Future()
    threading.Thread(target=_fill, args=(future, step), name="torchx-cubicml-think", daemon=True).start()
    try:
        return future.result(deadline_s)
    except TimeoutError:
        if not future.done():
            raise LaunchError(f"{what} took longer than {deadline_s:g} s") from None
        return future.result()


def _fill(future: Future[_T], step: Callable[[], _T]) -> None:
    try:
        future.set_result(step())
    except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
        future.set_exception(error)


_SAVE_SHARE = 0.4  # share of the time reserved for caching what was read, where that is not all
_GRACE_S = 1.0  # after the deadline: the caller is gone, and the thread need not go on


def read_trials(
    url: str, *, deadline_s: float = 5.0, report: Callable[[int, int], None] = unheard
) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the trials of a store and warnings about unreadable objects; a store that does not exist yet is empty.

    Args:
        url: URL as ``TrialStore`` accepts it.
        deadline_s: see ``read_with_deadline``.
        report: see ``read_store``.

    Raises:
        StoreError: the store cannot be reached or read, or not before the deadline.
    """
    reading = read_with_deadline(url, deadline_s=deadline_s, report=report)
    return reading.trials, reading.warnings


def read_with_deadline(
    url: str, *, deadline_s: float, cache: Path | None = None, report: Callable[[int, int], None] = unheard
) -> StoreSnapshot:
    """Read a store under a deadline and return its snapshot.

    Args:
        url: URL as ``TrialStore`` accepts it.
        deadline_s: seconds after which the reading is abandoned. A call that hangs stays in a daemon thread that
            delays neither the caller nor the exit of the process.
        cache: see ``read_store``.
        report: likewise; called from another thread.

    Raises:
        StoreError: the store cannot be reached or read, or not before the deadline.
    """
    from torchx_cubicml.store.reader import read_store  # most launches find the store unchanged and need no reader

    store = TrialStore(url)
    end = time.monotonic() + (deadline_s * (1 - _SAVE_SHARE) if cache is not None else deadline_s + _GRACE_S)

    def out_of_time() -> bool:
        return time.monotonic() > end

    try:
        with without_collector():
            return within(
                deadline_s,
                lambda: read_store(store, cache=cache, out_of_time=out_of_time, report=report),
                what="reading",
            )
    except LaunchError:
        raise StoreError(f"store {mask(store.url)} was not read within {deadline_s:g} s") from None
