"""Keeps the libraries below to one thread while a predictor works.

Their threads wait for one another by spinning. On tables of a few thousand rows there is nothing to share out, and on a
node that is busy (a login node, a laptop that is training) a fit of a tenth of a second takes half a minute.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock, local
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

# Packages that bring such libraries, each with a copy of its own: only what is loaded can be limited.
_BRINGERS = frozenset({"numpy", "scipy.linalg", "sklearn.ensemble", "torch"})

_MOST_CORES = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which OpenMP and BLAS use the calling thread alone.

    OpenMP has a limit for each thread, BLAS one for the process, which stays until the last thread has left its own
    context. Looking for the libraries to limit takes milliseconds, so that only the first of contexts that overlap
    does, and those that find more of them loaded; where forecasts are asked for by the thousand, one context around
    them all saves half of their time. Whoever imports such a library enters a context after the import.
    """
    if _this_thread.limits is not None:
        _this_thread.limits.extend()
        yield
        return
    with _libraries.held(), ExitStack() as stack:
        _this_thread.limits = _OpenMPLimits(stack)
        try:
            _this_thread.limits.extend()
            yield
        finally:
            _this_thread.limits = None


class _Found(Protocol):
    def limit(self, *, limits: int, user_api: str) -> AbstractContextManager[object]: ...


class _Libraries:
    """What is loaded of such libraries while a thread is in a context, and the limit of BLAS.

    One for the process, as that limit is: the first thread to come sets it, the last to leave lifts it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_threads = 0
        self._limits = ExitStack()
        self._loaded: frozenset[str] = frozenset()
        self._found: _Found | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return a context of one thread's."""
        with self._lock:
            self._n_threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_threads -= 1
                if not self._n_threads:
                    self._limits.close()
                    self._loaded, self._found = frozenset(), None

    def found(self) -> _Found | None:
        """Return what is loaded now, its BLAS limited; the same object while nothing else is."""
        loaded = _BRINGERS & sys.modules.keys()
        with self._lock:
            if loaded != self._loaded:
                from threadpoolctl import ThreadpoolController

                found: _Found = ThreadpoolController()
                self._limits.enter_context(found.limit(limits=1, user_api="blas"))
                self._loaded, self._found = loaded, found
            return self._found


class _OpenMPLimits:
    """What the outermost context of a thread limits for it, until that is left."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._limited: _Found | None = None

    def extend(self) -> None:
        """Limit what was loaded since."""
        found = _libraries.found()
        if found is not None and found is not self._limited:
            self._stack.enter_context(found.limit(limits=1, user_api="openmp"))
            self._limited = found


class _Thread(local):
    limits: _OpenMPLimits | None = None


_libraries = _Libraries()
_this_thread = _Thread()


def on_all_cores(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return what ``work`` makes of each of many items, in their order: on as many cores as may be used, at most four.

    The first is worked on alone, so that what all of them need once is there. It pays where NumPy does the work, which
    lets other threads run meanwhile; the libraries below keep to one thread each.
    """
    with one_thread(), ThreadPoolExecutor(min(_n_cores(), _MOST_CORES)) as pool:
        first = [work(item) for item in items[:1]]
        return [*first, *pool.map(partial(_with_one_thread, work), items[1:])]


def _with_one_thread(work: Callable[[_Item], _Result], item: _Item) -> _Result:
    with one_thread():
        return work(item)


def _n_cores() -> int:
    """Return how many this process may use; macOS tells only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
