"""What a session of one rank reports and asks, with stand-ins for the training, the store and the other ranks."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml import measure
from torchx_cubicml.errors import ContractError
from torchx_cubicml.recorder import session as sessions
from torchx_cubicml.recorder.apply.hooks import hook_facts, warn_of_refusals
from torchx_cubicml.recorder.logs.logged_measurement import encode_measurement
from torchx_cubicml.recorder.process.assignment import Assignment
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.recorder.ranks.peers import RankWork
from torchx_cubicml.recorder.session import STEP_LIMIT, Session, open_session
from torchx_cubicml.recorder.steps.checkpoint_calls import Checkpoints
from torchx_cubicml.recorder.steps.trainings import Coverage
from torchx_cubicml.records.contract import Contract
from torchx_cubicml.records.log_pattern import LogPattern
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MEASURED = Measurement(samples_per_second=100.0, steps_counted=9)
LOGGED = Measurement(samples_per_second=50.0, source="x", steps_counted=3)


@dataclass
class Calls:
    """What was called with which arguments."""

    made: list[tuple[Any, ...]] = field(default_factory=list)

    def note(self, *call: Any) -> None:
        self.made.append(call)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.made if call[0] == name]


class Reporter(Calls):
    def __init__(self, trial_id: str = "t-1") -> None:
        super().__init__()
        self.trial_id = trial_id

    def started(self, observed: dict[str, object]) -> None:
        self.note("started", observed)

    def learn(self, observed: dict[str, object], measurement: Measurement | None) -> None:
        self.note("learn", observed, measurement)

    def measured(self) -> None:
        self.note("measured")

    def ended(self, state: State, reason: str, *, is_starter: bool = False) -> None:
        self.note("ended", state, reason)

    def close(self) -> None:
        self.note("close")

    def abandon(self) -> None:
        self.note("abandon")


class Peers(Calls):
    """The other ranks; ``answers`` are what they have posted, ``works`` what they report one after the other."""

    def __init__(self, *, works: Sequence[RankWork | None] = (), **answers: str) -> None:
        super().__init__()
        self.answers = {name.replace("__", "/"): word for name, word in answers.items()}
        self.works = list(works)
        self.stages: list[str] = []

    def post(self, name: str, value: str, *, within_s: float = 0.0) -> None:
        self.note("post", name, value, within_s)

    def post_work(self, word: str, *, within_s: float = 0.0) -> None:
        self.note("post_work", word, within_s)

    def ask(self, name: str, *, within_s: float) -> str:
        self.note("ask", name, within_s)
        return self.answers.get(name, "")

    def work(self, *, within_s: float, training: int) -> RankWork | None:
        self.note("work", within_s, training)
        return self.works.pop(0) if self.works else None

    def gather(self, names: Sequence[str], *, within_s: float = 0.0) -> list[str]:
        self.note("gather", list(names), within_s)
        return self.stages

    def meet(self, *, within_s: float) -> None:
        self.note("meet", within_s)

    def close(self) -> None:
        self.note("close")


class Training(Calls):
    def __init__(self, steps: int = 8, measured: Measurement | None = MEASURED) -> None:
        super().__init__()
        self.steps, self.measured = steps, measured
        self.n_stages = 0
        self.coverage = Coverage(number=1, trainings=1, steps=steps, all_steps=steps)
        self.encoded_stage_facts: dict[int, str] = {}
        self.is_due = False

    def count(self) -> None:
        self.note("count")

    def facts(self) -> dict[str, object]:
        return {"n_params": 3}

    def measurement(self, *, others: RankWork | None = None) -> Measurement | None:
        self.note("measurement", others)
        return self.measured

    def work_of_this_rank(self) -> tuple[float | None, float | None]:
        return 4.0, 64.0

    def paused_s(self) -> Callable[[float, float], float]:
        return lambda begin, end: 7.0

    def conclude(self) -> None:
        self.note("conclude")

    def release(self) -> None:
        self.note("release")

    def step(self, optimizer: object) -> bool:
        self.note("step", optimizer)
        return self.is_due

    def record_step(self, samples: float | None, tokens: float | None) -> bool:
        self.note("record_step", samples, tokens)
        return self.is_due

    def compiled(self) -> None:
        self.note("compiled")


class Lines(Calls):
    def __init__(self, logged: Measurement | None = None, *, is_declared: bool = False) -> None:
        super().__init__()
        self.logged, self.is_declared = logged, is_declared

    def measurement(
        self, facts: dict[str, object], *, paused_s: Callable[[float, float], float] = lambda begin, end: 0.0
    ) -> Measurement | None:
        self.note("measurement", facts, paused_s(0.0, 1.0))
        return self.logged

    def release(self) -> None:
        self.note("release")


def made(
    rank: int = 0,
    world_size: int = 1,
    *,
    declared: bool = True,
    trial_id: str | None = None,
    **contract: object,
) -> Session:
    job = read_job_environment({"RANK": str(rank), "WORLD_SIZE": str(world_size)})
    assignment = Assignment(
        job=job,
        contract=Contract(store="/the/store", **contract),
        declared=declared,
        trial_id=trial_id if trial_id is not None else "t-1" if rank == 0 else "",
    )
    session = Session(assignment)
    session._reporter = Reporter() if rank == 0 else None
    session._training = Training()
    return session


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Keep what a session leaves with this process, and note it."""
    noted = Calls()
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: noted.note("fork", hooks))
    monkeypatch.setattr(sessions.atexit, "register", lambda call: noted.note("atexit", call))
    monkeypatch.setattr(sessions, "once_torch_is_imported", lambda call: noted.note("torch", call))
    monkeypatch.setattr(sessions, "Reporter", lambda assignment, trial_id: Reporter(trial_id))
    yield noted
    measure.listen(None)


@pytest.mark.parametrize(
    ("rank", "world_size", "reads_lines"), [(0, 1, True), (0, 4, True), (3, 4, True), (1, 4, False), (2, 4, False)]
)
@pytest.mark.usefixtures("process")
def test_the_first_and_the_last_rank_read_lines(rank: int, world_size: int, reads_lines: bool) -> None:
    session = made(rank, world_size, log=LogPattern(pattern=r"(?P<samples_per_second>\d+)"))
    session.begin()
    assert (session._lines is not None) is reads_lines
    assert (session._reporter is not None) is (rank == 0)
    if session._lines is not None:
        assert session._lines.is_declared
        session._lines.release()


def test_a_session_begins(process: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    session = made()
    session.begin()
    assert capsys.readouterr().err == ""
    ((observed,),) = session._reporter.of("started")
    assert observed["world_size"] == 1
    assert session._reporter.trial_id == "t-1"
    session._lines.release()
    assert [name for name, *_ in process.made] == ["fork", "atexit", "torch"]
    process.of("fork")[0][0]["after_in_child"]()
    assert session._reporter.of("abandon") == [()]
    assert session._is_disabled


@pytest.mark.usefixtures("process")
def test_explicit_steps_reach_the_training() -> None:
    session = made()
    session.begin()
    session._lines.release()
    measure.step(samples=3, tokens=5)
    assert session._training.of("record_step") == [(3, 5)]


@pytest.mark.parametrize(("rank", "warns"), [("0", True), ("1", False)])
def test_a_damaged_contract_warns_once(
    rank: str, warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(program: Program) -> Assignment:
        raise ContractError("it is damaged")

    monkeypatch.setattr(sessions, "read_assignment", damaged)
    monkeypatch.setenv("RANK", rank)
    assert open_session(Program(name="train.py")) is None
    warning = "torchx-cubicml: warning: this launch is not recorded: it is damaged\n"
    assert capsys.readouterr().err == (warning if warns else "")


def test_a_guarded_hook_fails_once(capsys: pytest.CaptureFixture[str]) -> None:
    session, calls = made(), []

    def fail(*args: object, **kwargs: object) -> None:
        calls.append((args, kwargs))
        raise ValueError("broken")

    hook = session.guarded(fail)
    assert hook(1, two=2) is None
    assert hook(3) is None
    assert calls == [((1,), {"two": 2})]
    assert capsys.readouterr().err == (
        "torchx-cubicml: warning: recording stopped, the training continues: ValueError: broken\n"
    )
    assert session._training.of("release") == [()]
    other = made(rank=1, world_size=2)
    other.guarded(fail)()
    assert capsys.readouterr().err == ""


def test_hooks_rest_while_a_compiler_traces() -> None:
    session, calls = made(), []
    session._is_traced = lambda: True
    session.guarded(calls.append)(1)
    assert calls == []
    session._on_compilation(None, has_ended=True)  # runs within the compiler
    assert session._training.of("compiled") == [()]
    session._is_disabled = True
    session._on_compilation(None, has_ended=True)
    assert len(session._training.of("compiled")) == 1


def test_a_step_that_is_due_is_reported() -> None:
    session = made()
    session._on_step("optimizer", (), {})
    assert (session._training.of("step"), session._reporter.made) == ([("optimizer",)], [])
    session._training.is_due = True
    session._on_step("optimizer", (), {})
    assert session._reporter.made == [("learn", {"n_params": 3}, MEASURED), ("measured",)]
    session._on_unhooked_step(True)
    assert len(session._reporter.of("measured")) == 2
    session._training = None
    session._on_step("optimizer", (), {})
    session._on_unhooked_step(True)
    assert len(session._reporter.of("measured")) == 2


def test_a_checkpoint_is_a_fact_of_the_launch(tmp_path: Path) -> None:
    import torch

    session = made()
    session._checkpoints = Checkpoints()
    session._training.pauses = SimpleNamespace(saving=lambda save: save())
    assert "saves_checkpoints" not in session._facts(session._training)
    session._save(partial(torch.serialization.save, {}, io.BytesIO()))
    assert "saves_checkpoints" not in session._facts(session._training)
    session._save(partial(torch.serialization.save, {}, tmp_path / "a.pt"))
    assert session._facts(session._training)["saves_checkpoints"] is True


def test_another_rank_posts_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "peak_memory_gib", lambda: 2.5)
    session = made(rank=1, world_size=2)
    session._peers, session._training.is_due = Peers(), True
    session._on_step("optimizer", (), {})
    assert session._peers.made == [("post_work", "[2.5, 4.0, 64.0, false, 1, {}]", 0.0)]
    session._conclude()
    assert session._training.of("conclude") == [()]
    assert session._peers.made[1:] == [("post_work", "[2.5, 4.0, 64.0, true, 1, {}]", 3.0)]
    session._training = None
    session._conclude()
    assert session._peers.made[-1] == ("post_work", "[2.5, null, null, true, 1, {}]", 3.0)


def test_lines_count_while_there_are_no_steps() -> None:
    session = made()
    session._lines = Lines(LOGGED)
    session._on_lines()
    assert session._reporter.made == []  # there are steps, with which the lines are read
    session._training.steps = 0
    session._on_lines()
    assert session._reporter.made == [("learn", {}, LOGGED), ("measured",)]
    assert session._lines.made == [("measurement", {}, 7.0)]
    session._training = None
    session._on_lines()
    assert session._lines.made[1:] == [("measurement", {}, 0.0)]
    assert len(session._reporter.of("measured")) == 2
    session._lines = None
    session._on_lines()
    assert len(session._reporter.of("measured")) == 2


def test_the_last_rank_posts_its_lines() -> None:
    session = made(rank=1, world_size=2)
    session._training, session._lines, session._peers = None, Lines(), Peers()
    session._on_lines()
    assert session._peers.made == []
    session._lines.logged = LOGGED
    session._on_lines()
    text = encode_measurement(LOGGED)
    assert session._peers.made == [("post", "log", text, 0.0)]
    session._conclude()
    assert session._peers.of("post")[1:] == [("log", text, 3.0), ("log/end", text, 3.0)]
    session._peers = None
    session._on_lines()
    session._conclude()


NEVER = "the pattern of [log] in the space file never matched an output line with a number above zero"
DIFFERENCE = (
    "log lines give 50 samples_per_second for the whole job, optimizer steps give 100; both are recorded, "
    "and the {} take precedence"
)


@pytest.mark.parametrize(
    ("logged", "is_declared", "rate", "warning"),
    [
        (None, False, 100.0, ""),
        (None, True, 100.0, f"{NEVER}; the optimizer steps were timed all the same"),
        (LOGGED, False, 100.0, DIFFERENCE.format("optimizer steps")),
        (LOGGED, True, 50.0, DIFFERENCE.format("log lines")),
        (Measurement(step_time_s=(1.0, 1.0, 1.0), source="x"), True, 100.0, ""),
    ],
)
def test_the_end_reports_steps_and_lines(
    logged: Measurement | None,
    is_declared: bool,
    rate: float,
    warning: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = made()
    session._lines = Lines(logged, is_declared=is_declared)
    session._conclude()
    assert session._training.made == [("conclude",), ("measurement", None)]
    ((facts, measured),) = session._reporter.of("learn")
    assert (facts, measured.samples_per_second) == ({"n_params": 3}, rate)
    assert capsys.readouterr().err == (f"torchx-cubicml: warning: {warning}\n" if warning else "")


def test_a_pattern_that_never_matched_is_the_reason_of_a_launch_without_a_throughput(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = made()
    session._training.measured = None
    session._lines = Lines(is_declared=True)
    session.completed()
    assert session._reporter.of("ended") == [(State.COMPLETED, NEVER)]
    assert capsys.readouterr().err == f"torchx-cubicml: warning: {NEVER}\n"


@pytest.mark.parametrize(
    ("measured", "is_declared", "asks"),
    [
        (MEASURED, False, []),
        (MEASURED, True, [("log", 0.5), ("log/end", 3.0)]),
        (Measurement(), False, [("log", 0.5), ("log/end", 3.0)]),
        (None, False, [("log", 0.5), ("log/end", 3.0)]),
    ],
)
@pytest.mark.parametrize("has_end", [True, False])
def test_lines_of_another_rank_are_asked_for(
    measured: Measurement | None, is_declared: bool, asks: list[tuple[str, float]], has_end: bool
) -> None:
    first, last = (Measurement(samples_per_second=rate, source="x") for rate in (98.0, 99.0))
    session = made(world_size=2)
    session._lines = Lines(is_declared=is_declared)
    session._training.measured = measured
    posted = {"log": encode_measurement(first)} | ({"log__end": encode_measurement(last)} if has_end else {})
    session._peers = Peers(works=[RankWork()], **posted)
    session._conclude()
    assert session._peers.of("ask") == asks
    ((_, found),) = session._reporter.of("learn")
    expected = 99.0 if has_end else 98.0
    assert found.samples_per_second == (expected if asks else 100.0)


def test_a_single_process_asks_no_rank_for_lines() -> None:
    session = made()
    session._training.measured, session._peers = None, Peers(works=[RankWork()])
    session._conclude()
    assert session._peers.of("ask") == []
    session = made(world_size=2)
    session._training, session._peers = None, Peers()
    session._conclude()
    assert session._peers.of("ask") == [("log", 0.5)]
    assert session._reporter.made == [("learn", {}, None)]


@pytest.mark.parametrize(
    ("works", "asked", "counts"),
    [
        ([RankWork(samples=(4.0,))], [3.0], 0),
        ([RankWork(samples=(5.0,), has_ended=True)], [3.0], 0),
        ([RankWork(samples=(5.0,)), RankWork(samples=(6.0,), has_ended=True)], [3.0, 0.5], 1),
        ([RankWork(samples=(5.0,)), None, RankWork(samples=(4.0,))], [3.0, 0.5, 0.5], 2),
        ([None], [3.0], 0),
    ],
)
def test_other_ranks_are_waited_for_while_batches_differ(
    works: list[RankWork | None], asked: list[float], counts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(sessions.time, "sleep", waits.append)
    monkeypatch.setattr(sessions.time, "monotonic", lambda: 100.0)
    session = made(world_size=2)
    session._peers = Peers(works=works)
    session._conclude()
    assert session._peers.of("work") == [(limit, 1) for limit in asked]
    assert waits == [0.02] * counts
    assert session._training.of("measurement") == [(works[-1],)]


def test_the_end_says_which_of_several_trainings_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    session = made(world_size=2)
    session._training.coverage = Coverage(number=2, trainings=3, steps=8, all_steps=20)
    session._peers = Peers(works=[RankWork()])
    session._conclude()
    said = "3 trainings ran one after the other; the record measures number 2: 8 of the 20 steps seen"
    assert capsys.readouterr().err == f"torchx-cubicml: {said}\n"
    assert session._peers.of("work") == [(3.0, 2)]
    other = made(rank=1, world_size=2)
    other._training.coverage, other._peers = session._training.coverage, Peers()
    other._conclude()
    assert capsys.readouterr().err == "", "the first rank has said so"
    ((word, _),) = other._peers.of("post_work")
    assert json.loads(word)[4] == 2


def test_other_ranks_are_waited_for_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 100.49, 100.5, 100.51])
    monkeypatch.setattr(sessions.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(sessions.time, "monotonic", lambda: next(now))
    session = made(world_size=2)
    session._peers = Peers(works=[RankWork(samples=(5.0,))] * 9)
    session._conclude()
    assert len(session._peers.of("work")) == 2


def test_stages_of_a_pipeline_add_up_on_the_first_rank() -> None:
    session = made(world_size=2)
    session._peers, session._training.n_stages = Peers(), 2
    session._training.encoded_stage_facts = {0: "its facts"}
    session._peers.stages = ['{"n_params": 3}', '{"n_params": 4}']
    assert session._facts(session._training, within_s=0.25) == {"n_params": 7}
    assert session._peers.made == [
        ("post", "stage/0", "its facts", 0.25),
        ("gather", ["stage/0", "stage/1"], 0.25),
    ]
    session._peers = None
    assert session._facts(session._training) == {"n_params": 3}
    other = made(rank=1, world_size=2)
    other._peers, other._training.n_stages = Peers(), 2
    other._training.encoded_stage_facts = {1: "its facts"}
    assert other._facts(other._training) == {"n_params": 3}
    assert other._peers.made == [("post", "stage/1", "its facts", 0.0)]


class Refusing:
    def __init__(self, *, of_values: bool = False) -> None:
        self.releases = 0
        self.of_values = of_values

    def release(self) -> None:
        self.releases += 1

    def refusal(self) -> str:
        return "no"

    def refuses_values(self) -> bool:
        return self.of_values

    def illegal_values(self) -> tuple[str, ...]:
        return ()


def test_one_reason_of_several_hooks_gives_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = {name: Refusing(of_values=True) for name in ("torchrec", "torchrec_kernel", "torchrec_reserved")}
    assert hook_facts("torchrec", hooks["torchrec"]) == {"torchrec_hook": "values refused: no"}
    warn_of_refusals(hooks, ("torchrec", "torchrec_kernel"))
    assert capsys.readouterr().err == (
        "torchx-cubicml: warning: hook = 'torchrec' and 'torchrec_kernel' were not applied as requested: no\n"
    )


def test_hooks_are_released_at_the_first_facts() -> None:
    session, hook = made(), Refusing()
    session._hooks = {"fsdp": hook}
    for _ in range(2):
        assert session._facts(session._training) == {"n_params": 3, "fsdp_hook": "refused: no"}
    assert hook.releases == 1


def exit_after(code: int) -> SystemExit:
    """Return what ``sys.exit`` raises in the handler of a failure for want of memory."""
    made = SystemExit(code)
    made.__context__ = MemoryError("x")
    return made


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        (lambda session: session.completed(), State.COMPLETED, ""),
        (lambda session: session.exited(SystemExit(3)), State.USER_ERROR, "exit status 3"),
        (lambda session: session.failed(MemoryError("x")), State.OUT_OF_MEMORY, "MemoryError: x"),
        (lambda session: session.exited(exit_after(0)), State.COMPLETED, ""),
        (lambda session: session.exited(exit_after(1)), State.OUT_OF_MEMORY, "SystemExit: 1\nafter MemoryError: x"),
    ],
)
@pytest.mark.usefixtures("process")
def test_ends_are_reported(end: Callable[[Session], None], state: State, reason: str) -> None:
    session = made()
    session._lines = lines = Lines()
    session._is_disabled = True  # a hook has failed before
    end(session)
    assert session._reporter.made == [("ended", state, reason)]
    assert lines.of("release") == [()]
    assert session._is_disabled
    session = made()
    end(session)
    assert [name for name, *_ in session._reporter.made] == ["learn", "ended"]
    other = made(rank=1, world_size=2, trial_id="t-2")
    end(other)
    if state is State.COMPLETED:
        assert other._reporter is None
    else:
        assert (other._reporter.trial_id, other._reporter.made) == ("t-2", [("ended", state, reason)])


@pytest.mark.parametrize(("answer", "is_reported"), [("t-7", True), ("", False)])
@pytest.mark.usefixtures("process")
def test_a_failing_rank_asks_for_the_trial(answer: str, is_reported: bool) -> None:
    session = made(rank=1, world_size=2)
    session._peers = Peers(trial_id=answer)
    session.failed(ValueError("x"))
    assert session._peers.of("ask") == [("trial_id", 3.0)]
    assert (session._reporter is not None) is is_reported
    if session._reporter is not None:
        assert session._reporter.trial_id == "t-7"
    unreachable = made(rank=1, world_size=2)
    unreachable.failed(ValueError("x"))
    assert unreachable._reporter is None


def failing() -> None:
    raise ValueError("broken")


def test_a_forked_child_ends_nothing() -> None:
    session = made()
    session._pid += 1
    session.completed()
    session.close()
    assert session._reporter.made == []


def test_the_store_is_waited_for_at_exit(capsys: pytest.CaptureFixture[str]) -> None:
    session = made()
    session._peers = Peers()
    session.close()
    assert (session._peers.made, session._reporter.made) == ([("close",)], [("close",)])
    session._reporter.close = failing
    session.close()
    assert capsys.readouterr().err == ("torchx-cubicml: warning: the end of this launch was not recorded: broken\n")


@pytest.mark.parametrize(("steps", "leaves"), [(7, False), (8, True), (9, True)])
def test_a_profiling_launch_ends_at_its_limit(steps: int, leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(sessions, "peak_memory_gib", lambda: 2.5)
    session = made(step_limit=8, world_size=2)
    session._peers, session._training.steps = Peers(works=[RankWork()]), steps
    session._on_step("optimizer", (), {})
    assert ended == [0] * leaves
    if leaves:
        assert session._peers.made[:2] == [("post_work", "[2.5, 4.0, 64.0, true, 1, {}]", 3.0), ("meet", 10.0)]
        assert session._reporter.of("ended") == [(State.COMPLETED, STEP_LIMIT)]
        assert session._reporter.made[-1] == ("close",)


def test_an_ordinary_launch_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    session = made()
    for steps in (0, 1, 10_000):
        session._training.steps = steps
        session._on_step("optimizer", (), {})
    assert ended == []


def test_a_closed_stream_does_not_keep_a_profiling_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def flush(self) -> None:
            raise ValueError("I/O operation on closed file")

    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(sys, "stdout", Closed())
    session = made(step_limit=1)
    session._on_step("optimizer", (), {})
    assert ended == [0]


def test_a_failure_releases_every_hook() -> None:
    session, hook, calls = made(), Refusing(), []
    session._lines, session._hooks = Lines(), {"fsdp": hook}
    session._unhook = lambda: calls.append("steps")
    session._training.release = failing
    session._give_up(ValueError("x"))
    assert (calls, session._lines.of("release"), hook.releases) == (["steps"], [()], 1)
    assert session._is_disabled


@pytest.mark.parametrize(("is_initialized", "waits"), [(True, 1), (False, 0)])
def test_a_device_ends_its_work_before_a_profiling_launch(
    is_initialized: bool, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    cuda = Calls()
    cuda.is_initialized = lambda: is_initialized
    cuda.synchronize = lambda: cuda.note("waits", len(ended))
    cuda.max_memory_allocated = lambda: 0
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    made(step_limit=1)._on_step("optimizer", (), {})
    assert cuda.of("waits") == [(0,)] * waits
    monkeypatch.delitem(sys.modules, "torch")
    made(step_limit=1)._on_step("optimizer", (), {})
    assert ended == [0, 0]


@pytest.fixture
def of_torch(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Note what is installed once torch is imported, in place of installing it."""
    noted = Calls()
    monkeypatch.setattr(sessions, "once_imported", lambda name, call: noted.note("once", name))
    monkeypatch.setattr(sessions, "on_every_step", lambda hook: SimpleNamespace(remove=noted))
    for place, name in (
        ("steps.evaluation_passes", "on_every_mode_switch"),
        ("steps.evaluation_passes", "on_every_no_grad"),
        ("steps.checkpoint_calls", "watch_checkpoints"),
        ("steps.torch_hooks", "hide_hooks_from_torchscript"),
        ("steps.clipping", "Clipping.install"),
    ):
        call = partial(noted.note, name)
        monkeypatch.setattr(f"torchx_cubicml.recorder.{place}.{name}", lambda *_, call=call: call())
    return noted


@pytest.mark.parametrize(
    ("trial_id", "rank", "job_id", "posts"),
    [
        ("t-1", 0, "", [("trial_id", "t-1", 0.0)]),
        ("t-1", 0, "slurm://torchx/7", []),
        ("t-1", 1, "", []),
    ],
)
def test_hooks_are_installed_with_torch(
    trial_id: str,
    rank: int,
    job_id: str,
    posts: list[tuple[object, ...]],
    of_torch: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers()
    monkeypatch.setattr("torchx_cubicml.recorder.ranks.peers.Peers", lambda job: peers)
    job = read_job_environment({"RANK": str(rank), "WORLD_SIZE": "2", "TORCHX_JOB_ID": job_id})
    contract = Contract(store="/s", step_limit=5, config={"micro_batch_size": 3})
    session = Session(Assignment(job=job, contract=contract, declared=True, trial_id=trial_id))
    session._on_torch()
    assert of_torch.made == [
        ("hide_hooks_from_torchscript",),
        ("Clipping.install",),
        ("on_every_mode_switch",),
        ("on_every_no_grad",),
        ("watch_checkpoints",),
        ("once", "torch._dynamo.callback"),
    ]
    assert peers.of("post") == posts
    assert (session._training._step_limit, session._training._forwards._requested) == (5, 3)
    assert session._unhook is of_torch
    assert session._training.on_unhooked_step == session._on_unhooked_step
    kept = session._training
    session._on_torch()  # explicit steps may have begun a training before
    assert session._training is kept
    kept.release()
