"""Keeps the libraries below to one thread while a predictor works.

Their threads wait for one another by spinning. On tables of a few thousand rows there is nothing to share out, and on a
node that is busy (a login node, a laptop that is training) a fit of a tenth of a second takes half a minute.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_limited: ContextVar[bool] = ContextVar("limited", default=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which OpenMP and BLAS use the calling thread alone.

    Looking for the libraries to limit takes milliseconds, so that only the outermost of nested contexts does; where
    forecasts are asked for by the thousand, one context around them all saves half of their time.
    """
    if _limited.get():
        yield
        return
    import sklearn.ensemble  # noqa: F401 - only libraries that are loaded can be limited
    from threadpoolctl import threadpool_limits

    token = _limited.set(True)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        _limited.reset(token)
