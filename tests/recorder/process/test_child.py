from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from torchx_cubicml.recorder.process import child as own_child
from torchx_cubicml.recorder.process.child import (
    FAILED,
    JOINED,
    RELIED_ON,
    answer_as_child,
    ask_with_retries,
    child_command,
    child_process_environment,
    failure_reason,
    run_child,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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


def died(output: str = "", status: int = 1) -> subprocess.CalledProcessError:
    return subprocess.CalledProcessError(status, "child", output=output)


@pytest.mark.parametrize(
    ("errors", "counted_on", "asked"),
    [
        ([died()] * 9, False, [False] * 2),
        ([died()] * 9, True, [True] * 6),
        ([died(JOINED)] * 9, False, [False] + [True] * 5),
        ([died(), died(JOINED), died()] * 3, False, [False] * 2 + [True] * 4),
        ([subprocess.TimeoutExpired("child", 60.0)] * 9, False, [False]),
        ([subprocess.TimeoutExpired("child", 60.0)] * 9, True, [True] * 6),
        ([ValueError("no JSON"), OSError("no memory")], False, [False] * 2),
        ([died("says comes\n")] * 9, False, [False] * 2),
        ([KeyError("a fault")], True, [True]),
    ],
)
def test_a_failed_child_is_asked_again(errors: list[Exception], counted_on: bool, asked: list[bool]) -> None:
    tries: list[bool] = []

    def ask(counted_on: bool) -> str:
        tries.append(counted_on)
        raise errors[len(tries) - 1]

    with pytest.raises(type(errors[len(asked) - 1])):
        ask_with_retries(ask, counted_on=counted_on, within_s=600.0)
    assert tries == asked


def test_the_second_answer_counts() -> None:
    answers = iter([died(), "an answer"])

    def ask(counted_on: bool) -> str:
        answer = next(answers)
        if isinstance(answer, str):
            return answer
        raise answer

    assert ask_with_retries(ask, counted_on=False, within_s=600.0) == "an answer"


def test_past_the_deadline_a_rank_asks_once_more_from_the_start() -> None:
    tries: list[bool] = []

    def ask(counted_on: bool) -> str:
        tries.append(counted_on)
        raise died()

    with pytest.raises(subprocess.CalledProcessError):
        ask_with_retries(ask, counted_on=True, within_s=-1.0)
    assert tries == [True, True]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (died(status=1), "the helper process failed"),
        (died(status=-1), "the helper process was killed by signal 1"),
        (died(f"{JOINED}{FAILED} no store \n"), "no store"),
        (subprocess.TimeoutExpired("child", 1.5, output=b"\xff"), "the helper process did not answer within 1.5 s"),
        (subprocess.CalledProcessError(1, "child", output=FAILED.encode() + b"\xff"), "\ufffd"),
        (ValueError("no JSON"), "no JSON"),
        (ValueError(), "ValueError"),
    ],
)
def test_each_failure_has_a_reason(error: Exception, reason: str) -> None:
    assert failure_reason(error) == reason


class Ended(BaseException):
    """Stands for the end of the process by ``os._exit``."""


@pytest.mark.parametrize(
    ("arguments", "joins", "fails", "output", "status"),
    [
        ([], False, False, "yes", 0),
        ([], True, False, f"{JOINED}yes", 0),
        ([], False, True, "alone: OSError: lost", 0),
        ([], True, True, f"{JOINED}{FAILED}the ranks cannot agree: OSError: lost", 1),
        (["folder", RELIED_ON], False, True, f"{FAILED}the ranks cannot agree: OSError: lost", 1),
        ([RELIED_ON], False, True, f"{FAILED}the ranks cannot agree: OSError: lost", 1),
    ],
    ids=[
        "answers",
        "comes and answers",
        "fails alone",
        "fails after it came",
        "fails while relied on",
        "its only word",
    ],
)
def test_a_child_answers_and_ends(
    arguments: list[str],
    joins: bool,
    fails: bool,
    output: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def end(code: int) -> NoReturn:
        raise Ended(code)

    def agree(on_join: Callable[[], None]) -> str:
        if joins:
            on_join()
        if fails:
            raise OSError("lost")
        return "yes"

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", [RELIED_ON, *arguments])
    with pytest.raises(Ended) as ended:
        answer_as_child(agree, lambda why: f"alone: {why}")
    assert (capsys.readouterr().out, ended.value.args) == (output, (status,))


def test_a_child_is_started_where_it_finds_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = said("import os, sys; print(os.environ['PYTHONPATH'], os.fstat(2).st_rdev == os.stat(os.devnull).st_rdev)")
    assert found.split() == [str(Path(__file__).parents[3]), "True"]


def test_at_the_deadline_a_child_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_child.time, "monotonic", lambda: 100.0)
    tries: list[bool] = []

    def ask(counted_on: bool) -> str:
        tries.append(counted_on)
        raise died()

    with pytest.raises(subprocess.CalledProcessError):
        ask_with_retries(ask, counted_on=False, within_s=0.0)
    assert tries == [False, False]


def test_a_child_finds_this_package_last(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert child_process_environment()["PYTHONPATH"] == os.pathsep.join(["/elsewhere", root])
    monkeypatch.delenv("PYTHONPATH")
    assert child_process_environment()["PYTHONPATH"] == root


def test_a_child_warns_of_nothing_and_gets_its_arguments() -> None:
    command = child_command("a.module", "one", "two")
    assert command[0] == sys.executable
    assert command[1:5] == ["-P", "-W", "ignore", "-c"]
    assert command[-3:] == ["a.module", "one", "two"]
