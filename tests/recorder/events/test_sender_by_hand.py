"""The sender's end of the socket; the test itself is the writer."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.events import sender as module
from torchx_cubicml.recorder.events.sender import CRASH_TRACE_FD, DONE, WRITTEN, EventSender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 2**20


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[EventSender, socket.socket]]]:
    """Start senders, each with the other end of its socket."""
    opened: list[tuple[EventSender, socket.socket]] = []

    def start(**more: object) -> tuple[EventSender, socket.socket]:
        ends: list[socket.socket] = []
        monkeypatch.setattr(module, "_start_writer", lambda end, trace: ends.append(end.dup()))
        made = EventSender("/the/store", **{"deadline_s": 20.0, **more})  # type: ignore[arg-type]
        ends[0].settimeout(20)
        opened.append((made, ends[0]))
        return opened[-1]

    yield start
    for made, end in opened:
        made.abandon()
        end.close()


def received(end: socket.socket) -> list[dict[str, object]]:
    return [json.loads(line) for line in end.recv(10_000).splitlines()]


def test_the_writer_is_told_where_to_write(
    started: Callable[..., tuple[EventSender, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, end = started(deadline_s=10.0, stderr="/logs/stderr.log", ends_at=1234, world_size=8)
    told = {"store": "/the/store", "deadline_s": 9.0, "stderr": "/logs/stderr.log", "has_last_words": True}
    assert received(end) == [{**told, "ends_at": 1234, "command": None, "pid": os.getpid(), "world_size": 8}]
    monkeypatch.delattr(os, "memfd_create")
    _, end = started()
    silent = {
        "store": "/the/store",
        "deadline_s": 18.0,
        "stderr": "",
        "has_last_words": False,
        "ends_at": 0,
        "command": None,
    }
    assert received(end) == [{**silent, "pid": os.getpid(), "world_size": 1}]


def test_the_outcome_is_no_problem(started: Callable[..., tuple[EventSender, socket.socket]]) -> None:
    made, end = started()
    end.sendall(WRITTEN + b"outc")
    assert (made.problem(), made.outcome) == ("", "")
    end.sendall(b"ome: recorded 5 tokens/s \xc2\xb1 2 %\n")
    assert (made.problem(), made.outcome) == ("", "recorded 5 tokens/s ± 2 %")
    end.sendall(b"disk full\n")
    assert made.problem() == "disk full"
    end.sendall(DONE)
    end.shutdown(socket.SHUT_WR)
    assert (made.close(), made.outcome) == ("disk full", "recorded 5 tokens/s ± 2 %")


def test_messages_are_lines(started: Callable[..., tuple[EventSender, socket.socket]]) -> None:
    made, end = started()
    received(end)
    made.send({"a": 1, "b": [2, "c d"]})
    made.send({})
    assert end.recv(100) == b'{"a":1,"b":[2,"c d"]}\n{}\n'


def test_a_mebibyte_waits_and_no_byte_more() -> None:
    frame = len(json.dumps({"a": ""}, separators=(",", ":"))) + 1
    full = EventSender.__new__(EventSender)
    full._buffer, full._dropped, full._socket, full._answers, full._has_died = b"", 0, Full(), b"", False  # type: ignore[assignment]
    full.send({"a": "x" * (MIB - frame + 1)})
    assert (full._dropped, full._buffer) == (1, b"")
    full.send({"a": "x" * (MIB - 10 - frame)})
    assert (full._dropped, len(full._buffer)) == (1, MIB - 10)
    full.send({"a": "xxx"})
    assert (full._dropped, len(full._buffer)) == (2, MIB - 10)
    full.send({"a": ""})
    assert (full._dropped, len(full._buffer)) == (2, MIB - 1)
    assert full.problem() == "the store is too slow: 2 events were dropped"


class Full:
    """A socket that takes nothing and says nothing."""

    def send(self, data: bytes, flags: int) -> int:
        raise BlockingIOError

    recv = send  # type: ignore[assignment]


def test_what_was_not_taken_is_sent_later(
    started: Callable[..., tuple[EventSender, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, end = started()
    received(end)
    taken: list[bytes] = []

    class Slow:
        """A socket that takes two bytes at a time, and no more than four."""

        def send(self, data: bytes, flags: int) -> int:
            assert flags == socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            if len(taken) == 2:
                raise BlockingIOError
            taken.append(data[:2])
            return 2

        def close(self) -> None:
            return

    theirs = made._socket
    monkeypatch.setattr(made, "_socket", Slow())
    made.send({"a": 1})
    assert b"".join(taken) == b'{"a"'
    monkeypatch.setattr(made, "_socket", theirs)
    made.send({})
    assert end.recv(100) == b":1}\n{}\n"


@pytest.mark.parametrize(
    ("answers", "ends", "problem"),
    [
        ([], False, ""),
        ([b"no sp"], False, "no sp"),
        ([b"one\ntwo\n"], False, "one"),
        ([b"writ"], False, ""),
        ([WRITTEN, b"one\n"], False, "one"),
        ([b"on", b"e\n"], True, "one"),
        ([], True, "the process that writes to the store died"),
    ],
)
def test_the_first_problem_is_told_without_waiting(
    answers: list[bytes], ends: bool, problem: str, started: Callable[..., tuple[EventSender, socket.socket]]
) -> None:
    made, end = started()
    for answer in answers:
        end.sendall(answer)
        made.problem()
    if ends:
        received(end)
        end.close()
    assert made.problem() == problem
    assert made.has_written == (WRITTEN in answers)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([DONE], ""),
        ([b"do", b"ne\n"], ""),
        ([b"disk full\n", DONE], "disk full"),
        ([b"disk full\n", WRITTEN, DONE], "disk full"),
        ([], "the process that writes to the store died"),
        ([b"disk full\n"], "disk full"),
    ],
)
def test_the_end_waits_for_the_writer(
    answers: list[bytes], problem: str, started: Callable[..., tuple[EventSender, socket.socket]]
) -> None:
    made, end = started()
    made.send({"a": 1})
    for answer in answers:
        end.sendall(answer)
    end.shutdown(socket.SHUT_WR)
    assert made.close() == problem
    assert end.recv(10_000).endswith(b'{"a":1}\n')
    assert end.recv(10_000) == b""  # nothing follows


@pytest.mark.parametrize(
    ("answer", "problem"), [(b"", "the store did not answer within 0.05 s"), (b"disk full\n", "disk full")]
)
def test_a_writer_that_says_nothing_more_is_left(
    answer: bytes, problem: str, started: Callable[..., tuple[EventSender, socket.socket]]
) -> None:
    made, end = started(deadline_s=0.05)
    end.sendall(answer)
    assert made.close() == problem


def test_the_deadline_is_that_of_all_answers(
    started: Callable[..., tuple[EventSender, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = started(deadline_s=5.0)
    limits: list[float] = []
    moments = iter([100.0, 101.0, 103.0, 106.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    answers = iter([b"x", b""])

    class Recorded:
        """A socket that notes the limits it is given."""

        def settimeout(self, seconds: float) -> None:
            limits.append(seconds)

        def sendall(self, data: bytes, flags: int) -> None:
            assert flags == socket.MSG_NOSIGNAL

        def shutdown(self, how: int) -> None:
            assert how == socket.SHUT_WR

        def recv(self, most: int) -> bytes:
            return next(answers)

        def close(self) -> None:
            return

    theirs = made._socket
    monkeypatch.setattr(made, "_socket", Recorded())
    assert made.close() == "x"
    assert limits == [4.0, 2.0, 0.001]
    theirs.close()


def test_the_writer_has_the_socket_and_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr(os, "posix_spawn", lambda *args, **kwargs: starts.append((args, kwargs)) or 77)
    waited: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "waitpid", lambda *args: waited.append(args))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for trace, more in ((None, []), (9, [(os.POSIX_SPAWN_DUP2, 9, CRASH_TRACE_FD)])):
            module._start_writer(theirs, trace)
            args, kwargs = starts.pop()
            assert args[0] == "/bin/sh"
            assert kwargs == {"file_actions": [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), *more], "setsid": True}
            assert waited.pop() == (77, 0)
    assert CRASH_TRACE_FD > 3  # 0 to 2 are the standard streams, and the shell uses 3
