"""The crash trace of this process, and what is read from it."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.events import crash_trace
from torchx_cubicml.recorder.events.crash_trace import CrashTrace, read_tail, read_words, state_from_crash_trace
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path


class Handler:
    """Stands for ``faulthandler``, and notes what is called."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.enabled = is_enabled

    def is_enabled(self) -> bool:
        return self.enabled

    def register(self, number: int, **how: object) -> None:
        self.calls.append(("register", number, how))

    def unregister(self, number: int) -> None:
        self.calls.append(("unregister", number))

    def enable(self, **how: object) -> None:
        self.calls.append(("enable", how))

    def disable(self) -> None:
        self.calls.append(("disable",))


@pytest.mark.parametrize("is_enabled", [True, False], ids=["by the user", "by nobody"])
def test_faults_are_handled_where_nobody_does(is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, trace = Handler(is_enabled=is_enabled), CrashTrace()
    monkeypatch.setattr(crash_trace, "faulthandler", handler)
    trace.forget()
    assert (trace.file, handler.calls) == (None, [])
    trace.listen()
    file = trace.file
    assert file is not None
    of_signal = ("register", signal.SIGTERM, {"file": file, "all_threads": False, "chain": True})
    of_fault = [] if is_enabled else [("enable", {"file": file, "all_threads": False})]
    assert handler.calls == [of_signal, *of_fault]
    os.write(file, b"words \xff")
    assert read_words(file) == "words \ufffd"
    handler.calls.clear()
    trace.forget()
    assert handler.calls == [("unregister", signal.SIGTERM), *([] if is_enabled else [("disable",)])]
    assert (trace.file, read_words(file)) == (None, "")


def test_the_words_are_read_from_their_begin(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(b"begin" + b"x" * 20_000)
    file = os.open(path, os.O_RDONLY)
    os.lseek(file, 100, os.SEEK_SET)
    assert read_words(file) == "begin" + "x" * (16384 - 5)
    os.close(file)


@pytest.mark.parametrize("length", [0, 10, 16384, 16385])
def test_the_tail_of_a_file_is_its_last_16_kib(length: int, tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes((b"a" + b"b" * length)[:length] if length else b"")
    text = ("a" + "b" * length)[:length]
    assert read_tail(str(path)) == text[-16384:]
    path.write_bytes(b"\xff")
    assert read_tail(str(path)) == "\ufffd"


FATAL = "Fatal Python error: {}\n\n"
ABORTED = FATAL.format("Aborted")
FOUR = "timed out\n1: error\n3: error\n4: error"


@pytest.mark.parametrize(
    ("words", "stderr", "expected"),
    [
        (FATAL.format("Segmentation fault"), "", (State.UNKNOWN, "ended by SIGSEGV")),
        (FATAL.format("Bus error"), "CUDA error\n", (State.UNKNOWN, "ended by Bus error")),
        (f"before\n{ABORTED}", "  out of memory \nfine\n", (State.OUT_OF_MEMORY, "ended by SIGABRT\nout of memory")),
        (ABORTED, "timed out\n1: error\n2\n3: error\n4: error", (State.TIMEOUT, f"ended by SIGABRT\n{FOUR}")),
        (ABORTED, "timed out\n1: error\n2: error\n3: error\n4: error", (State.UNKNOWN, "ended by SIGABRT")),
        ("no error: Fatal Python error: x", "", (State.INFRASTRUCTURE, crash_trace.ENDED_BY_SIGTERM)),
    ],
)
def test_the_last_lines_about_a_cause_are_the_reason(words: str, stderr: str, expected: tuple[State, str]) -> None:
    assert state_from_crash_trace(words, stderr) == expected


@pytest.mark.parametrize(
    ("words", "backend", "state"),
    [
        (ABORTED, "cuda:nccl,cpu:gloo", State.INFRASTRUCTURE),
        (FATAL.format("Segmentation fault"), "nccl", State.UNKNOWN),
        (ABORTED + "Stack (most recent call first):", "nccl", State.UNKNOWN),
        (ABORTED, None, State.UNKNOWN),
    ],
)
def test_nccls_watchdog_aborts_outside_of_python(words: str, backend: str | None, state: State) -> None:
    found = state_from_crash_trace(words, "", backend=backend)
    assert found is not None
    assert found[0] is state
    assert ("watchdog" in found[1]) is (state is State.INFRASTRUCTURE)


def test_this_process_is_left_as_it_was() -> None:
    before = faulthandler.is_enabled()
    trace = CrashTrace()
    trace.listen()
    assert faulthandler.is_enabled()
    trace.forget()
    assert faulthandler.is_enabled() is before
