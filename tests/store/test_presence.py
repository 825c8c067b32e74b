from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.store.presence import check_store, recorded_snapshot

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = str(tmp_path / "team-store")
    TrialStore(url).add(Trial.completed(workload={"program": "a.py"}, config={"a": 1}, tokens_per_second=1.0))
    return url


def test_a_store_is_read(store: str) -> None:
    found = recorded_snapshot(store)
    trials, warnings = found.trials, found.warnings
    assert len(trials) == 1
    assert warnings == ()


def test_an_empty_folder_is_an_empty_store(tmp_path: Path) -> None:
    assert recorded_snapshot(str(tmp_path)).trials == []


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "there is no store at {place}: the place does not exist"),
        ("team-stor", "there is no store at {place}: the place does not exist; did you mean {store}?"),
        ("team-store/events", "there is no store at {place}: the folder holds other files; did you mean {store}?"),
        ("team-store/gone", "there is no store at {place}: the place does not exist; did you mean {store}?"),
        ("", "there is no store at {place}: the folder holds other files; did you mean {store}?"),
        ("docs", "there is no store at {place}: the folder holds other files"),
    ],
)
def test_another_place_is_refused(tmp_path: Path, store: str, prefix: str, name: str, message: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").touch()
    place = f"{prefix}{tmp_path / name}"
    with pytest.raises(StoreError, match=f"^{re.escape(message.format(place=place, store=store))}$"):
        recorded_snapshot(place)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(StoreError, match=r"^cannot read store .*/notes: it is a file, and a store is a folder$"):
        recorded_snapshot(str(tmp_path / "notes"))
    with pytest.raises(StoreError, match=r"notes: it is a file, and a store is a folder$"):
        check_store(str(tmp_path / "notes"))
    with pytest.raises(StoreError, match=r"notes/inner: the place does not exist$"):
        check_store(str(tmp_path / "notes" / "inner"))


def test_of_two_stores_inside_none_is_named(tmp_path: Path, store: str) -> None:
    TrialStore(str(tmp_path / "other")).add(Trial.completed(workload={}, config={}, tokens_per_second=1.0))
    with pytest.raises(StoreError, match=r"holds other files$"):
        check_store(str(tmp_path))


@pytest.mark.parametrize("url", ["memory:///nobody/store", "memory://nobody"])
def test_a_remote_place(url: str) -> None:
    with pytest.raises(StoreError, match=rf"^there is no store at {url}: the place does not exist$"):
        recorded_snapshot(url)


def test_a_place_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(backend: LocalBackend) -> Presence:
        time.sleep(60)
        return Presence.STORE

    monkeypatch.setattr(LocalBackend, "presence", hang)
    with pytest.raises(StoreError, match=r"was not read within 0.05 s"):
        check_store(str(tmp_path), deadline_s=0.05)
