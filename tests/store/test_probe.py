"""A probe of a store tells whether it can be written, and leaves nothing behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fsspec
import pytest

from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.store.probe import StoreProbe, clock_offset, probe_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.mark.parametrize("url", ["{}", "file://{}"])
def test_a_store_is_written_and_left_as_it_was(url: str, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    probe = probe_store(url.format(tmp_path))
    assert probe == StoreProbe(presence="store", is_written=True, clock_offset_s=probe.clock_offset_s)
    assert probe.clock_offset_s is not None
    assert abs(probe.clock_offset_s) < 5, "of one machine; file systems stamp in ticks"
    assert list(tmp_path.rglob("*")) == [tmp_path / "events"]


def test_nothing_is_written_without_a_store_or_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalBackend, "write_probe", None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert probe_store(str(tmp_path / "nowhere")) == StoreProbe(presence="absent")
    assert probe_store(str(tmp_path / "other")) == StoreProbe(presence="other")
    (tmp_path / "events").mkdir()
    assert probe_store(str(tmp_path), writes=False) == StoreProbe(presence="store")


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in probe_store(str(tmp_path / "file")).obstacle


def test_a_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events").mkdir()
    monkeypatch.setattr("torchx_cubicml.store.local.nearest_existing", lambda place: place)
    assert "No such file" in probe_store(str(tmp_path)).obstacle


def test_an_object_store_is_written_before_it_exists(memory: fsspec.AbstractFileSystem) -> None:
    assert probe_store("memory://team/cubicml").is_written
    assert memory.store == {}


def test_an_object_store_that_refuses(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, path: str, value: bytes, **options: object) -> None:
        raise PermissionError("token=hunter2hunter2 is not allowed")

    monkeypatch.setattr(type(memory), "pipe_file", refuse)
    obstacle = probe_store("memory://team/cubicml").obstacle
    assert obstacle.startswith("cannot write to store memory://team/cubicml: PermissionError")
    assert "hunter2" not in obstacle


def test_a_store_that_returns_other_bytes(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(memory), "cat_file", lambda self, path, **options: b"stale")
    assert probe_store("memory://team/cubicml").obstacle.endswith("returns other bytes than were written")
    assert memory.store == {}


def test_a_url_that_is_not_legal() -> None:
    assert "is empty" in probe_store("").obstacle


def test_the_offset_is_what_is_surely_known(tmp_path: Path) -> None:
    assert clock_offset(None, 1.0, 2.0) is None
    stamp = tmp_path / "stamp"
    stamp.touch()
    os.utime(stamp, (5000.0, 5000.0))
    assert clock_offset(stamp.stat().st_mtime, 1000.0, 1001.0) == 3999.0
