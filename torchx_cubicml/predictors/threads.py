"""Thread limits: OpenMP and BLAS use one thread while a predictor works.

Their threads busy-wait for one another. Tables of a few thousand rows are too small to share out. On a busy node (a
login node, a laptop that is training) a fit of a tenth of a second then takes half a minute.
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

# Packages that load such libraries, each with its own copy; only loaded libraries can be limited.
_PACKAGES = frozenset({"numpy", "scipy.linalg", "sklearn.ensemble", "torch"})

_MOST_CORES = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which OpenMP and BLAS use the calling thread alone.

    OpenMP has one limit per thread. BLAS has one per process, which lasts until the last thread leaves its context.
    The search for loaded libraries takes milliseconds. It is therefore made by the first of overlapping contexts, and
    again only where more libraries are loaded since. One context around thousands of predictions halves their time.
    Code that imports such a library must enter a context after the import.
    """
    if _this_thread.limits is not None:
        _this_thread.limits.extend()
        yield
        return
    with _libraries.counted(), ExitStack() as stack:
        _this_thread.limits = _OpenMPLimits(stack)
        try:
            _this_thread.limits.extend()
            yield
        finally:
            _this_thread.limits = None


class _Controller(Protocol):
    def limit(self, *, limits: int, user_api: str) -> AbstractContextManager[object]: ...


class _Libraries:
    """Reference-counted limit of the loaded BLAS libraries, one for the process.

    The first thread to enter a context sets the limit, and the last one to leave lifts it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_threads = 0
        self._limits = ExitStack()
        self._loaded: frozenset[str] = frozenset()
        self._controller: _Controller | None = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Return a context that counts one thread as a user of the limit."""
        with self._lock:
            self._n_threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_threads -= 1
                if not self._n_threads:
                    self._release_control()
                    self._limits.close()
                    self._release_control()
                    self._loaded, self._controller = frozenset(), None

    def _release_control(self) -> None:
        """Let this thread lift a limit that another one has set; threadpoolctl 3.8 and later refuse it by default."""
        for library in getattr(self._controller, "lib_controllers", ()):
            release = getattr(library, "clear_controlling_thread", None)
            if release is not None:
                release(force=True)

    def controller(self) -> _Controller | None:
        """Return a controller of the loaded libraries, with BLAS limited; the same object until more are loaded."""
        loaded = _PACKAGES & sys.modules.keys()
        with self._lock:
            if loaded != self._loaded:
                from threadpoolctl import ThreadpoolController

                controller: _Controller = ThreadpoolController()
                self._limits.enter_context(controller.limit(limits=1, user_api="blas"))
                self._loaded, self._controller = loaded, controller
            return self._controller


class _OpenMPLimits:
    """OpenMP limits of one thread, which end with its outermost context."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._limited: _Controller | None = None

    def extend(self) -> None:
        """Limit the libraries that were loaded since the last call."""
        controller = _libraries.controller()
        if controller is not None and controller is not self._limited:
            self._stack.enter_context(controller.limit(limits=1, user_api="openmp"))
            self._limited = controller


class _Thread(local):
    limits: _OpenMPLimits | None = None


_libraries = _Libraries()
_this_thread = _Thread()


def map_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the results of ``work`` on each item, in their order, computed on the usable cores, at most four.

    The first item is worked on alone, so that state which all of them need is computed once. Threads pay off where
    NumPy does the work, because it lets other threads run meanwhile. OpenMP and BLAS keep to one thread each.
    """
    with one_thread(), ThreadPoolExecutor(min(_n_cores(), _MOST_CORES)) as pool:
        first = [work(item) for item in items[:1]]
        return [*first, *pool.map(partial(_with_one_thread, work), items[1:])]


def _with_one_thread(work: Callable[[_Item], _Result], item: _Item) -> _Result:
    with one_thread():
        return work(item)


def _n_cores() -> int:
    """Return the number of cores that this process may use; macOS reports only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
