"""Docker's answers about jobs, from a stand-in with answers in the shape of `docker inspect`, written by hand.

``make test-schedulers`` asks a real one.
"""

from __future__ import annotations

import gc
import json
import tempfile
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.tuner.scheduler.docker import DockerQuery, launch_of, state_of
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
LABEL = "torchx.pytorch.org/app-id"
ROLE, REPLICA = "torchx.pytorch.org/role-name", "torchx.pytorch.org/replica-id"
REFUSED = 'OCI runtime create failed: exec: "no": executable file not found in $PATH: unknown'


def container(
    status: str,
    *,
    code: int = 0,
    killed: bool = False,
    error: str = "",
    app: str = "app-1",
    launch: str = "",
    age_s: float = 1.0,
) -> dict[str, Any]:
    """Return the parts of `docker inspect` that are read."""
    contract = Contract(launch_id=launch, store="/store", origin=Origin.TUNE) if launch else None
    variables = [f"{CONTRACT_VARIABLE}={encode_contract(contract)}"] if contract else []
    created = (NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", ".123456789Z")
    return {
        "Id": f"{app}-{status}-{code}",
        "Created": created,
        "State": {"Status": status, "ExitCode": code, "OOMKilled": killed, "Error": error},
        "Config": {
            "Tty": False,
            "Env": ["PATH=/usr/bin", *variables],
            "Labels": {LABEL: app, ROLE: "role", REPLICA: str(code)},
        },
    }


def ended(end: JobEnd, why: str = "") -> JobState:
    return JobState(phase=JobPhase.ENDED, end=end, why=why)


OVER = container("exited")
OUT = container("exited", code=137, killed=True)
FAILED = container("exited", code=7)


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([], None),
        ([OVER], ended(JobEnd.SUCCEEDED)),
        ([container("exited", killed=True)], ended(JobEnd.SUCCEEDED)),
        ([FAILED], ended(JobEnd.FAILED, "exit code 7")),
        ([container("exited", code=128, error="no space left")], ended(JobEnd.FAILED, "exit code 128: no space left")),
        ([OUT], ended(JobEnd.OUT_OF_MEMORY, "OOMKilled")),
        ([OVER, FAILED, OUT], ended(JobEnd.OUT_OF_MEMORY, "OOMKilled")),
        ([OVER, FAILED], ended(JobEnd.FAILED, "exit code 7")),
        ([OVER, container("running"), FAILED], JobState(phase=JobPhase.RUNNING)),
        ([container("created"), container("paused")], JobState(phase=JobPhase.RUNNING)),
        ([container("restarting", code=1), OVER], JobState(phase=JobPhase.QUEUED)),
        ([container("created", age_s=59)], JobState(phase=JobPhase.QUEUED)),
        ([container("created", age_s=61)], ended(JobEnd.UNWATCHED, "its container was never started")),
        ([container("created", code=127, error=REFUSED)], ended(JobEnd.FAILED, f"exit code 127: {REFUSED}")),
        ([container("removing")], None),
    ],
    ids=[
        *(
            "no container",
            "ends",
            "outlives a kill",
            "fails",
            "fails with a cause",
            "out of memory",
            "the kill counts",
            "the failure counts",
        ),
        *("one runs", "paused", "restarts", "just made", "never started", "cannot start", "removed"),
    ],
)
def test_the_state_of_a_job(containers: list[dict[str, Any]], expected: JobState | None) -> None:
    assert state_of(containers, now=NOW) == expected


def test_a_container_names_its_launch() -> None:
    assert launch_of(container("running", launch="launch-1")) == "launch-1"
    assert launch_of(container("running")) == ""
    assert launch_of({"Config": {"Env": None}}) == ""
    assert launch_of({"Config": {"Env": [f"{CONTRACT_VARIABLE}=damaged"]}}) == ""


class StandIn(ThreadingMixIn, UnixStreamServer):
    """A daemon with containers, which notes what ends them."""

    daemon_threads = True

    def __init__(self, path: str, containers: list[dict[str, Any]]) -> None:
        super().__init__(path, Answers)
        self.containers = containers
        self.ended: list[str] = []
        self.log = b""
        self.asked: dict[str, list[str]] = {}  # of the log


class Answers(BaseHTTPRequestHandler):
    """What the Docker Engine API answers to what is asked."""

    server: StandIn

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.endswith("/version"):
            self._answer({"ApiVersion": "1.41"})
        elif parts.path.endswith("/containers/json"):
            asked = parse_qs(parts.query)
            wanted = [label.partition("=") for label in json.loads(asked["filters"][0])["label"]]
            found = [each for each in self.server.containers if has_labels(each, wanted)]
            every = asked.get("all") == ["1"]
            self._answer([{"Id": each["Id"]} for each in found if every or each["State"]["Status"] == "running"])
        elif parts.path.endswith("/logs"):
            self.server.asked = parse_qs(parts.query)
            self._answer_bytes(bytes([2, 0, 0, 0]) + len(self.server.log).to_bytes(4) + self.server.log)
        else:
            self._answer_of(parts.path.split("/")[-2])

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        *_, name, action = parts.path.split("/")
        self.server.ended.append(f"{action} {name} {parts.query}")
        self.send_response(404 if name.endswith("removed") else 204)
        self.end_headers()

    def _answer_of(self, name: str) -> None:
        """Inspect a container; one may have been removed since it was listed."""
        if name.endswith("removed"):
            self.send_error(404)
            return
        self._answer(next(each for each in self.server.containers if each["Id"] == name))

    def _answer(self, content: object) -> None:
        self._answer_bytes(json.dumps(content).encode())

    def _answer_bytes(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Write nothing."""

    def address_string(self) -> str:
        return "here"


def has_labels(container: dict[str, Any], wanted: list[tuple[str, str, str]]) -> bool:
    return all(value in {"", container["Config"]["Labels"].get(name)} for name, _, value in wanted)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Return a stand-in that DOCKER_HOST names."""
    pytest.importorskip("docker")
    containers = [
        container("running", app="app-1", launch="launch-1"),
        container("running", app="app-1", code=1, launch="launch-1"),
        container("exited", app="app-2", code=1, launch="launch-2"),
        container("created", app="app-3", code=127, error=REFUSED, launch="launch-3"),
        container("exited", app="app-4"),
    ]
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has 108 characters at most
        server = StandIn(str(Path(folder) / "socket"), containers)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/socket")
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def test_a_job_is_looked_up_by_its_label(daemon: StandIn) -> None:
    query = DockerQuery()
    assert query.look("app-1") == JobState(phase=JobPhase.RUNNING)
    assert query.look("app-2") == ended(JobEnd.FAILED, "exit code 1")
    assert query.look("app-3") == ended(JobEnd.FAILED, f"exit code 127: {REFUSED}")
    assert query.look("app-9") is None


def test_jobs_are_found_by_launch_unless_they_were_refused(daemon: StandIn) -> None:
    found = DockerQuery().find(["launch-1", "launch-2", "launch-3", "launch-4"])
    assert found == {"launch-1": "app-1", "launch-2": "app-2"}
    assert not DockerQuery().submitting(["launch-1"])


def test_all_containers_of_a_job_are_asked_before_one_is_waited_for(daemon: StandIn) -> None:
    assert DockerQuery().cancel("app-1")
    one, other = "app-1-running-0", "app-1-running-1"
    assert daemon.ended == [
        *(f"kill {name} signal=SIGTERM" for name in (one, other)),
        *(f"stop {name} t=10" for name in (one, other)),
    ]


def test_a_container_that_is_removed_meanwhile_hides_no_other(daemon: StandIn) -> None:
    for number, name in enumerate(("app-1-removed", "app-1-too-removed")):
        daemon.containers.insert(number, {**container("running", app="app-1"), "Id": name})
    query = DockerQuery()
    assert query.look("app-1") == JobState(phase=JobPhase.RUNNING)
    assert query.find(["launch-1"]) == {"launch-1": "app-1"}
    assert query.cancel("app-1")
    assert [text for text in daemon.ended if text.startswith("stop app-1-running")] == [
        f"stop app-1-running-{number} t=10" for number in (0, 1)
    ]


def test_the_last_lines_are_all_that_is_read_of_a_log(daemon: StandIn) -> None:
    daemon.log = b"one\ntwo \xff\n"
    jobs = JobRunner("local_docker")
    assert jobs.last_lines("local_docker://torchx/app-1", "role", count=2) == ("one", "two \ufffd")
    assert {name: daemon.asked[name] for name in ("stdout", "stderr", "tail")} == {
        "stdout": ["0"],
        "stderr": ["1"],
        "tail": ["2"],
    }
    assert jobs.last_lines("local_docker://torchx/app-1", "other") == ()


def test_docker_itself_is_asked_for_all_of_a_job(daemon: StandIn) -> None:
    jobs = JobRunner("local_docker")
    assert jobs.look("local_docker://torchx/app-9") == JobState(phase=JobPhase.UNKNOWN)  # for TorchX it succeeded
    assert jobs.look("local_docker://torchx/app-2").why == "exit code 1"
    assert (jobs.find(["launch-2"]), jobs.finds) == ({"launch-2": "local_docker://torchx/app-2"}, True)
    jobs.cancel("local_docker://torchx/app-1")
    assert len(daemon.ended) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a client that is never made
def test_a_daemon_that_does_not_answer_knows_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    query = DockerQuery()
    assert not query.look("app").is_answer
    assert (query.find(["launch-1"]), query.cancel("app")) == (None, False)
    gc.collect()
