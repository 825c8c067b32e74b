from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tune.draws import prepare_in

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.tuner import Prepared


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return prepare_in(tmp_path)
