"""The writer with a store in memory; the test itself is the training process."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.events import writer as module
from torchx_cubicml.recorder.events.crash_trace import ENDED_BY_SIGTERM
from torchx_cubicml.recorder.events.sender import CRASH_TRACE_FD, DONE, OUTCOME, WRITTEN
from torchx_cubicml.recorder.events.writer import KILLED_BY_HOST, NO_END_EVENT, EventWriter, closing_event
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STARTED = Event(kind=EventKind.STARTED, trial_id="t-1", writer="rank0", observed={"backend": "nccl"}, sequence=4)
ENDED = Event(kind=EventKind.ENDED, trial_id="t-1", writer="rank0", state=State.COMPLETED, sequence=5)
TOLD = f"{OUTCOME.decode()}recorded without a throughput: no steady steps were seen\n"
ABORTED = "Fatal Python error: Aborted\n\n"


class Store:
    """A store in memory, of which each one made counts; it fails for the launches in ``failing``."""

    made: list[str]
    events: list[Event]
    failing: set[int]

    def __init__(self, url: str) -> None:
        Store.made.append(url)

    def append(self, event: Event) -> None:
        if event.sequence in Store.failing:
            raise OSError(f"disk full, token=abc\nevent {event.sequence}")
        Store.events.append(event)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> type[Store]:
    Store.made, Store.events, Store.failing = [], [], set()
    monkeypatch.setattr(module, "TrialStore", Store)
    return Store


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        yield ours, theirs


def write(ends: tuple[socket.socket, socket.socket], *events: Event, **more: Any) -> str:
    """Write events, and return what the training process is told."""
    made = EventWriter(ends[1], "/the/store", **more)
    for event in events:
        made.take(json.dumps(event.to_json()).encode())
    made.close(deadline_s=20.0)
    return ends[0].recv(10_000).decode()


def last_words(folder: Path, text: str) -> int:
    path = folder / "words"
    path.write_text(text)
    return os.open(path, os.O_RDONLY)


def test_one_store_takes_all_events_in_order(ends: tuple[socket.socket, socket.socket], store: type[Store]) -> None:
    assert write(ends, STARTED, ENDED) == f"{WRITTEN.decode()}{TOLD}{DONE.decode()}"
    assert store.made == ["/the/store"]
    assert [(event.kind, event.sequence) for event in store.events] == [(EventKind.STARTED, 4), (EventKind.ENDED, 5)]


def test_without_events_nothing_is_closed(ends: tuple[socket.socket, socket.socket], store: type[Store]) -> None:
    assert write(ends) == DONE.decode()
    assert (store.made, store.events) == ([], [])


def test_an_end_stays_the_end(ends: tuple[socket.socket, socket.socket], store: type[Store]) -> None:
    write(ends, ENDED, STARTED)
    assert [event.kind for event in store.events] == [EventKind.ENDED, EventKind.STARTED]


def test_a_failed_event_stops_no_other(ends: tuple[socket.socket, socket.socket], store: type[Store]) -> None:
    store.failing = {4, 6}
    told = write(ends, STARTED, ENDED, STARTED)
    assert told == f"OSError: disk full, token=*** event 4\n{WRITTEN.decode()}{TOLD}{DONE.decode()}"
    assert [event.sequence for event in store.events] == [5]


def test_the_outcome_waits_for_the_end_in_the_store(
    ends: tuple[socket.socket, socket.socket], store: type[Store]
) -> None:
    store.failing = {5}
    assert OUTCOME.decode() not in write(ends, STARTED, ENDED)


def test_an_outcome_without_words_loses_no_event(
    ends: tuple[socket.socket, socket.socket], store: type[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "outcome_text", lambda _: 1 / 0)
    assert write(ends, STARTED, ENDED, STARTED) == (WRITTEN + DONE).decode()
    assert [event.sequence for event in store.events] == [4, 5, 4]


def test_a_long_problem_is_cut(ends: tuple[socket.socket, socket.socket]) -> None:
    made = EventWriter(ends[1], "/the/store")
    made._report_once("x" * 3000)
    made.close(deadline_s=20.0)
    assert ends[0].recv(10_000) == b"x" * 2000 + b"\n" + DONE


@pytest.mark.parametrize(
    ("trace", "stderr", "ends_in_s", "state", "reason"),
    [
        ("", "out of memory", 0, State.UNKNOWN, NO_END_EVENT),
        ("Stack", "out of memory", 0, State.INFRASTRUCTURE, ENDED_BY_SIGTERM),
        ("Stack", "", -5, State.TIMEOUT, f"{ENDED_BY_SIGTERM}, at the scheduler's time limit"),
        ("Stack", "", 500, State.INFRASTRUCTURE, ENDED_BY_SIGTERM),
        (ABORTED, "out of memory token=abc", 0, State.OUT_OF_MEMORY, "ended by SIGABRT\nout of memory token=***"),
        (ABORTED, "", 0, State.INFRASTRUCTURE, "ended by SIGABRT outside of Python code, as by NCCL's watchdog"),
    ],
    ids=["no trace", "signal", "at the limit", "before it", "stderr", "backend"],
)
def test_a_silent_end_is_closed_by_its_trace(
    trace: str,
    stderr: str,
    ends_in_s: float,
    state: State,
    reason: str,
    ends: tuple[socket.socket, socket.socket],
    tmp_path: Path,
    store: type[Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "count_oom_kills", lambda: None)
    (tmp_path / "stderr.log").write_text(stderr)
    file = last_words(tmp_path, trace)
    at = time.time() + ends_in_s if ends_in_s else 0
    write(ends, STARTED, stderr=str(tmp_path / "stderr.log"), last_words=file, ends_at=at)
    os.close(file)
    closing = store.events[-1]
    assert (closing.kind, closing.sequence, closing.state, closing.reason) == (EventKind.ENDED, 5, state, reason)


def test_without_a_trace_the_reason_is_unknown(ends: tuple[socket.socket, socket.socket], store: type[Store]) -> None:
    write(ends, STARTED)
    assert (store.events[-1].state, store.events[-1].reason) == (State.UNKNOWN, NO_END_EVENT)


@pytest.mark.parametrize(
    ("counts", "is_killed"), [((3, 4), True), ((3, 3), False), ((None, 4), False), ((3, None), False)]
)
def test_a_kill_by_the_host_is_out_of_memory(
    counts: tuple[int | None, int | None],
    is_killed: bool,
    ends: tuple[socket.socket, socket.socket],
    store: type[Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = iter(counts)
    monkeypatch.setattr(module, "count_oom_kills", lambda: next(told))
    write(ends, STARTED)
    expected = (State.OUT_OF_MEMORY, KILLED_BY_HOST) if is_killed else (State.UNKNOWN, NO_END_EVENT)
    assert (store.events[-1].state, store.events[-1].reason) == expected


def test_a_hanging_store_is_left(
    ends: tuple[socket.socket, socket.socket], store: type[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(store, "append", lambda self, event: go.wait(60))
    made = EventWriter(ends[1], "/the/store")
    made.take(json.dumps(ENDED.to_json()).encode())
    made.close(deadline_s=0.01)
    assert ends[0].recv(1000) == b"the store did not answer within 0.01 s\n" + DONE
    assert made._thread.daemon
    go.set()


def test_a_training_that_has_gone_is_told_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    made = EventWriter(ends[1], "/the/store")
    made.take(b"{}")
    made.close(deadline_s=20.0)


def test_a_closing_event_follows_the_last() -> None:
    last = replace(STARTED, time="2020-01-01T00:00:00+00:00")
    closing = closing_event(last)
    assert closing.time > last.time
    assert (closing.kind, closing.sequence, closing.state, closing.reason) == (
        EventKind.ENDED,
        5,
        State.UNKNOWN,
        NO_END_EVENT,
    )
    assert (closing.observed, closing.trial_id) == (STARTED.observed, "t-1")


@pytest.mark.parametrize("has_words", [True, False])
def test_the_first_line_says_how_to_write(has_words: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[tuple[object, ...], dict[str, object]]] = []
    taken: list[object] = []

    class Writer:
        """Notes what the training process asks for."""

        def __init__(self, *args: object, **kwargs: object) -> None:
            made.append((args, kwargs))

        take = staticmethod(taken.append)

        def close(self, *, deadline_s: float) -> None:
            taken.append(deadline_s)

    ours, theirs = socket.socketpair()
    setup = {"store": "/s", "deadline_s": 7.5}
    more = {"stderr": "/logs/e", "ends_at": 5, "has_last_words": True} if has_words else {}
    ours.sendall(json.dumps({**setup, **more}).encode() + b"\none\ntwo\nunfinished")
    ours.close()
    closed: list[int] = []
    exits: list[int] = []
    monkeypatch.setattr(module, "EventWriter", Writer)
    monkeypatch.setattr(module.os, "dup", lambda file: theirs.detach() if file == 0 else -1)
    monkeypatch.setattr(module.os, "close", closed.append)
    monkeypatch.setattr(module.os, "_exit", exits.append)
    module.main()
    monkeypatch.undo()
    (((connection, url), given),) = made
    connection.close()  # type: ignore[attr-defined]
    expected = (CRASH_TRACE_FD, "/logs/e", 5) if has_words else (None, "", 0)
    assert (url, given["last_words"], given["stderr"], given["ends_at"]) == ("/s", *expected)
    assert (taken, closed, exits) == ([b"one", b"two", 7.5], [0], [0])
