from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.store.obstacle import folder_obstacle, write_obstacle

if TYPE_CHECKING:
    from pathlib import Path


def test_a_place_that_can_be_written_has_none(tmp_path: Path) -> None:
    assert write_obstacle(str(tmp_path)) == ""
    assert write_obstacle(f"file://{tmp_path}/new/store") == ""
    assert list(tmp_path.iterdir()) == [], "nothing is written"


@pytest.mark.parametrize("path", ["file", "file/store", "store"])
def test_a_file_in_place_of_a_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "events").touch()
    file = tmp_path / ("store/events" if path == "store" else "file")
    assert write_obstacle(str(tmp_path / path)) == f"cannot write to store {tmp_path / path}: {file} is not a folder"


def test_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "nowhere")
    assert write_obstacle(str(tmp_path / "store")).endswith(f"{tmp_path / 'store'}: No such file or directory")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")  # noqa: PTH112 - evaluated at import
@pytest.mark.parametrize("path", ["/proc/nope", "/proc/self/nope"])
def test_the_kernels_own_files_take_no_store(path: str) -> None:
    assert write_obstacle(path) == f"cannot write to store {path}: /proc holds no files but those of the kernel"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    os.seteuid(65534)  # root may write anywhere
    try:
        said = write_obstacle(str(tmp_path / "store"))
    finally:
        os.seteuid(0)
    assert said.startswith(f"cannot write to store {tmp_path / 'store'}: no permission to write in /")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"f_flag": os.ST_RDONLY}, "the file system of {} is read-only"),
        ({"f_bavail": 0, "f_bfree": 0}, "no space left on the file system of {}"),
        ({"f_blocks": 0, "f_bavail": 0, "f_bfree": 0}, ""),
    ],
    ids=["read-only", "full", "a file system that knows no blocks"],
)
def test_a_file_system_says(
    changes: dict[str, int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.statvfs(tmp_path)
    names = [name for name in dir(known) if name.startswith("f_")]
    status = type("Status", (), {name: getattr(known, name) for name in names} | changes)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    said = f"cannot write to store {tmp_path}: {reason.format(tmp_path)}" if reason else ""
    assert write_obstacle(str(tmp_path)) == said


def test_a_remote_store_needs_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert write_obstacle("s3://key:hunter2@b/c") == ("store s3://***@b/c needs s3fs: pip install 'torchx-cubicml[s3]'")
    assert write_obstacle("sftp://host/c") == "store sftp://host/c needs paramiko"
    assert write_obstacle("ftp://host/c") == "", "fsspec brings its client"
    assert folder_obstacle("s3://b/c") == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert write_obstacle("s3://b/c") == "", "no server is asked"
