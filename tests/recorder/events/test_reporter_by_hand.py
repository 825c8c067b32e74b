"""Events of a reporter whose sender is a stand-in."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.events import reporter as module
from torchx_cubicml.recorder.events.printed_trials import printed_events
from torchx_cubicml.recorder.events.reporter import Reporter
from torchx_cubicml.recorder.process.assignment import Assignment
from torchx_cubicml.records.contract import Contract
from torchx_cubicml.records.event import Event, EventKind, fold_events
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = {
    "RANK": "0",
    "SLURM_JOB_END_TIME": "1000",
    "SLURM_RESTART_COUNT": "3",
    "TORCHELASTIC_ERROR_FILE": "/logs/0/error.json",
}


class Sender:
    """Keeps what it is given; ``problems`` are what the writer reports, one at a time."""

    def __init__(self, store: str, **more: Any) -> None:
        self.store, self.more = store, more
        self.events: list[Event] = []
        self.problems: list[str] = []
        self.has_written = True
        self.outcome = ""
        self.abandoned = 0

    def send(self, message: dict[str, Any]) -> None:
        self.events.append(Event.from_json(json.loads(json.dumps(message))))

    def problem(self) -> str:
        return self.problems.pop(0) if self.problems else ""

    close = problem

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Reporter, Any]]:
    monkeypatch.setattr(module, "EventSender", Sender)

    def make(
        *, store: str = "/the/store", declared: bool = True, scheduler: str = "", **job: str
    ) -> tuple[Reporter, Any]:
        contract = Contract(
            store=store, config={"a": 1}, workload={"program": "t.py"}, launch_id="l-1", scheduler=scheduler
        )
        assignment = Assignment(
            job=read_job_environment({**JOB, **job}),
            contract=contract,
            declared=declared,
            trial_id="another",
            write_deadline_s=7.0,
        )
        reporter = Reporter(assignment, "t-1")
        return reporter, reporter._sender

    return make


def test_the_sender_is_made_for_this_job(made: Callable[..., tuple[Reporter, Any]]) -> None:
    reporter, sender = made(WORLD_SIZE="8")
    assert sender.store == "/the/store"
    assert sender.more == {
        "deadline_s": 7.0,
        "stderr": "/logs/0/stderr.log",
        "ends_at": 1000,
        "world_size": 8,
        "command": None,
        "pid": os.getpid(),
    }
    reporter.abandon()
    assert sender.abandoned == 1


def test_events_are_numbered_and_cumulative(made: Callable[..., tuple[Reporter, Any]]) -> None:
    reporter, sender = made(RANK="2")
    measured = Measurement(samples_per_second=4.0, steps_counted=3)
    reporter.started({"x": 1, "y": 1})
    reporter.learn({"y": 2}, measured)
    reporter.measured()
    reporter.learn({"z": 3}, None)
    reporter.ended(State.USER_ERROR, "why")
    first, second, last = sender.events
    assert [event.sequence for event in sender.events] == [0, 1, 2]
    assert [event.kind for event in sender.events] == [EventKind.STARTED, EventKind.MEASURED, EventKind.ENDED]
    assert [dict(event.observed) for event in sender.events] == [
        {"x": 1, "y": 1},
        {"x": 1, "y": 2},
        {"x": 1, "y": 2, "z": 3},
    ]
    assert [event.measurement for event in sender.events] == [None, measured, measured]
    assert [(event.state, event.reason) for event in (first, second, last)] == [
        (None, ""),
        (None, ""),
        (State.USER_ERROR, "why"),
    ]
    same = ("t-1", "l-1", (3, 0), "rank2", {"program": "t.py"}, {"a": 1})
    for event in sender.events:
        assert (event.trial_id, event.launch_id, event.attempt, event.writer, event.workload, event.config) == same
        assert event.time


def test_a_starter_ends_after_its_ranks_and_states_its_facts_before(
    made: Callable[..., tuple[Reporter, Any]],
) -> None:
    reporter, sender = made()
    reporter.started({"world_size": 1})
    reporter.ended(State.COMPLETED, "", is_starter=True)
    of_rank = [
        replace(sender.events[0], sequence=sequence, kind=kind, observed={"world_size": 2}, state=state, reason=reason)
        for sequence, kind, state, reason in (
            (300, EventKind.STARTED, None, ""),
            (301, EventKind.ENDED, State.USER_ERROR, "exit status 7"),
        )
    ]
    (trial,) = fold_events([*sender.events, *of_rank])
    assert (trial.observed["world_size"], trial.state, trial.reason) == (2, State.USER_ERROR, "exit status 7")


def test_the_printed_line_of_a_starter_holds_its_facts_before_those_of_ranks(
    made: Callable[..., tuple[Reporter, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_PRINT_TRIAL", "1")
    reporter, sender = made()
    sender.outcome = "recorded no throughput"
    reporter.started({"world_size": 1, "host": "h"})
    reporter.ended(State.COMPLETED, "", is_starter=True)
    reporter.close()
    printed = capsys.readouterr().err.splitlines()
    events, problems = printed_events(printed)
    assert problems == []
    of_rank = replace(events[0], sequence=300, observed={"world_size": 2})
    (trial,) = fold_events([of_rank, *events])
    assert (trial.state, dict(trial.observed)) == (State.COMPLETED, {"world_size": 2, "host": "h"})
    assert not any(sender.outcome in line for line in printed), "of ranks, rank 0 tells the outcome"


def test_facts_of_another_training_are_dropped(made: Callable[..., tuple[Reporter, Any]]) -> None:
    reporter, sender = made()
    reporter.started({"x": 1})
    reporter.learn({"a": 1, "b": 1}, None)
    reporter.measured()
    reporter.learn({"a": 1, "b": 1, "measured_training": 1}, None)
    reporter.measured()
    reporter.learn({}, None)
    reporter.learn({"a": 2, "measured_training": 2}, None)
    reporter.ended(State.COMPLETED, "")
    assert [dict(event.observed) for event in sender.events[1:]] == [
        {"x": 1, "a": 1, "b": 1},
        {"x": 1, "a": 1, "b": 1, "measured_training": 1},
        {"x": 1, "a": 2, "measured_training": 2},
    ]
    (trial,) = fold_events(sender.events)
    assert trial.observed == {"x": 1, "a": 2, "measured_training": 2}
    (trial,) = fold_events(sender.events[:3])
    assert trial.observed == {"x": 1, "a": 1, "b": 1, "measured_training": 1}


def test_a_speed_is_of_the_training_that_the_facts_describe(made: Callable[..., tuple[Reporter, Any]]) -> None:
    """Before memory ran out, another training was measured; what followed was too short for a steady state."""
    reporter, sender = made()
    reporter.started({})
    reporter.learn({"micro_batch_size": 8}, Measurement(samples_per_second=9.0, steps_counted=20))
    reporter.measured()
    reporter.learn({"micro_batch_size": 4, "trainings": 2, "measured_training": 2}, None)
    reporter.ended(State.COMPLETED, "")
    (trial,) = fold_events(sender.events)
    assert (trial.observed["micro_batch_size"], trial.measurement) == (4, None)
    (trial,) = fold_events(sender.events[:-1])
    assert trial.measurement is not None


@pytest.mark.parametrize(("now", "state"), [(999.0, State.INFRASTRUCTURE), (1001.0, State.TIMEOUT)])
def test_the_first_end_is_sorted_by_the_time_limit(
    now: float, state: State, made: Callable[..., tuple[Reporter, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter, sender = made()
    monkeypatch.setattr(time, "time", lambda: now)
    reporter.ended(State.INFRASTRUCTURE, "ended by SIGTERM")
    reporter.ended(State.COMPLETED, "")
    (event,) = sender.events
    assert event.state is state
    assert event.reason.startswith("ended by SIGTERM")


@pytest.mark.parametrize("problems", [["", "slow", "dead"], ["slow", "dead"], ["slow"], [""]])
def test_one_problem_is_told(
    problems: list[str], made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made()
    sender.problems = list(problems)
    for _ in problems[:-1]:
        reporter.measured()
    reporter.close()
    warning = "torchx-cubicml: warning: this launch is only partly recorded: slow\n"
    assert capsys.readouterr().err == (warning if "slow" in problems else "")


@pytest.mark.parametrize(("rank", "what"), [("0", "this launch"), ("3", "the end of rank 3")])
def test_the_end_says_that_nothing_was_written(
    rank: str, what: str, made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made(RANK=rank)
    sender.problems, sender.has_written = ["slow", "slow", "slow"], False
    reporter.measured()
    reporter.measured()
    assert capsys.readouterr().err == "torchx-cubicml: warning: this launch is not recorded so far: slow\n"
    reporter.close()
    assert capsys.readouterr().err == f"torchx-cubicml: warning: {what} was not recorded: slow\n"


def test_a_store_that_recovers_is_not_called_lost(
    made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made()
    sender.problems, sender.has_written = ["slow", "slow"], False
    reporter.measured()
    sender.has_written = True
    reporter.close()
    assert capsys.readouterr().err == (
        "torchx-cubicml: warning: this launch is not recorded so far: slow\n"
        "torchx-cubicml: warning: this launch is only partly recorded: slow\n"
    )


PROC = "/proc/nope: /proc holds no files but those of the kernel"


@pytest.mark.parametrize(
    ("store", "declared", "scheduler", "line"),
    [
        ("/the/store", False, "", "recording to /the/store"),
        ("/the/store", True, "", ""),
        ("/proc/nope", False, "", f"warning: this launch will not be recorded: cannot write to store {PROC}"),
        ("/proc/nope", True, "slurm", f"warning: this launch will not be recorded: cannot write to store {PROC}"),
        ("/proc/nope", True, "local_cwd", ""),
        ("/proc/nope", True, "", ""),
    ],
    ids=["by hand", "launched", "obstacle by hand", "obstacle in a cluster", "TorchX has said so", "cubicrun has"],
)
def test_the_start_says_what_the_launcher_did_not(
    store: str,
    declared: bool,
    scheduler: str,
    line: str,
    made: Callable[..., tuple[Reporter, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter, sender = made(store=store, declared=declared, scheduler=scheduler)
    reporter.started({})
    assert capsys.readouterr().err == (f"torchx-cubicml: {line}\n" if line else "")
    sender.problems = ["no such folder"]
    reporter.measured()
    said = "torchx-cubicml: warning: this launch is only partly recorded: no such folder\n"
    assert capsys.readouterr().err == ("" if store == "/proc/nope" else said), "what was said at the start is not again"


@pytest.mark.parametrize(("rank", "ends", "prints"), [("0", True, True), ("1", True, False), ("0", False, False)])
def test_the_leading_rank_prints_its_end(
    rank: str, ends: bool, prints: bool, made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made(RANK=rank)
    sender.has_written = False
    reporter.started({})
    if ends:
        reporter.ended(State.COMPLETED, "")
    reporter.close()
    *_, last = capsys.readouterr().err.splitlines(keepends=True)
    mark, _, text = last.partition(" ")
    assert (mark == "CUBICML_TRIAL") is prints
    if prints:
        assert Event.from_json(json.loads(text)) == sender.events[-1]
        assert '": ' not in text
        assert text.endswith("}\n")


@pytest.mark.parametrize(
    ("given", "shows"),
    [
        ({"store": "s3://team/cubicml"}, "torchx cubicml history show t-1 --store s3://team/cubicml"),
        ({"store": "s3://team/cubicml", "RANK": "1"}, ""),
        (
            {"store": "/tmp/store", "scheduler": "slurm"},
            "the store may end with this job, so the line above holds the trial, too",
        ),
    ],
    ids=["recorded", "another rank", "a store that may be lost"],
)
def test_the_leading_rank_ends_with_the_outcome(
    given: dict[str, str], shows: str, made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made(**given)
    sender.outcome = "recorded 5 tokens/s"
    reporter.ended(State.COMPLETED, "")
    reporter.close()
    last = capsys.readouterr().err.splitlines()[-1:]
    assert last == ([f"torchx-cubicml: recorded 5 tokens/s; {shows}"] if shows else [])


@pytest.mark.parametrize(("letters", "breaks"), [(1, False), (20, True), (90, True)])
def test_the_command_for_a_store_with_a_long_path_has_a_line_of_its_own(
    letters: int, breaks: bool, made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"s3://{'a' * letters}"
    reporter, sender = made(store=store)
    sender.outcome = "recorded 6,020 tokens/s"
    reporter.ended(State.COMPLETED, "")
    reporter.close()
    lines = capsys.readouterr().err.splitlines()[-2:]
    show = f"torchx cubicml history show t-1 --store {store}"
    if breaks:
        assert lines == [f"torchx-cubicml: {sender.outcome}", f"torchx-cubicml: {show}"]
    else:
        assert lines[-1] == f"torchx-cubicml: {sender.outcome}; {show}"
        assert len(lines[-1]) <= 100


def test_a_long_random_part_names_a_trial_of_the_default_store(
    made: Callable[..., tuple[Reporter, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "default_store_url", lambda: "/home/me/.torchx-cubicml")
    for trial_id, has_torchx, shows in (
        ("local_cwd-train-bk3wbd6d4pxlnd", True, "torchx cubicml history show bk3wbd6d4pxlnd"),
        ("slurm-cluster-1234", True, "torchx cubicml history show slurm-cluster-1234"),
        ("slurm-cluster-1234", False, "trial slurm-cluster-1234"),
    ):
        monkeypatch.setattr(module, "find_spec", lambda _, found=has_torchx: found or None)
        reporter, sender = made(store="/home/me/.torchx-cubicml")
        reporter._trial_id, sender.outcome = trial_id, "recorded 5 tokens/s"
        reporter.ended(State.COMPLETED, "")
        reporter.close()
        assert capsys.readouterr().err == f"torchx-cubicml: recorded 5 tokens/s; {shows}\n"


def test_what_is_only_partly_recorded_has_no_outcome(
    made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made()
    sender.problems, sender.outcome = ["slow"], "recorded 5 tokens/s"
    reporter.ended(State.COMPLETED, "")
    reporter.close()
    assert "recorded 5" not in capsys.readouterr().err


def printed(made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str], **given: str) -> bool:
    """Return whether a recorded trial is printed, too."""
    reporter, _ = made(**given)
    reporter.ended(State.COMPLETED, "")
    reporter.close()
    return "CUBICML_TRIAL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "prints"),
    [
        ({"store": "/tmp/store"}, False),
        ({"store": "/tmp/store", "scheduler": "local_cwd", "SLURM_JOB_ID": "1"}, False),
        ({"store": "/tmp/store", "scheduler": "slurm"}, True),
        ({"store": "/tmp/store", "SLURM_JOB_ID": "1"}, True),
        ({"store": "/node/scratch/store", "scheduler": "slurm", "SLURM_TMPDIR": "/node/scratch"}, True),
        ({"store": "/tmp/store", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({"store": "s3://team/cubicml", "scheduler": "kubernetes"}, False),
    ],
)
def test_a_trial_that_may_be_lost_is_printed(
    given: dict[str, str],
    prints: bool,
    made: Callable[..., tuple[Reporter, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(made, capsys, **given) is prints


def test_a_setting_asks_for_the_line(
    made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_PRINT_TRIAL", "yes")
    assert printed(made, capsys)


def test_a_trial_that_is_only_partly_recorded_is_printed(
    made: Callable[..., tuple[Reporter, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, sender = made()
    reporter.ended(State.COMPLETED, "")
    sender.problems = ["the disk is full"]
    reporter.close()
    assert "CUBICML_TRIAL" in capsys.readouterr().err
