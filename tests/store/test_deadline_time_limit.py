from __future__ import annotations

import threading
import time

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.store.deadline import within


def test_the_result_of_a_step_is_returned() -> None:
    assert within(5.0, lambda: 4, what="counting") == 4


@pytest.mark.parametrize("error", [ValueError, TimeoutError, SystemExit])
def test_the_error_of_a_step_is_raised(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("no")

    with pytest.raises(error, match="no"):
        within(5.0, fail, what="failing")


def test_waiting_ends_at_the_deadline() -> None:
    release = threading.Event()
    started = time.monotonic()
    with pytest.raises(LaunchError, match=r"^waiting took longer than 0\.05 s$"):
        within(0.05, release.wait, what="waiting")
    assert time.monotonic() - started < 30.0  # it waits for ever otherwise
    release.set()
