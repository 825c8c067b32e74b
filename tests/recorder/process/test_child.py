from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from torchx_cubicml.recorder.process import child as own_child
from torchx_cubicml.recorder.process.child import FAILED, JOINED, ask_with_retries, failure_reason, run_child

COMES_AND = f"import os, sys, time; print({JOINED!r}, end='', flush=True); "


def said(code: str, question: str = "", within_s: float = 60.0) -> str:
    return run_child([sys.executable, "-c", code], question, within_s=within_s)


def test_an_answer_excludes_earlier_output() -> None:
    assert said(COMES_AND + "print(sys.stdin.read() * 2)", "ab") == "abab\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the helper process was killed by signal 9"),
        ("raise SystemExit(3)", "the helper process failed"),
        (f"print({JOINED + FAILED!r} + 'the store is gone'); raise SystemExit(1)", "the store is gone"),
    ],
    ids=["killed", "failed", "failed and said why"],
)
def test_no_answer_is_reported_in_words(code: str, reason: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        said(code)
    assert failure_reason(failed.value) == reason


def test_an_answer_at_the_deadline_counts() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as failed:
        said(COMES_AND + "time.sleep(300)", within_s=5.0)
    assert failed.value.output == JOINED
    assert failure_reason(failed.value) == "the helper process did not answer within 5 s"


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        (subprocess.CalledProcessError(-signal.SIGKILL, "child", output=JOINED), "late", [False, True]),
        (subprocess.TimeoutExpired("child", 60.0, output=JOINED.encode()), "late", [False, True]),
        (subprocess.CalledProcessError(-signal.SIGKILL, "child", output=""), "late", [False]),
    ],
    ids=["died after it came", "hung after it came", "died before it came"],
)
def test_past_the_deadline_a_relied_on_rank_asks_once_more(first: Exception, second: str, asked: list[bool]) -> None:
    tries: list[bool] = []

    def ask(counted_on: bool) -> str:
        tries.append(counted_on)
        raise first

    with pytest.raises(type(first)):
        ask_with_retries(ask, counted_on=False, within_s=-1.0)
    assert tries == asked
    assert len(asked) < own_child._MAX_ATTEMPTS_RELIED_ON
