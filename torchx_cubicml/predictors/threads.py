"""Keeps the libraries below to one thread while a predictor works.

Their threads wait for one another by spinning. On tables of a few thousand rows there is nothing to share out, and on a
node that is busy (a login node, a laptop that is training) a fit of a tenth of a second takes half a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which OpenMP and BLAS use the calling thread alone."""
    import sklearn.ensemble  # noqa: F401 - only libraries that are loaded can be limited
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(limits=1)
    return limits
