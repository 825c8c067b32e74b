from __future__ import annotations

import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest
from torch.distributed import TCPStore

from torchx_cubicml.recorder.attempt.notes import read_attempt
from torchx_cubicml.recorder.process import child as own_child
from torchx_cubicml.recorder.process.child import FAILED, JOINED, RELIED_ON, child_command
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.records.trial import Origin, Trial
from torchx_cubicml.rewrite.in_job import decider, rank
from torchx_cubicml.rewrite.in_job.decider import JobCommand, PendingDecision, answer_of
from torchx_cubicml.rewrite.in_job.rank import Answer, deadline_s
from torchx_cubicml.rewrite.rewriter import Options
from torchx_cubicml.settings import ATTEMPT_VARIABLE, read_job_environment
from torchx_cubicml.space.toml.reader import space_digest
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.settings import JobEnvironment

TYPED = Answer(contract="typed")
WANTED = Answer(args=("--batch_size", "8"), contract="wanted", env={"PROTO": "b"}, lines=("a line",))
QUESTION = '{"program": "t.py"}'
ADDRESS = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


class Worked:
    """A decision that takes its time."""

    def __init__(self, wanted: Answer = WANTED, *, seconds: float = 0.0, error: Exception | None = None) -> None:
        self._wanted, self._seconds, self._error = wanted, seconds, error

    def typed(self) -> Answer:
        return TYPED

    def wanted(self) -> Answer:
        time.sleep(self._seconds)
        if self._error is not None:
            raise self._error
        return self._wanted


@pytest.fixture
def port() -> int:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores.append(store)
    return int(store.port)


stores: list[TCPStore] = []


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_DECISION_DEADLINE_S", "60")
    monkeypatch.setattr(decider, "_LONGER_S", 0.2)


def job(number: int, port: int, *, size: int = 3, restarts: int = 0) -> JobEnvironment:
    environment = {"RANK": number, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment |= {"TORCHELASTIC_RESTART_COUNT": restarts, "GROUP_WORLD_SIZE": 1}
    agents = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    return read_job_environment({**agents, **{name: str(value) for name, value in environment.items()}})


def answers(
    port: int, worked: Worked, *, delays: dict[int, float], questions: dict[int, str] | None = None, **more: int
) -> dict[int, Answer]:
    """Return what each rank that comes does, after a delay of its own."""

    def one(number: int) -> Answer:
        time.sleep(delays[number])
        question = (questions or {}).get(number, QUESTION)
        return answer_of(job(number, port, **more), question, PendingDecision(worked))

    with ThreadPoolExecutor(len(delays)) as pool:
        return dict(zip(delays, pool.map(one, delays), strict=True))


def in_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_DECISION_DEADLINE_S", str(seconds))


def all_as_typed(found: dict[int, Answer], reason: str) -> None:
    assert {answer.args for answer in found.values()} == {None}
    assert found[0].contract == "typed"
    assert found[0].lines[-1] == f"torchx-cubicml: keeping your arguments: {reason}"
    assert not any(answer.lines for number, answer in found.items() if number)


def test_all_ranks_follow_rank_0_and_it_alone_prints(port: int) -> None:
    found = answers(port, Worked(), delays={0: 0.2, 1: 0.0, 2: 0.4})
    assert found[0] == WANTED
    assert {answer.args for answer in found.values()} == {WANTED.args}
    assert {answer.contract for answer in found.values()} == {"wanted"}
    assert [answer.lines for answer in found.values()] == [("a line",), (), ()]


def test_an_unchanged_launch_waits_for_no_rank(port: int) -> None:
    unchanged = Answer(contract="typed")
    found = answers(port, Worked(unchanged), delays={0: 0.0, 1: 0.0})
    assert {answer.args for answer in found.values()} == {None}
    assert {answer.contract for answer in found.values()} == {"typed"}


def test_a_rank_that_does_not_come_leaves_all_as_typed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_time(monkeypatch, 2.0)
    all_as_typed(answers(port, Worked(), delays={0: 0.0, 1: 0.0}), "only 2 of 3 ranks joined in time")


def test_a_rank_past_the_deadline_does_as_the_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_time(monkeypatch, 2.0)
    all_as_typed(answers(port, Worked(), delays={0: 0.0, 1: 0.0, 2: 4.0}), "only 2 of 3 ranks joined in time")


def test_ranks_with_other_arguments_leave_all_as_typed_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_time(monkeypatch, 300.0)
    before = time.monotonic()
    found = answers(port, Worked(), delays={0: 0.0, 1: 0.0, 2: 0.0}, questions={1: '{"program": "other.py"}'})
    all_as_typed(found, "the ranks were started with different commands")
    assert time.monotonic() - before < 100


@pytest.mark.parametrize(
    ("worked", "reason"),
    [
        (Worked(seconds=5.0), "the decision took too long"),
        (Worked(error=ZeroDivisionError("a defect")), "ZeroDivisionError: a defect"),
    ],
    ids=["hangs", "fails"],
)
def test_a_decision_that_is_not_made_leaves_all_as_typed(
    port: int, monkeypatch: pytest.MonkeyPatch, worked: Worked, reason: str
) -> None:
    in_time(monkeypatch, 2.0)
    all_as_typed(answers(port, worked, delays={0: 0.0, 1: 0.0, 2: 0.0}), reason)


def test_without_rank_0_the_others_run_as_typed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_time(monkeypatch, 0.3)
    assert answers(port, Worked(), delays={1: 0.0, 2: 0.0}) == {1: Answer(), 2: Answer()}


def test_a_restart_repeats_the_decision(port: int) -> None:
    first = answers(port, Worked(), delays={0: 0.0, 1: 0.0, 2: 0.0})
    other = Answer(args=("--batch_size", "1"), contract="other")
    assert answers(port, Worked(other), delays={0: 0.0, 1: 0.0, 2: 0.0}, restarts=1) == first


def test_a_rank_that_asks_twice_counts_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_time(monkeypatch, 2.0)
    from torchx_cubicml.recorder.ranks.tcp_store import connected
    from torchx_cubicml.rewrite.in_job.decider import Agreement

    for _ in range(5):
        Agreement(connected(job(1, port), within_s=30.0), job(1, port), QUESTION).join()
    all_as_typed(answers(port, Worked(), delays={0: 0.0}), "only 2 of 3 ranks joined in time")


def test_a_late_rank_does_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)

    def agreed(deadline_s: float, *delays: float, works_s: float = 0.0) -> tuple[str, ...] | None:
        in_time(monkeypatch, deadline_s)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        found = answers(store.port, Worked(seconds=works_s), delays=dict(enumerate(delays)), size=4)
        (args,) = {answer.args for answer in found.values()}
        return args

    assert agreed(60.0, 0.0, 0.2, 0.4, 0.1, works_s=0.3) == WANTED.args
    assert agreed(0.3, 0.0, 2.0, 0.0, 0.0) is None
    for _ in range(8):  # either, as the machine has it
        agreed(0.3, *(rng.uniform(0.0, 0.35) for _ in range(4)), works_s=rng.uniform(0.0, 0.35))


def test_an_answer_survives_json() -> None:
    hostile = Answer(args=("a\nb", "é", "\udcff", "$(id)"), env={"A": "b"}, contract="c", lines=("d",))
    assert Answer.from_json(json.loads(hostile.to_json())) == hostile
    assert Answer.from_json(json.loads(Answer().to_json())) == Answer()
    with pytest.raises(ValueError, match="damaged"):
        Answer.from_json({"args": []})


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("", 20.0), ("x", 20.0), ("-1", 20.0), ("nan", 20.0)])
def test_the_deadline_is_a_sane_number(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_DECISION_DEADLINE_S", text)
    assert deadline_s() == seconds


def test_a_command_is_rewritten_with_the_size_that_the_job_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "space.toml").write_text('[parameters.knob]\nchoices = [1, 2]\nflag = "--knob"\n')
    store = TrialStore(str(tmp_path / "store"))
    for knob in (1, 2):
        workload = {"program": "t.py", "world_size": 3}
        store.add(Trial.completed(workload=workload, config={"knob": knob}, tokens_per_second=1000.0 * knob))
    options = Options(space=str(tmp_path / "space.toml"), store=str(tmp_path / "store"), mode="rewrite")
    monkeypatch.setenv("TORCHX_CUBICML_SPACE", options.space)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", options.store)
    monkeypatch.setenv("TORCHX_CUBICML_MODE", options.mode)
    job = read_job_environment({"WORLD_SIZE": "3"})
    command = JobCommand.read(job, json.dumps({"program": "t.py", "is_module": False, "args": ["--knob", "1"]}))
    typed, wanted = command.typed(), command.wanted()
    assert (typed.args, wanted.args) == (None, ("--knob", "2"))
    first, second = (decode_contract(answer.contract) for answer in (typed, wanted))
    assert (first.origin, second.origin) == (Origin.USER, Origin.REWRITE)
    assert first.trial_id == second.trial_id != ""
    as_typed = decode_contract(wanted.second)
    assert (as_typed.is_second_attempt, as_typed.config) == (True, {"knob": 1})
    assert (as_typed.trial_id, typed.second) == (first.trial_id, "")
    with (tmp_path / "space.toml").open("a") as file:
        file.write("[rewrite]\nretry_as_typed = false\n")
    assert (command.wanted().args, command.wanted().second) == (("--knob", "2"), "")


def test_a_rank_notes_the_second_attempt_of_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "_ask", lambda program, *, counted_on: replace(WANTED, second="contract"))
    monkeypatch.setenv(CONTRACT_VARIABLE, "")
    monkeypatch.setenv("PROTO", "a")
    rank.settle(["--", "t.py"])
    monkeypatch.setenv(ATTEMPT_VARIABLE, str(tmp_path))
    assert read_attempt(str(tmp_path)).second == ""
    rank.settle(["--", "t.py"])
    assert read_attempt(str(tmp_path)).second == "contract"


def test_a_rank_asks_again_where_its_child_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Program] = []

    def ask(program: Program, *, counted_on: bool) -> Answer:
        asked.append(program)
        if len(asked) == 1:
            raise subprocess.CalledProcessError(-signal.SIGKILL, "child")
        return WANTED

    monkeypatch.setattr(rank, "_ask", ask)
    monkeypatch.setenv("PROTO", "a")
    monkeypatch.setenv(CONTRACT_VARIABLE, "")
    assert rank.settle(["--", "-m", "pkg.train", "--batch_size", "2"]) == [
        "--",
        "-m",
        "pkg.train",
        *(WANTED.args or ()),
    ]
    assert (os.environ["PROTO"], os.environ[CONTRACT_VARIABLE]) == ("b", "wanted")


@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        pytest.param(subprocess.CalledProcessError(-9, "child", output=""), 2, id="died before it came"),
        pytest.param(subprocess.CalledProcessError(-9, "child", output=JOINED), 6, id="died after it came"),
        pytest.param(subprocess.TimeoutExpired("child", 60.0), 1, id="hung before it came"),
        pytest.param(subprocess.TimeoutExpired("child", 60.0, output=JOINED.encode()), 6, id="hung after it came"),
    ],
)
def test_a_relied_on_rank_is_asked_for_longer(monkeypatch: pytest.MonkeyPatch, failure: Exception, asked: int) -> None:
    tries: list[bool] = []

    def ask(program: Program, *, counted_on: bool) -> Answer:
        tries.append(counted_on)
        raise failure

    monkeypatch.setattr(rank, "_ask", ask)
    assert rank.settle(["--", "t.py", "1"]) == ["--", "t.py", "1"]
    assert tries == [False, *([asked > 2] * (asked - 1))]


def test_at_a_restart_this_rank_is_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []

    def ask(program: Program, *, counted_on: bool) -> Answer:
        tries.append(counted_on)
        raise OSError("no process")

    monkeypatch.setattr(rank, "_ask", ask)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for name, value in ADDRESS.items():
        monkeypatch.setenv(name, value)
    assert rank.settle(["--", "t.py", "1"]) == ["--", "t.py", "1"]
    assert tries == [True] * 6


def counted_questions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the others count on the rank, of each child that is asked from now on."""
    asked: list[bool] = []
    ask = rank._ask

    def count(program: Program, *, counted_on: bool) -> Answer:
        asked.append(counted_on)
        return ask(program, counted_on=counted_on)

    monkeypatch.setattr(rank, "_ask", count)
    return asked


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_ranks_without_a_store_get_one_answer_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], restarts: str
) -> None:
    asked = counted_questions(monkeypatch)
    for name, value in {**ADDRESS, "TORCHELASTIC_USE_AGENT_STORE": "False", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("TORCHX_CUBICML_DECISION_DEADLINE_S", "60")  # nobody waits, but torch is loaded
    assert rank.settle(["--", "t.py", "1"]) == ["--", "t.py", "1"]
    assert asked == [False]
    assert capsys.readouterr().err.endswith("torchrun hosts no TCPStore for this job\n")


def test_children_without_a_store_say_why_and_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = counted_questions(monkeypatch)
    monkeypatch.setattr(rank, "_STARTING_S", 15.0)
    in_time(monkeypatch, 0.2)
    monkeypatch.setattr(own_child, "_MAX_ATTEMPTS_RELIED_ON", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    for name, value in {**ADDRESS, "MASTER_PORT": port, "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert rank.settle(["--", "t.py", "1"]) == ["--", "t.py", "1"]
    assert asked == [True, True]
    (line,) = capsys.readouterr().err.splitlines()
    assert "keeping your arguments: the ranks cannot agree: " in line
    assert "import" not in line


def test_a_child_that_fails_late_leaves_the_answer_to_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer_of(*given: object, comes: Callable[[], None]) -> Answer:
        comes()
        raise ConnectionError("the store is gone")

    class Left(BaseException):
        pass

    def leave(status: int) -> NoReturn:
        raise Left(status)

    monkeypatch.setattr(decider, "answer_of", answer_of)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"program": "t.py", "is_module": False, "args": []})))
    with pytest.raises(Left, match="1"):
        decider.main()
    assert capsys.readouterr().out == f"{JOINED}{FAILED}the ranks cannot agree: ConnectionError: the store is gone"


@pytest.mark.parametrize("words", [[], [RELIED_ON]], ids=["not counted on", "counted on"])
def test_a_child_that_fails_early_answers_unless_relied_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def answer_of(*given: object, comes: Callable[[], None]) -> Answer:
        raise ConnectionError("the store is gone")

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(decider, "answer_of", answer_of)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(sys, "argv", ["child", *words])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"program": "t.py", "is_module": False, "args": []})))
    with pytest.raises(SystemExit) as left:
        decider.main()
    assert left.value.code == len(words)
    assert capsys.readouterr().out.startswith(FAILED) == bool(words)


def test_a_rank_whose_child_does_not_answer_runs_as_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(program: Program, *, counted_on: bool) -> Answer:
        raise OSError("no process")

    monkeypatch.setattr(rank, "_ask", ask)
    assert rank.settle(["--", "t.py", "1"]) == ["--", "t.py", "1"]
    assert capsys.readouterr().err == "torchx-cubicml: warning: keeping your arguments: no process\n"


def test_the_child_of_a_rank_that_reaches_no_agent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_DECISION_DEADLINE_S", "60")  # nobody waits, but torch is loaded
    question = json.dumps({"program": "t.py", "is_module": False, "args": []})
    command = child_command("torchx_cubicml.rewrite.in_job.decider")
    done = subprocess.run(command, input=question, capture_output=True, text=True, check=True, timeout=600)
    answer = Answer.from_json(json.loads(done.stdout))
    assert answer.args is None
    assert "the ranks cannot agree: ConnectionError" in answer.lines[0]


def read_command(monkeypatch: pytest.MonkeyPatch, folder: Path, **environment: str) -> JobCommand:
    (folder / "space.toml").write_text('[parameters.knob]\nchoices = [1, 2]\nenv = "KNOB"\n')
    store = TrialStore(str(folder / "store"))
    for knob in (1, 2):
        workload = {"program": "t.py", "world_size": 6}
        store.add(Trial.completed(workload=workload, config={"knob": knob}, tokens_per_second=1000.0 * knob))
    given = {"SPACE": str(folder / "space.toml"), "STORE": store.url, "MODE": "rewrite", **environment}
    for name, value in given.items():
        monkeypatch.setenv(f"TORCHX_CUBICML_{name}", value)
    monkeypatch.setenv("KNOB", "1")
    nodes = read_job_environment(
        {"RANK": "0", "WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    )
    return JobCommand.read(nodes, json.dumps({"program": "t.py", "is_module": False, "args": ["a", 1]}))


def test_the_command_of_a_rank_is_read_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = read_command(monkeypatch, tmp_path).wanted()
    assert answer.args == ("a", "1")
    assert answer.env == {"KNOB": "2"}  # what it had already is not set again
    contract = decode_contract(answer.contract)
    assert (contract.config, contract.workload["world_size"]) == ({"knob": 2}, 6)
    assert answer.lines[-1].endswith("--cubicml-mode record")


@pytest.mark.parametrize(("text", "kept"), [("yes", ("KNOB",)), ("no", None)])
def test_a_command_is_kept_where_the_launcher_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kept: tuple[str, ...] | None
) -> None:
    contract = decode_contract(read_command(monkeypatch, tmp_path, KEEP_COMMAND=text).wanted().contract)
    known = None if contract.kept_variables is None else {*contract.kept_variables} & {"KNOB"}
    assert known == (None if kept is None else {*kept})
    assert contract.provenance["space"] == space_digest((tmp_path / "space.toml").read_text())


def test_in_mode_off_there_is_nothing_to_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_command(monkeypatch, tmp_path, MODE="off").wanted() == Answer()


def test_the_command_of_a_rank_has_the_size_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = read_command(monkeypatch, tmp_path)
    with (tmp_path / "space.toml").open("a") as file:
        file.write('[[constraints]]\nrequire = "knob <= nnodes * nproc_per_node"\n')
    answer = command.typed()
    sizes = {"world_size": 6, "nnodes": 2, "nproc_per_node": 3}
    assert decode_contract(answer.contract).workload == {"program": "t.py", **sizes}
    assert (answer.args, answer.env) == (None, {})


@pytest.mark.parametrize("damaged", [{"env": []}, {"contract": None}, {"lines": "a"}], ids=str)
def test_an_answer_of_other_types_is_damaged(damaged: dict[str, object]) -> None:
    whole = {"args": None, "env": {}, "contract": "", "lines": []}
    assert Answer.from_json(whole) == Answer()
    with pytest.raises(ValueError, match="damaged"):
        Answer.from_json({**whole, **damaged})


def test_a_reason_is_one_more_line() -> None:
    answer = Answer(lines=("a",)).because("why")
    assert answer.lines == ("a", "torchx-cubicml: keeping your arguments: why")


def test_an_answer_without_a_contract_sets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank, "_ask", lambda _, *, counted_on: Answer(lines=("a", "b")))
    monkeypatch.setenv(CONTRACT_VARIABLE, "kept")
    assert rank.settle(["--", "t.py", "1"]) == ["--", "t.py", "1"]
    assert os.environ[CONTRACT_VARIABLE] == "kept"
    assert capsys.readouterr().err == "a\nb\n"
