from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What launches of the tests keep for the next is kept in a folder of the tests."""
    before = os.environ.get("TORCHX_CUBICML_CACHE")
    os.environ["TORCHX_CUBICML_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["TORCHX_CUBICML_CACHE"]
    else:
        os.environ["TORCHX_CUBICML_CACHE"] = before
