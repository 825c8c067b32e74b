"""Folders that may end with a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.store import lasting
from torchx_cubicml.store.lasting import may_end_with_job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "may_end"),
    [
        ("s3://team/store", False),
        ("/tmp/store", True),
        ("/tmpfs/store", False),
        ("/fast/store", True),
        ("/faster", False),
    ],
)
def test_folders_for_temporary_files_end_with_the_job(url: str, may_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "_OF_CONTAINERS", ())
    assert may_end_with_job(url, temporary=["/fast"]) is may_end


@pytest.mark.parametrize(
    ("url", "may_end"),
    [("/not-there/store", True), (f"/{'x' * 5000}/store", True), ("/proc/store", False)],
    ids=["own disk", "a name too long to ask for", "another file system"],
)
def test_the_own_disk_of_a_container_ends_with_the_job(
    url: str, may_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lasting, "_OF_CONTAINERS", (str(tmp_path),))
    assert may_end_with_job(url) is may_end
