from __future__ import annotations

import os
from pathlib import Path

import pytest

import torchx_cubicml
from torchx_cubicml.store import file_cache
from torchx_cubicml.store.file_cache import code_stamp, read_cache, write_cache


def test_written_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_cache(path, {"x": [1, "é\udcff"]}, most=3)
    found = read_cache(path)
    assert found is not None
    assert found["x"] == [1, "é\udcff"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def test_a_file_is_compact_json_in_a_private_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "a.json"
    old = os.umask(0)
    try:
        write_cache(path, {"x": [1, "é"], "y": None}, most=3)
    finally:
        os.umask(old)
    assert path.read_bytes() == b'{"x":[1,"\\u00e9"],"y":null}'
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    write_cache(path, {"x": 2}, most=3)
    assert read_cache(path) == {"x": 2}


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o620, 0o602])
def test_a_file_that_a_group_or_all_can_write_is_ignored(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.json"
    write_cache(path, {}, most=3)
    path.chmod(mode)
    assert read_cache(path) is None
    path.chmod(0o644)
    assert read_cache(path) == {}


def test_a_file_over_the_limit_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_cache(path, {"x": "y"}, most=3)
    monkeypatch.setattr(file_cache, "_MAX_BYTES", 9)
    assert read_cache(path) == {"x": "y"}  # nine bytes
    monkeypatch.setattr(file_cache, "_MAX_BYTES", 7)
    assert read_cache(path) is None


def test_as_many_files_as_allowed_stay(tmp_path: Path) -> None:
    for number, name in enumerate("cab"):
        write_cache(tmp_path / name, {}, most=3)
        os.utime(tmp_path / name, (number, number))
    assert {file.name for file in tmp_path.iterdir()} == set("abc")
    write_cache(tmp_path / "d", {}, most=2)
    assert {file.name for file in tmp_path.iterdir()} == set("bd")


def test_the_stamp_of_the_code_is_of_its_folders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/c", "a", "__pycache__", "a/__pycache__"):
        (tmp_path / "code" / name).mkdir(parents=True)
    (tmp_path / "code" / "a" / "x.py").write_text("")
    for seconds, name in enumerate((".", "a", "b", "b/c", "__pycache__")):
        os.utime(tmp_path / "code" / name, (9, seconds))
    monkeypatch.setattr(file_cache, "_PACKAGE", tmp_path / "code")
    assert code_stamp() == [0, 10**9, 2 * 10**9, 3 * 10**9]
    monkeypatch.undo()
    package = Path(torchx_cubicml.__file__).parent
    assert code_stamp()[0] == package.stat().st_mtime_ns


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
