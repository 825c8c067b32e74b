from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.events.crash_trace import ENDED_BY_SIGTERM, read_tail, state_from_crash_trace
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

OF_PYTHON = "Fatal Python error: Aborted\n\nStack (most recent call first):\n  File ..."
OF_A_THREAD = "Fatal Python error: Aborted\n\n"
# As torch's ProcessGroupNCCL words them.
WATCHDOG = (
    "[rank0]:[E1121 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
REMOTE = "what():  [Rank 0] NCCL error: remote process exited or there was a network error, ncclRemoteError\n"
# github.com/open-edge-platform/physical-ai-studio/issues/440
OF_INTEL = (
    "terminate called after throwing an instance of 'sycl::_V1::exception'\n  what():  Enqueue process failed.\n"
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)\n"
)


@pytest.mark.parametrize(
    ("words", "stderr", "backend", "state", "reason"),
    [
        ("Stack (most recent call first):\n", "", None, State.INFRASTRUCTURE, ENDED_BY_SIGTERM),
        (OF_A_THREAD, WATCHDOG, "nccl", State.TIMEOUT, "Watchdog caught"),
        (OF_A_THREAD, REMOTE, "nccl", State.INFRASTRUCTURE, "ncclRemoteError"),
        (OF_A_THREAD, "", "nccl", State.INFRASTRUCTURE, "NCCL's watchdog"),
        (OF_A_THREAD, OF_INTEL, "xccl", State.OUT_OF_MEMORY, "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
        (
            OF_A_THREAD,
            "unable to mmap 72 bytes from file </torch_2>: Cannot allocate memory (12)\n",
            None,
            State.OUT_OF_MEMORY,
            "unable to mmap",
        ),
        (OF_PYTHON, "", "nccl", State.UNKNOWN, "ended by SIGABRT"),
        (OF_A_THREAD, "", "gloo", State.UNKNOWN, "ended by SIGABRT"),
        (OF_A_THREAD, "step 3 loss 0.2\n", None, State.UNKNOWN, "ended by SIGABRT"),
    ],
    ids=["sigterm", "watchdog", "remote", "nccl unseen", "Intel", "mmap", "python", "gloo", "no words"],
)
def test_the_end_is_sorted_by_what_was_left(
    words: str, stderr: str, backend: str | None, state: State, reason: str
) -> None:
    found = state_from_crash_trace(words, stderr, backend=backend)
    assert found is not None
    assert found[0] is state
    assert reason in found[1]


def test_an_empty_trace_gives_no_state() -> None:
    assert state_from_crash_trace("", WATCHDOG) is None


def test_the_end_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "stderr.log").write_text("x" * 100_000 + "last")
    assert read_tail(str(tmp_path / "stderr.log")).endswith("xlast")
    assert read_tail(str(tmp_path / "absent.log")) == ""


PROGRAM = """
import faulthandler, os, signal, sys
from torchx_cubicml.recorder.events.crash_trace import CrashTrace, read_words
words = CrashTrace()
words.listen()
file = words.file
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
{body}
sys.stdout.write(read_words(file).partition("(")[0])
"""


def outcome(body: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_signals_end_a_process_as_before() -> None:
    for name in ("SIGTERM", "SIGABRT"):
        assert outcome(f"os.kill(os.getpid(), signal.{name})")[0] == -getattr(signal, name)


def test_a_program_that_ignores_or_handles_the_signal_goes_on() -> None:
    for handler in ("signal.SIG_IGN", "lambda *_: print('mine', end='')"):
        code, printed = outcome(f"signal.signal(signal.SIGTERM, {handler})\nos.kill(os.getpid(), signal.SIGTERM)")
        assert code == 0
        assert printed in {"", "mine"}


def test_a_forked_child_leaves_no_trace() -> None:
    body = (
        "child = os.fork()\nif child == 0:\n    words.forget()\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGTERM"
    )
    assert outcome(body) == (0, "")


def test_a_system_without_memory_files_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchx_cubicml.recorder.events.crash_trace import CrashTrace

    monkeypatch.delattr(os, "memfd_create")
    words = CrashTrace()
    words.listen()
    assert words.file is None
    words.forget()
