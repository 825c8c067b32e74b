from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Launches of the tests keep things in a folder of the tests, and think as long as a busy machine lets them."""
    changes = {
        "TORCHX_CUBICML_CACHE": str(tmp_path_factory.mktemp("cache")),
        "TORCHX_CUBICML_THINK_DEADLINE_S": "60",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setenv(name, value)
        yield
