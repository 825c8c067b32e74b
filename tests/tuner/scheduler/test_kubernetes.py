"""Questions to Kubernetes' API by its real client, answered by an HTTP server with texts from the API's documents."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from torchx import specs

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner
from torchx_cubicml.tuner.scheduler.kubernetes import KubernetesQuery

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

kubernetes = pytest.importorskip("kubernetes")
pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse.getheaders:DeprecationWarning")  # of the client itself
JOBS, PODS = "/apis/batch.volcano.sh/v1alpha1/namespaces/team/jobs", "/api/v1/namespaces/team/pods"
POD = {
    "metadata": {
        "name": "train-a-trainer-0-0",
        "labels": {"torchx.pytorch.org/role-name": "trainer", "torchx.pytorch.org/replica-id": "0"},
    },
    "status": {
        "phase": "Failed",
        "containerStatuses": [
            {
                "name": "trainer-0",
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-26T10:00:00Z"}},
            }
        ],
        "conditions": [{"type": "OfALaterRelease"}],  # lacks what the client's own models require
    },
}


class ApiServer:
    """An API server with one answer for each method and path."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, object]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.sent: list[Any] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                owner.asked.append((self.command, url.path, {k: v[0] for k, v in parse_qs(url.query).items()}))
                if length := int(self.headers.get("Content-Length") or 0):
                    owner.sent.append(json.loads(self.rfile.read(length)))
                status, content = owner.answers.get((self.command, url.path), (404, {"kind": "Status", "code": 404}))
                body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_DELETE = do_POST = do_GET  # noqa: N815 - likewise

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    running = ApiServer()
    yield running
    running.close()


@pytest.fixture
def query(server: ApiServer) -> KubernetesQuery:
    return KubernetesQuery(lambda: client_of(server.url), "team")


def client_of(url: str) -> Any:
    configuration = kubernetes.client.Configuration()
    configuration.host, configuration.retries = url, False
    return kubernetes.client.ApiClient(configuration)


def job(phase: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "train-a", "labels": labels}, "status": {"state": {"phase": phase}, "failed": 1}}


def test_the_cause_of_an_end_is_in_the_pods(server: ApiServer, query: KubernetesQuery) -> None:
    server.answers = {("GET", f"{JOBS}/train-a"): (200, job("Completed")), ("GET", PODS): (200, {"items": [POD]})}
    assert query.look("team:train-a") == JobState(
        phase=JobPhase.ENDED, end=JobEnd.OUT_OF_MEMORY, why="OOMKilled, exit status 137"
    )
    assert server.asked[-1] == ("GET", PODS, {"labelSelector": "app.kubernetes.io/instance=train-a"})


def test_a_deleted_job_was_cancelled(server: ApiServer, query: KubernetesQuery) -> None:
    server.answers = {("GET", PODS): (200, {"items": []})}
    assert query.look("team:train-a").end is JobEnd.CANCELLED


@pytest.mark.parametrize(
    "answer", [(403, {"message": "forbidden"}), (500, "no etcd"), (200, "no JSON"), (200, {"items": 1})]
)
def test_a_server_that_does_not_answer_knows_nothing(
    server: ApiServer, query: KubernetesQuery, answer: tuple[int, object]
) -> None:
    server.answers = dict.fromkeys([("GET", JOBS), ("GET", f"{JOBS}/train-a"), ("GET", PODS)], answer)
    state = query.look("team:train-a")
    assert (state.phase, state.is_answer) == (JobPhase.UNKNOWN, False)
    assert state.why
    assert query.find(["launch-1"]) is None
    assert query.lines("team:train-a", "trainer", count=5) == ()


def test_a_server_that_is_gone_knows_nothing(server: ApiServer) -> None:
    server.close()
    query = KubernetesQuery(lambda: client_of(server.url), "team")
    assert query.look("team:train-a").phase is JobPhase.UNKNOWN
    assert (query.find(["launch-1"]), query.cancel("team:train-a")) == (None, False)


def test_jobs_are_found_by_their_label(server: ApiServer, query: KubernetesQuery) -> None:
    label = {"torchx-cubicml/launch": "launch-2"}
    server.answers = {("GET", JOBS): (200, {"items": [job("Completed", **label)]})}
    assert query.find(["launch-2", "launch-1"]) == {"launch-2": "team:train-a"}
    assert server.asked == [("GET", JOBS, {"labelSelector": "torchx-cubicml/launch in (launch-1,launch-2)"})]
    assert not query.submitting(["launch-1"])


def test_a_job_is_deleted_unless_it_has_ended(server: ApiServer, query: KubernetesQuery) -> None:
    place = f"{JOBS}/train-a"
    for phase, methods in (("Running", ["GET", "DELETE"]), ("Completed", ["GET"])):
        server.asked.clear()
        server.answers = {("GET", place): (200, job(phase)), ("DELETE", place): (200, {"kind": "Status"})}
        assert query.cancel("team:train-a")
        assert [method for method, *_ in server.asked] == methods
    server.answers = {}
    assert query.cancel("team:train-a")  # it is gone


def test_the_last_lines_of_the_first_replica(server: ApiServer, query: KubernetesQuery) -> None:
    other = {"metadata": {"name": "train-a-trainer-1-0", "labels": {"torchx.pytorch.org/role-name": "trainer"}}}
    log = f"{PODS}/train-a-trainer-0-0/log"
    server.answers = {("GET", PODS): (200, {"items": [other, POD]}), ("GET", log): (200, "one\n[trainer0]:two\n")}
    assert query.lines("team:train-a", "trainer", count=2) == ("one", "[trainer0]:two")
    assert server.asked[-1] == ("GET", log, {"tailLines": "2"})
    beside = {**POD, "spec": {"containers": [{"name": "istio-proxy"}, {"name": "trainer-0"}]}}
    server.answers["GET", PODS] = 200, {"items": [other, beside]}
    assert query.lines("team:train-a", "trainer", count=2) == ("one", "[trainer0]:two")
    assert server.asked[-1] == ("GET", log, {"tailLines": "2", "container": "trainer-0"})


@pytest.fixture
def runner(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRunner]:
    """Return a runner of TorchX's own Kubernetes scheduler, which reads this file for the server's address."""
    named = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
    monkeypatch.setattr(kubernetes.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    with JobRunner("kubernetes", scheduler_args="namespace=team,queue=default") as jobs:
        yield jobs


def test_a_job_is_submitted_with_its_launch_as_a_label(server: ApiServer, runner: JobRunner) -> None:
    server.answers = {("POST", JOBS): (201, {"metadata": {"name": "train-a"}})}
    role = specs.Role(name="trainer", image="image:1", entrypoint="python")
    handle = runner.submit(specs.AppDef(name="train", roles=[role]), launch_id="launch-7-0001")
    assert handle == "kubernetes://torchx/team:train-a"
    (sent,) = server.sent
    assert sent["metadata"]["labels"] == {"torchx-cubicml/launch": "launch-7-0001"}
    pod = sent["spec"]["tasks"][0]["template"]["metadata"]["labels"]
    assert pod["app.kubernetes.io/instance"] == sent["metadata"]["name"]  # by which the pods of a job are found

    server.answers = {
        ("GET", f"{JOBS}/train-a"): (200, job("Running")),
        ("GET", PODS): (200, {"items": [{"status": {"phase": "Running"}, "metadata": {}}]}),
        ("GET", JOBS): (200, {"items": [job("Running", **sent["metadata"]["labels"])]}),
        ("DELETE", f"{JOBS}/train-a"): (200, {"kind": "Status"}),
    }
    assert runner.look(handle) == JobState(phase=JobPhase.RUNNING)
    assert runner.find(["launch-7-0001"]) == {"launch-7-0001": handle}
    assert runner.finds
    runner.cancel(handle)
    assert server.asked[-1][0] == "DELETE"


def test_a_search_without_an_answer_proves_nothing(server: ApiServer, runner: JobRunner) -> None:
    server.close()
    assert runner.find(["launch-7-0001"]) == {}
    assert not runner.finds
