"""A store that does not answer for a while: it is asked again before a tune that may run for days is given up."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.errors import StoreError
from torchx_cubicml.tuner.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.tuner.clock import Clock

_T = TypeVar("_T")
_PAUSE_S = 5.0
_GIVE_UP = timedelta(seconds=300)  # shorter than a tune may be silent before another machine goes on with it


class StorePatience:
    """Asks a store again where it fails, for minutes; one that has never answered is not waited for.

    Args:
        clock: of the tune; this machine's by default.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._answered: set[str] = set()
        self._hurries = False

    def read(self, question: Callable[[], _T]) -> _T:
        """Return what ``question`` returns, which may be asked more than once.

        Raises:
            StoreError: the store cannot be read.
        """
        return self._ask(question, "read")

    def write(self, question: Callable[[], _T]) -> _T:
        """Likewise, where the store is written; one that can be read need not be writable.

        Raises:
            StoreError: the store cannot be written.
        """
        return self._ask(question, "write")

    def hurry(self) -> None:
        """Wait no more."""
        self._hurries = True

    def _ask(self, question: Callable[[], _T], kind: str) -> _T:
        since = None
        while True:
            try:
                answer = question()
            except StoreError:
                now = self._clock.now()
                since = since or now
                if self._hurries or kind not in self._answered or now - since >= _GIVE_UP:
                    raise
                self._clock.sleep(_PAUSE_S)
            else:
                self._answered.add(kind)
                return answer
