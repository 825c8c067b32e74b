from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.events.recorded_command import RecordedCommand
from torchx_cubicml.recorder.events.sender import DONE, OUTCOME, WRITTEN
from torchx_cubicml.recorder.events.writer import KILLED_BY_HOST, NO_END_EVENT, EventWriter, closing_event, read_lines
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STARTED = Event(kind=EventKind.STARTED, trial_id="t-1", writer="rank0", workload={"program": "train.py"}, sequence=4)
ENDED = Event(kind=EventKind.ENDED, trial_id="t-1", writer="rank0", state=State.COMPLETED, sequence=5)
NO_THROUGHPUT = OUTCOME + b"recorded without a throughput: no steady steps were seen\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        yield ours, theirs


def line(event: Event) -> bytes:
    return json.dumps(event.to_json()).encode()


def test_events_are_appended(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    writer = EventWriter(ends[1], str(tmp_path))
    writer.take(line(STARTED))
    writer.take(line(ENDED))
    writer.close(deadline_s=5)
    (trial,) = TrialStore(str(tmp_path))
    assert trial.state is State.COMPLETED
    assert ends[0].recv(1000) == WRITTEN + NO_THROUGHPUT + DONE


def test_an_open_trial_is_closed(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    writer = EventWriter(ends[1], str(tmp_path))
    writer.take(line(STARTED))
    writer.close(deadline_s=5)
    (trial,) = TrialStore(str(tmp_path))
    assert (trial.state, trial.reason) == (State.UNKNOWN, NO_END_EVENT)


def test_the_closing_event_comes_last() -> None:
    closing = closing_event(STARTED)
    assert (closing.sequence, closing.trial_id, closing.workload) == (5, "t-1", STARTED.workload)


def test_the_first_problem_is_reported_once(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = EventWriter(ends[1], str(tmp_path / "file" / "store"))
    writer.take(b"{}")
    writer.take(line(STARTED))
    writer.close(deadline_s=5)
    lines = ends[0].recv(10_000).decode().splitlines()
    assert len(lines) == 2
    assert "invalid event" in lines[0]


def test_an_unwritable_store_is_reported(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = EventWriter(ends[1], str(tmp_path / "file" / "store"))
    writer.take(line(ENDED))
    writer.close(deadline_s=5)
    assert str(tmp_path / "file" / "store") in ends[0].recv(10_000).decode()


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        (("--lr", "0.1"), ("--lr", "0.1")),
        (("--lr", "0.1") * 2500, None),  # more than a record holds
        (tuple(f"x.y{index}=[{'1,' * 2000}]" for index in range(300)), None),  # so is this, in bytes
    ],
    ids=["few", "many", "long"],
)
def test_a_launch_is_recorded_whatever_its_command(
    ends: tuple[socket.socket, socket.socket],
    tmp_path: Path,
    arguments: tuple[str, ...],
    recorded: tuple[str, ...] | None,
) -> None:
    writer = EventWriter(ends[1], str(tmp_path), command=RecordedCommand(name="train.py", arguments=arguments))
    writer.take(line(STARTED))
    writer.take(line(ENDED))
    writer.close(deadline_s=60)
    (trial,) = TrialStore(str(tmp_path))
    assert (trial.workload, trial.arguments) == ({"program": "train.py"}, recorded)
    assert ends[0].recv(10_000) == WRITTEN + NO_THROUGHPUT + DONE


def test_lines_are_put_together(ends: tuple[socket.socket, socket.socket]) -> None:
    def say() -> None:
        for part in (b"one\ntw", b"o\n", b"unfinished"):
            ends[0].sendall(part)
        ends[0].shutdown(socket.SHUT_WR)

    threading.Thread(target=say).start()
    assert list(read_lines(ends[1])) == [b"one", b"two"]


def test_a_kill_for_memory_is_seen_in_the_kernels_count() -> None:
    last = Event(kind=EventKind.STARTED, trial_id="trial-1")
    assert closing_event(last).state is State.UNKNOWN
    closed = closing_event(last, State.OUT_OF_MEMORY, KILLED_BY_HOST)
    assert (closed.state, closed.reason) == (State.OUT_OF_MEMORY, KILLED_BY_HOST)
