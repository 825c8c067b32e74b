from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> Iterator[None]:
    """No test sees what an earlier one has compiled: the recorder asks torch whether anything was."""
    yield
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters:
        sys.modules["torch._dynamo"].reset()
        counters.clear()


@pytest.fixture
def thawed() -> Iterator[None]:
    """Let searches among live objects see those that were loaded, as in most programs."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
