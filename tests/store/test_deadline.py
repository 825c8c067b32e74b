from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store import deadline
from torchx_cubicml.store.backend import unheard
from torchx_cubicml.store.deadline import read_trials, read_with_deadline, within
from torchx_cubicml.store.reader import StoreSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torchx_cubicml.store import TrialStore

EMPTY = StoreSnapshot(trials=[], warnings=("w",), directories={})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path | None, Callable[[], bool]]]:
    """The arguments of each reading, which finds nothing."""
    calls: list[tuple[str, Path | None, Callable[[], bool]]] = []

    def read_store(
        store: TrialStore, *, cache: Path | None, out_of_time: Callable[[], bool], report: Callable[[int, int], None]
    ) -> StoreSnapshot:
        assert report is unheard
        calls.append((store.url, cache, out_of_time))
        return EMPTY

    monkeypatch.setattr("torchx_cubicml.store.reader.read_store", read_store)
    return calls


@pytest.mark.parametrize(("cached", "end_s"), [(True, 6.0), (False, 11.0)], ids=["with cache", "without"])
def test_a_reading_ends_in_time_to_cache_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[tuple[str, Path | None, Callable[[], bool]]],
    cached: bool,
    end_s: float,
) -> None:
    now = [100.0]
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cache = tmp_path if cached else None
    assert read_with_deadline("/data/x/", deadline_s=10.0, cache=cache) is EMPTY
    ((url, folder, out_of_time),) = asked
    assert (url, folder) == ("/data/x", cache)
    answers = []
    for now[0] in (100.0, 100.0 + end_s, 100.001 + end_s):
        answers.append(out_of_time())
    assert answers == [False, False, True]


def test_trials_and_warnings_are_returned(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, Path | None, Callable[[], bool]]]
) -> None:
    given: list[float] = []
    real = deadline.within
    monkeypatch.setattr(
        deadline, "within", lambda deadline_s, step, what: given.append(deadline_s) or real(deadline_s, step, what=what)
    )
    assert read_trials("/data/x") == ([], ("w",))
    assert read_trials("/data/x", deadline_s=60) == ([], ("w",))
    assert given == [5.0, 60]
    assert len(asked) == 2


def test_a_late_store_is_named_without_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("torchx_cubicml.store.reader.read_store", lambda *_, **__: release.wait())
    with pytest.raises(StoreError, match=r"^store ftp://\*\*\*@host/x was not read within 0\.01 s$"):
        read_with_deadline("ftp://me:hunter2@host/x", deadline_s=0.01)
    release.set()


def test_a_step_runs_in_a_named_daemon_thread() -> None:
    thread = within(60.0, threading.current_thread, what="asking")
    assert (thread.name, thread.daemon) == ("torchx-cubicml-think", True)
