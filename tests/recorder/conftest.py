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


@pytest.fixture(autouse=True)
def _stays_frozen() -> Iterator[None]:
    """After a test that unfreezes all objects, those that were loaded are left out of searches again."""
    yield
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
