from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from torchx_cubicml.recorder.events.sender import EventSender
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

STARTED = Event(kind=EventKind.STARTED, trial_id="t-1", writer="rank0")
ENDED = Event(kind=EventKind.ENDED, trial_id="t-1", writer="rank0", state=State.COMPLETED, sequence=1)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what tells the writers of this test from those of all other launches on this machine."""
    value = os.urandom(8).hex()
    monkeypatch.setenv("TORCHX_CUBICML_TEST_MARK", value)
    return value


def writer_of(mark: str) -> int | None:
    """Return the process id of the writer that this test has started, ``None`` where none lives."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"torchx_cubicml.recorder.events.writer" in words and mark.encode() in environment and words[:2] != b"sh":
            return int(folder.name)
    return None


def wait_for_writer(mark: str) -> int:
    end = time.monotonic() + 60
    while (found := writer_of(mark)) is None:
        assert time.monotonic() < end, "no writer starts"
        time.sleep(0.01)
    return found


def test_events_reach_the_store_through_nobodys_child(mark: str, tmp_path: Path) -> None:
    courier = EventSender(str(tmp_path), deadline_s=10)
    writer = wait_for_writer(mark)
    assert str(writer) not in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert os.getsid(writer) != os.getsid(0)
    courier.send(STARTED.to_json())
    courier.send(ENDED.to_json())
    assert courier.problem() == ""
    assert courier.close() == ""
    (trial,) = TrialStore(str(tmp_path))
    assert trial.state is State.COMPLETED


def test_what_went_wrong_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    courier = EventSender(str(tmp_path / "file" / "store"), deadline_s=10)
    courier.send(STARTED.to_json())
    problem = courier.close()
    assert str(tmp_path / "file" / "store") in problem
    assert "\n" not in problem


def test_a_silent_store_costs_the_deadline_and_no_more(mark: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        courier = EventSender(f"ftp://127.0.0.1:{silent.getsockname()[1]}/store", deadline_s=1.5)
        courier.send(STARTED.to_json())
        start = time.monotonic()
        assert "did not answer" in courier.close()
        assert time.monotonic() - start < 30  # the server never answers
        end = time.monotonic() + 60
        while writer_of(mark):
            assert time.monotonic() < end, "the writer does not give up"
            time.sleep(0.05)


def test_a_stopped_writer_never_delays_a_step(mark: str, tmp_path: Path) -> None:
    courier = EventSender(str(tmp_path), deadline_s=1)
    writer = wait_for_writer(mark)
    os.kill(writer, signal.SIGSTOP)
    try:
        start = time.monotonic()
        for _ in range(2000):
            courier.send({**STARTED.to_json(), "reason": "x" * 1000})
        assert time.monotonic() - start < 30  # one that waits for the writer waits for ever
        assert "dropped" in courier.problem()
        assert "did not answer" in courier.close()
    finally:
        os.kill(writer, signal.SIGKILL)


def test_a_dead_writer_is_reported_and_hurts_nobody(mark: str, tmp_path: Path) -> None:
    courier = EventSender(str(tmp_path), deadline_s=5)
    writer = wait_for_writer(mark)
    os.kill(writer, signal.SIGKILL)
    end = time.monotonic() + 60
    while not (problem := courier.problem()):  # its end of the socket is closed a moment after it is gone from /proc
        assert time.monotonic() < end, "its death is not noticed"
        time.sleep(0.01)
    assert "died" in problem
    courier.send(STARTED.to_json())
    assert "died" in courier.close()
