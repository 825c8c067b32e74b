"""Local jobs of another process, known by the launch in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.local import LocalQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENDED = JobState(phase=JobPhase.ENDED, end=JobEnd.UNWATCHED)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    begun: list[subprocess.Popen[bytes]] = []

    def start(value: str, program: str = "") -> subprocess.Popen[bytes]:
        """Return a process that lasts, once it runs its program."""
        program = f"import sys, time; {program or 'pass'}; print(flush=True); sys.stdout.close(); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", program],
            env={**os.environ, CONTRACT_VARIABLE: value},
            stdout=subprocess.PIPE,
        )
        begun.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def of(launch_id: str) -> str:
    return encode_contract(Contract(store="/nowhere", launch_id=launch_id))


def test_a_launch_runs_while_a_process_of_it_lives(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    launch_id, other = new_id("launch"), new_id("launch")
    process = start(of(launch_id))
    query = LocalQuery()
    assert query.look(launch_id) == JobState(phase=JobPhase.RUNNING)
    assert query.look(other) == ENDED
    assert query.find([launch_id, other]) == {launch_id: launch_id}
    assert not query.submitting([launch_id])
    process.kill()
    process.wait()
    assert query.look(launch_id) == ENDED


def test_a_contract_that_nobody_can_read_is_of_no_launch(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    launch_id = new_id("launch")
    start("\udcff\udcfe no contract")
    start(of(launch_id))
    query = LocalQuery()
    assert query.look(launch_id).phase is JobPhase.RUNNING
    assert query.look("").phase is JobPhase.ENDED


def test_who_writes_the_events_of_a_launch_is_none_of_it(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    launch_id = new_id("launch")
    start(of(launch_id), "'torchx_cubicml.recorder.events.writer'")
    assert LocalQuery().look(launch_id) == ENDED


def test_a_launch_with_logs_has_or_had_a_process(tmp_path: Path) -> None:
    (tmp_path / "launch-1" / "session" / "app").mkdir(parents=True)
    (tmp_path / "launch-2" / "session").mkdir(parents=True)
    assert LocalQuery(str(tmp_path)).find(["launch-1", "launch-2", "launch-3"]) == {"launch-1": "launch-1"}
    assert LocalQuery().find(["launch-1"]) == {}


@pytest.mark.parametrize(
    ("program", "signal"),
    [("", -15), ("import signal; signal.signal(15, signal.SIG_IGN)", -9)],
    ids=["ends when asked", "does not"],
)
def test_a_cancelled_launch_has_no_process_left(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, program: str, signal: int
) -> None:
    monkeypatch.setattr("torchx_cubicml.tuner.scheduler.local._GRACE_S", 0.3)
    launch_id = new_id("launch")
    process = start(of(launch_id), program)
    LocalQuery().cancel(launch_id)
    assert process.wait() == signal
    assert LocalQuery().cancel(launch_id)


def test_nothing_is_said_of_a_launch_where_processes_are_not_seen(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    launch_id = new_id("launch")
    process = start(of(launch_id))
    (tmp_path / "logs" / launch_id / "session" / "app").mkdir(parents=True)
    blind = LocalQuery(str(tmp_path / "logs"), proc=tmp_path / "no-proc")
    assert LocalQuery().sees_processes
    assert not blind.sees_processes
    assert blind.look(launch_id) is None
    assert blind.find([launch_id, "launch-other"]) == {launch_id: launch_id}  # by its logs
    assert not blind.cancel(launch_id)
    assert process.poll() is None
