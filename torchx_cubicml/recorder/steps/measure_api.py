"""Explicit step API: two lines for a script whose steps no hook can observe.

::

    from torchx_cubicml import measure
    ...
    measure.step(samples=global_batch_size)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Listener: TypeAlias = Callable[[float | None, float | None], None]


class Measure:
    """Reports steps to the recorder; has no effect outside of a recorded launch.

    From its first call on, steps are counted and timed by these calls alone.
    """

    __slots__ = ("_listener",)

    def __init__(self) -> None:
        self._listener: Listener | None = None

    def step(self, *, samples: float | None = None, tokens: float | None = None) -> None:
        """Report the end of one training step. Every rank may call it; the values of rank 0 are recorded.

        Args:
            samples: consumed in this step by the whole job, all ranks together; ``None`` where unknown.
            tokens: likewise.
        """
        if self._listener is not None:
            self._listener(samples, tokens)

    def listen(self, listener: Listener | None) -> None:
        """Pass each step to ``listener``, the recorder of this process; ``None`` to stop."""
        self._listener = listener


measure = Measure()
