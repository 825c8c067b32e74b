from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.shared_results import SharedResults

if TYPE_CHECKING:
    from pathlib import Path


def test_a_result_is_made_once_in_its_own_folder(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> tuple[str, int]:
        made.append(folder)
        time.sleep(0.1)  # the others come meanwhile
        return "result", len(made)

    with ThreadPoolExecutor(4) as askers:  # a lock holds off threads as it holds off processes
        results = [*askers.map(lambda _: SharedResults(tmp_path).get("once", make), range(4))]
    assert results == [("result", 1)] * 4
    assert [folder.name for folder in made] == ["once"]


def test_a_failure_is_no_result(tmp_path: Path) -> None:
    shared = SharedResults(tmp_path)
    with pytest.raises(ZeroDivisionError):
        shared.get("failure", lambda _: 1 // 0)
    assert shared.get("failure", lambda _: 5) == 5
