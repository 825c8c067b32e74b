"""Work within a deadline, for a launch waits for nobody."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

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
