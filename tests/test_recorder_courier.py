from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from torchx_cubicml.event import Event, EventKind
from torchx_cubicml.recorder.courier import Courier
from torchx_cubicml.store import TrialStore
from torchx_cubicml.trial import State

STARTED = Event(kind=EventKind.STARTED, trial_id="t-1", writer="rank0")
ENDED = Event(kind=EventKind.ENDED, trial_id="t-1", writer="rank0", state=State.COMPLETED, sequence=1)


def writers() -> set[int]:
    """Return the ids of the writer processes that are alive."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"torchx_cubicml.recorder.writer" in words:
            found.add(int(entry.parent.name))
    return found


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def test_events_reach_the_store_through_nobodys_child(tmp_path: Path) -> None:
    before = writers()
    courier = Courier(str(tmp_path), deadline_s=10)
    deadline = time.monotonic() + 5
    while not (new := writers() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert all(os.getsid(process) != os.getsid(0) for process in new)
    courier.send(STARTED.to_json())
    courier.send(ENDED.to_json())
    assert courier.problem() == ""
    assert courier.close() == ""
    (trial,) = TrialStore(str(tmp_path))
    assert trial.state is State.COMPLETED


def test_what_went_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    courier = Courier(str(tmp_path / "file" / "store"), deadline_s=10)
    courier.send(STARTED.to_json())
    problem = courier.close()
    assert str(tmp_path / "file" / "store") in problem
    assert "\n" not in problem


def test_a_silent_store_costs_the_deadline_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = writers()
        courier = Courier(f"ftp://127.0.0.1:{silent.getsockname()[1]}/store", deadline_s=1.5)
        courier.send(STARTED.to_json())
        start = time.monotonic()
        assert "did not answer" in courier.close()
        assert time.monotonic() - start < 3
        deadline = time.monotonic() + 5
        while writers() - before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not writers() - before


def test_a_stopped_writer_never_delays_a_step(tmp_path: Path) -> None:
    before = writers()
    courier = Courier(str(tmp_path), deadline_s=1)
    deadline = time.monotonic() + 5
    while not (new := writers() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in new:
        os.kill(process, signal.SIGSTOP)
    try:
        start = time.monotonic()
        for _ in range(2000):
            courier.send({**STARTED.to_json(), "reason": "x" * 1000})
        assert time.monotonic() - start < 1
        assert "dropped" in courier.problem()
        assert "did not answer" in courier.close()
    finally:
        for process in new:
            os.kill(process, signal.SIGKILL)


def test_a_dead_writer_is_told_and_hurts_nobody(tmp_path: Path) -> None:
    before = writers()
    courier = Courier(str(tmp_path), deadline_s=5)
    deadline = time.monotonic() + 5
    while not (new := writers() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in new:
        os.kill(process, signal.SIGKILL)
    while any(map(is_alive, new)) and time.monotonic() < deadline:
        time.sleep(0.01)
    courier.send(STARTED.to_json())
    assert "died" in courier.problem()
    assert "died" in courier.close()
