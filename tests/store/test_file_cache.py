from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.store import file_cache
from torchx_cubicml.store.file_cache import read_cache, write_cache

if TYPE_CHECKING:
    from pathlib import Path


def test_written_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_cache(path, {"x": [1, "é\udcff"]}, most=3)
    found = read_cache(path)
    assert found is not None
    assert found["x"] == [1, "é\udcff"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def test_the_oldest_files_go(tmp_path: Path) -> None:
    for number in range(5):
        write_cache(tmp_path / f"{number}.json", {}, most=3)
        os.utime(tmp_path / f"{number}.json", (number, number))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["2.json", "3.json", "4.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000, b"x" * 10_000_000],
    ids=["empty", "cut", "list", "text", "no UTF-8", "deep", "10 MB"],
)
def test_a_damaged_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert read_cache(tmp_path / "a.json") is None


@pytest.mark.parametrize("kind", ["writable by others", "link", "pipe", "folder", "absent", "of another user"])
def test_a_file_writable_by_others_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / "a.json"
    write_cache(path, {}, most=3)
    assert read_cache(path) is not None
    if kind == "writable by others":
        path.chmod(0o666)
    elif kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    else:
        path.rename(tmp_path / "b.json")
    if kind == "link":
        path.symlink_to(tmp_path / "b.json")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    assert read_cache(path) is None


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": 1}], ids=["no JSON", "a file in place of the folder"])
def test_unwritable_files_are_left_out(tmp_path: Path, payload: dict[str, object]) -> None:
    (tmp_path / "file").write_text("")
    write_cache(tmp_path / "file" / "a.json", payload, most=3)
    write_cache(tmp_path / "new" / "b.json", {"x": float("nan")}, most=3)
    assert not any((tmp_path / "new").iterdir())


def test_a_write_that_fails_half_way_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_cache(path, {"x": 1}, most=3)

    def refuse(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_cache.json, "dumps", refuse)
    write_cache(path, {"x": 2}, most=3)
    monkeypatch.undo()
    found = read_cache(path)
    assert found is not None
    assert found["x"] == 1
    assert len(list(tmp_path.iterdir())) == 1
