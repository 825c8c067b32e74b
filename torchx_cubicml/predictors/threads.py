"""Keeps the libraries below to one thread while a predictor works.

Their threads wait for one another by spinning. On tables of a few thousand rows there is nothing to share out, and on a
node that is busy (a login node, a laptop that is training) a fit of a tenth of a second takes half a minute.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Packages that bring such libraries, each with a copy of its own: only what is loaded can be limited.
_BRINGERS = frozenset({"numpy", "scipy.linalg", "sklearn.ensemble", "torch"})

_MOST_CORES = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_limits: ContextVar[_Limits | None] = ContextVar("limits", default=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which OpenMP and BLAS use the calling thread alone.

    Looking for the libraries to limit takes milliseconds, so that only the outermost of nested contexts does, and
    those that find more of them loaded; where forecasts are asked for by the thousand, one context around them all
    saves half of their time. Whoever imports such a library enters a context after the import.
    """
    limits = _limits.get()
    if limits is not None:
        limits.extend()
        yield
        return
    with ExitStack() as stack:
        limits = _Limits(stack)
        limits.extend()
        token = _limits.set(limits)
        try:
            yield
        finally:
            _limits.reset(token)


class _Limits:
    """What the outermost context limits until it is left."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._limited: frozenset[str] = frozenset()

    def extend(self) -> None:
        """Limit what was loaded since."""
        loaded = _BRINGERS & sys.modules.keys()
        if loaded != self._limited:
            from threadpoolctl import threadpool_limits

            self._stack.enter_context(threadpool_limits(limits=1))
            self._limited = loaded


def on_all_cores(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return what ``work`` makes of each of many items, in their order: on as many cores as may be used, at most four.

    The first is worked on alone, so that what all of them need once is there. It pays where NumPy does the work, which
    lets other threads run meanwhile; the libraries below keep to one thread each.
    """
    n_cores = min(len(os.sched_getaffinity(0)), _MOST_CORES)
    with one_thread(), ThreadPoolExecutor(n_cores, initializer=_limit_this_thread) as pool:
        first = [work(item) for item in items[:1]]
        # In this context, for what is limited already is neither looked for nor lifted again.
        others = [pool.submit(copy_context().run, work, item) for item in items[1:]]
        return [*first, *(other.result() for other in others)]


def _limit_this_thread() -> None:
    """Limit OpenMP, which has a limit for each thread; that of BLAS is one for all, and lifted by the outermost."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1)
