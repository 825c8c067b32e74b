"""The scenarios on a Ray cluster of one node on this machine, and the answers of its job server about jobs."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.schedulers.plain_jobs import app, end_of, state_when, wait_until
from tests.schedulers.scenarios import Scenarios, Site
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's client, under warnings that are errors elsewhere
OBJECT_STORE_BYTES = 80_000_000  # nothing is put there; Ray wants some


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of the job server of a cluster that ends with these tests."""
    pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # the path of a socket has 107 characters at most
    port, dashboard, agent, client = free_ports(4)
    places = {"port": port, "dashboard-port": dashboard, "dashboard-agent-listen-port": agent}
    places |= {"ray-client-server-port": client, "object-store-memory": OBJECT_STORE_BYTES, "num-cpus": 2}
    options = [f"--{name}={value}" for name, value in places.items()]
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    with (folder / "log").open("wb") as log:
        words += ["--node-ip-address", "127.0.0.1", "--temp-dir", str(folder), *options]
        head = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *words], stdout=log, stderr=log)
    try:
        wait_for(f"127.0.0.1:{dashboard}", head, folder / "log")
        yield f"127.0.0.1:{dashboard}"
    finally:
        head.terminate()  # it ends the processes of its cluster
        head.wait(timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        assert head.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://{address}/api/jobs/", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"no job server came up: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def site(address: str) -> Iterator[Site]:
    import ray

    folder = Path(tempfile.mkdtemp(prefix="cubicml-jobs-"))
    workspace = folder / "workspace"  # the jobs read their scripts in the folder itself
    workspace.mkdir()
    yield Site(
        scheduler="ray",
        version=f"Ray {ray.__version__}",
        options=("-s", "ray", "-cfg", f"dashboard_address={address}", "--workspace", f"file://{workspace}"),
        component=("--env", "OMP_NUM_THREADS=1"),  # as torchrun sets it; Ray sets the processors of the job
        folder=folder,
        store=str(folder / "stores"),
    )
    shutil.rmtree(folder, ignore_errors=True)


class TestRay(Scenarios):
    """Ray."""


@pytest.fixture
def jobs(address: str, tmp_path: Path) -> Iterator[JobRunner]:
    with JobRunner("ray", scheduler_args=f"dashboard_address={address}", workspace=f"file://{tmp_path}") as runner:
        yield runner


class TestAnswers:
    """Jobs of plain commands, as a tune sees them."""

    @pytest.mark.parametrize(
        ("command", "end", "why"),
        [
            (["true"], JobEnd.SUCCEEDED, ""),
            (["bash", "-c", "exit 7"], JobEnd.FAILED, "exit code 7"),
        ],
        ids=["ends", "fails"],
    )
    def test_the_end_of_a_job(self, jobs: JobRunner, command: list[str], end: JobEnd, why: str) -> None:
        handle = jobs.submit(app(*command), launch_id="launch-1")
        assert end_of(jobs, handle) == JobState(phase=JobPhase.ENDED, end=end, why=why)
        assert jobs.find(["launch-1", "launch-2"])["launch-1"].startswith(handle.rpartition("launch-1")[0])

    def test_a_cancelled_job_leaves_no_process(self, jobs: JobRunner, tmp_path: Path) -> None:
        script = f"echo $$ > {tmp_path}/pid; sleep 600 & echo $! > {tmp_path}/child; wait"
        handle = jobs.submit(app("bash", "-c", script.replace("$", "$$")), launch_id="launch-c")
        wait_until((tmp_path / "child").exists, "the job does not begin")
        jobs.cancel(handle)
        assert end_of(jobs, handle).end is JobEnd.CANCELLED
        for name in ("pid", "child"):
            process = Path("/proc") / (tmp_path / name).read_text().strip()
            wait_until(lambda process=process: not process.exists(), f"{name} goes on")

    def test_a_job_that_finds_no_room_waits_as_a_queued_one(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("true", cpu=1000), launch_id="launch-w")
        phases = []
        state_when(jobs, handle, lambda state: phases.append(state.phase) or state.why.startswith("waits for room"))
        assert set(phases) == {JobPhase.QUEUED}
        assert end_of(jobs, handle).end is JobEnd.NO_ROOM
