"""Answers of Ray's job server by a client that stands in for it; ``tests/schedulers/test_ray.py`` has a real server."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.ray import RayQuery

ADDRESS = "127.0.0.1:8265"
WAITING = "INFO: Waiting for minimum placement group to start.\n"
PLACED = f"{WAITING}INFO: Successfully created placement groups\n"
FAILED = "Job entrypoint command failed with exit code 1"
LOG = f"{FAILED}, last available logs (truncated to 20,000 chars):\n"
OF_THE_TRAINING = "(CommandActor pid=7) torch.OutOfMemoryError: CUDA out of memory\n"


class Server:
    """Jobs of a cluster by submission id, each with its status, message and log."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, str | None, str]] = {}
        self.asked: list[str] = []  # addresses
        self.stopped: list[str] = []
        self.logs_read = 0

    def __call__(self, address: str) -> Server:
        self.asked.append(address)
        return self

    def get_job_info(self, submission_id: str) -> SimpleNamespace:
        if submission_id not in self.jobs:
            raise RuntimeError(f"Job {submission_id} does not exist")
        status, message, _ = self.jobs[submission_id]
        return SimpleNamespace(status=status, message=message, submission_id=submission_id)

    def get_job_logs(self, submission_id: str) -> str:
        self.logs_read += 1
        return self.jobs[submission_id][2]

    def list_jobs(self) -> list[SimpleNamespace]:
        other = SimpleNamespace(status="RUNNING", message=None, submission_id=None)  # no job of the job server
        return [other, *(self.get_job_info(name) for name in self.jobs)]

    def stop_job(self, submission_id: str) -> bool:
        self.stopped.append(submission_id)
        return self.jobs[submission_id][0] in {"PENDING", "RUNNING"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server, package, module = Server(), ModuleType("ray"), ModuleType("ray.job_submission")
    module.JobSubmissionClient = server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    return server


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("PENDING", "Job has not started yet.", JobState(phase=JobPhase.QUEUED, why="Job has not started yet.")),
        ("RUNNING", "Job is currently running.", JobState(phase=JobPhase.RUNNING)),
        ("SUCCEEDED", "Job finished.", JobState(phase=JobPhase.ENDED, end=JobEnd.SUCCEEDED)),
        ("STOPPED", None, JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED)),
        ("PAUSED", None, JobState(phase=JobPhase.UNKNOWN, why="PAUSED")),
    ],
)
def test_each_status_is_read(server: Server, status: str, message: str | None, expected: JobState) -> None:
    server.jobs["train-1"] = status, message, PLACED
    assert RayQuery(ADDRESS).look(f"{ADDRESS}-train-1") == expected


OF_RAY = "killed due to the node running low on memory"


@pytest.mark.parametrize(
    ("message", "end", "why"),
    [
        (f"{LOG}SystemExit: 1\n", JobEnd.FAILED, FAILED),
        (f"{LOG}{OF_THE_TRAINING}", JobEnd.FAILED, FAILED),
        (f"{LOG}(CommandActor pid=7) ray.exceptions.Error: {OF_RAY}\n", JobEnd.FAILED, FAILED),
        (
            f"{LOG}{OF_THE_TRAINING}ray.exceptions.OutOfMemoryError: 1 worker(s) were {OF_RAY}. Memory on the node\n",
            JobEnd.OUT_OF_MEMORY,
            f"1 worker(s) were {OF_RAY}",
        ),
        (
            f"Unexpected error occurred: 2 worker(s) were {OF_RAY}. Memory on the node (IP: 10.0.0.1)\nOOM kill reason",
            JobEnd.OUT_OF_MEMORY,
            f"2 worker(s) were {OF_RAY}",
        ),
        (
            f"{LOG}ray.exceptions.ActorDiedError: The actor died because its node has died.\n",
            JobEnd.NODE_FAILED,
            "The actor died because its node has died",
        ),
        (
            f"{LOG}TimeoutError: Placement group creation timed out. Make sure that\n",
            JobEnd.NO_ROOM,
            "Placement group creation timed out",
        ),
    ],
    ids=["failed", "device memory", "quoted", "memory", "memory of the driver", "node lost", "no room"],
)
def test_the_cause_of_a_failure_is_in_rays_own_lines(server: Server, message: str, end: JobEnd, why: str) -> None:
    server.jobs["train-1"] = "FAILED", message, ""
    assert RayQuery(ADDRESS).look(f"{ADDRESS}-train-1") == JobState(phase=JobPhase.ENDED, end=end, why=why)


def test_the_exit_code_of_the_training_is_told(server: Server) -> None:
    server.jobs["train-1"] = "FAILED", f"{LOG}RuntimeError: exec_module failed with return code -9\n", ""
    found = RayQuery(ADDRESS).look(f"{ADDRESS}-train-1")
    assert found == JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why="exit code -9")


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (
            "of the driver\n\x1b[36m(CommandActor pid=7, ip=10.0.0.2)\x1b[0m one\n(CommandActor pid=8) two\n",
            ("one", "two"),
        ),
        ("of the driver\n", ("of the driver",)),
    ],
    ids=["training", "driver"],
)
def test_the_lines_of_the_training_are_told_apart(server: Server, log: str, lines: tuple[str, ...]) -> None:
    server.jobs["train-1"] = "FAILED", None, log
    assert RayQuery(ADDRESS).lines(f"{ADDRESS}-train-1") == lines
    assert RayQuery(ADDRESS).lines(f"{ADDRESS}-train-2") == ()


def test_a_job_that_waits_for_room_is_queued_although_its_driver_runs(server: Server) -> None:
    query = RayQuery(ADDRESS)
    server.jobs["train-1"] = "RUNNING", None, WAITING
    assert query.look(f"{ADDRESS}-train-1") == JobState(phase=JobPhase.QUEUED, why="waits for room on the cluster")
    server.jobs["train-1"] = "RUNNING", None, PLACED
    for _ in range(3):
        assert query.look(f"{ADDRESS}-train-1") == JobState(phase=JobPhase.RUNNING)
    assert server.logs_read == 2  # a log may be long


def test_a_job_whose_driver_starts_is_not_placed_yet(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    query, job = RayQuery(ADDRESS), f"{ADDRESS}-train-1"
    for log, why in (("", "its driver starts"), (WAITING, "waits for room on the cluster")):
        server.jobs["train-1"] = "RUNNING", None, log
        assert query.look(job) == JobState(phase=JobPhase.QUEUED, why=why)
    for number, log in enumerate((PLACED, OF_THE_TRAINING, "a line\n" * 10_000)):
        server.jobs[f"train-{number}"] = "RUNNING", None, log
        assert query.look(f"{ADDRESS}-train-{number}") == JobState(phase=JobPhase.RUNNING)
    server.jobs["train-7"] = "RUNNING", None, "a driver without messages\n"
    query.look(f"{ADDRESS}-train-7")
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert query.look(f"{ADDRESS}-train-7") == JobState(phase=JobPhase.RUNNING)


def test_an_explanation_is_one_short_line(server: Server) -> None:
    server.jobs["train-1"] = "PENDING", "one\n\ttwo\n" * 1000, ""
    server.jobs["train-2"] = "FAILED", f"Unexpected error occurred: {'far' * 1000} {OF_RAY}\n", ""
    one, other = (RayQuery(ADDRESS).look(f"{ADDRESS}-train-{number}") for number in (1, 2))
    assert one is not None
    assert other is not None
    assert one.why.startswith("one two one two")
    assert (len(one.why), len(other.why), other.end) == (300, 300, JobEnd.OUT_OF_MEMORY)


def test_jobs_are_found_by_their_launch(server: Server) -> None:
    for name in ("train-launch-a-0001-x7", "train-launch-a-0002-y8", "train-launch-b-0001-z9", "mine"):
        server.jobs[name] = "RUNNING", None, PLACED
    assert RayQuery(ADDRESS).find(["launch-a-0002", "launch-a-0003"]) == {
        "launch-a-0002": f"{ADDRESS}-train-launch-a-0002-y8"
    }
    assert not RayQuery(ADDRESS).submitting(["launch-a-0003"])


@pytest.mark.parametrize(
    ("app_id", "address"),
    [("10.0.0.1:8265-train-1", "10.0.0.1:8265"), ("my-head:80-train-1", "my-head:80"), ("head-train-1", "head")],
)
def test_a_job_is_stopped_where_it_was_submitted(server: Server, app_id: str, address: str) -> None:
    server.jobs["train-1"] = "RUNNING", None, PLACED
    assert RayQuery(ADDRESS).cancel(app_id)
    assert (server.stopped, server.asked) == (["train-1"], [f"http://{address}"])
    server.jobs["train-1"] = "STOPPED", None, PLACED
    assert not RayQuery(ADDRESS).cancel(app_id)


def test_a_job_server_that_does_not_answer_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    query = RayQuery(ADDRESS)
    state = query.look(f"{ADDRESS}-train-1")
    assert (state.phase, state.is_answer) == (JobPhase.UNKNOWN, False)
    assert query.find(["launch-a-0001"]) is None
    assert not query.cancel(f"{ADDRESS}-train-1")


def test_a_job_that_the_server_does_not_know_has_no_state(server: Server) -> None:
    assert RayQuery(ADDRESS).look(f"{ADDRESS}-train-1") is None
    assert set(server.asked) == {f"http://{ADDRESS}"}
