"""The scenarios on a real Docker daemon of its own, and Docker's answers about jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.schedulers.job_images import container_options, packed_image
from tests.schedulers.plain_jobs import ROLE, app, end_of
from tests.schedulers.scenarios import REFUSED, Scenarios, Site
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
# TorchX leaves its client of Docker open.

# It has no network: neither a bridge for containers that name none, nor rules in the firewall.
FLAGS = ("--iptables=false", "--bridge=none", "--storage-driver=vfs", "--oom-score-adjust=0")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Return a client of a Docker daemon that ends with these tests."""
    docker = pytest.importorskip("docker")
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("a Docker daemon cannot be started here: root and dockerd are wanted")
    folder = Path(tempfile.mkdtemp(prefix="cubicml-docker-"))  # the path of a socket has 108 characters at most
    url = f"unix://{folder}/socket"
    places = ("--host", url, *(f"--{name}={folder}/{name}" for name in ("data-root", "exec-root", "pidfile")))
    with (folder / "log").open("wb") as log:
        words = ["setpriv", "--pdeathsig", "TERM", "dockerd", *places, *FLAGS]
        daemon = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", url)
        try:
            yield connected(docker, daemon, folder)
        finally:
            daemon.terminate()
            daemon.wait(timeout=120)
            shutil.rmtree(folder, ignore_errors=True)


def connected(docker: Any, daemon: subprocess.Popen[bytes], folder: Path) -> Any:
    for _ in range(600):
        if daemon.poll() is None and (folder / "socket").exists():
            try:
                return docker.from_env()
            except docker.errors.DockerException:
                pass
        elif daemon.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"no Docker daemon came up: {(folder / 'log').read_text()[-3000:]}")


@pytest.fixture(scope="module")
def image(client: Any) -> str:
    """Return the id of an image of links and empty folders: what jobs run is mounted."""
    client.api.import_image_from_data(packed_image(), repository="cubicml", tag="test")
    return str(client.images.get("cubicml:test").id)  # TorchX pulls what has a name


@pytest.fixture(scope="module")
def site(client: Any, image: str) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="cubicml-jobs-"))
    yield Site(
        scheduler="local_docker",
        version=f"Docker {client.version()['Version']}",
        options=("-s", "local_docker", "--workspace", ""),
        component=container_options(image, folder),
        folder=folder,
        store=str(folder / "stores"),
        limits_memory=True,
    )
    shutil.rmtree(folder, ignore_errors=True)


class TestDocker(Scenarios):
    def test_exit_status(self, site: Site, client: Any) -> None:
        """The container of a failed launch ends as the same command outside does."""
        outside = site.run("torchrun", "--nproc_per_node", "2", "train_gpt.py", *REFUSED.split())
        ended = site.launch("status", "train_gpt.py", REFUSED.split())
        assert ended.returncode == outside.returncode
        newest = client.containers.list(all=True, limit=1)[0]
        assert newest.attrs["State"]["ExitCode"] == outside.returncode != 0


class TestAnswers:
    """Jobs of plain commands, as a tune sees them."""

    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            (["true"], JobState(phase=JobPhase.ENDED, end=JobEnd.SUCCEEDED)),
            (["bash", "-c", "exit 7"], JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why="exit code 7")),
            (
                ["bash", "-c", "(kill -9 $BASHPID); exit $?"],
                JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why="exit code 137"),
            ),
            (
                ["bash", "-c", "head -c 1G /dev/zero | tail; exit 3"],
                JobState(phase=JobPhase.ENDED, end=JobEnd.OUT_OF_MEMORY, why="OOMKilled"),
            ),
        ],
        ids=["ends", "fails", "killed", "out of memory"],
    )
    def test_the_end_of_a_job(self, image: str, command: list[str], expected: JobState) -> None:
        with JobRunner("local_docker") as jobs:
            assert end_of(jobs, jobs.submit(app(*command, image=image), launch_id="launch-1")) == expected

    def test_the_worst_end_of_its_replicas_is_that_of_a_job(self, image: str) -> None:
        script = "exit ${replica_id}"  # 0 and 1; TorchX fills it in
        with JobRunner("local_docker") as jobs:
            handle = jobs.submit(app("bash", "-c", script, image=image, num_replicas=2), launch_id="launch-1")
            expected = JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why="exit code 1")
            assert end_of(jobs, handle) == expected

    def test_the_last_lines_of_a_job_are_those_of_stderr(self, image: str) -> None:
        script = r"echo out; seq 100000 >&2; printf 'last \xff\n' >&2; exit 1"
        with JobRunner("local_docker") as jobs:
            handle = jobs.submit(app("bash", "-c", script, image=image), launch_id="launch-1")
            end_of(jobs, handle)
            assert jobs.last_lines(handle, ROLE, count=2) == ("100000", "last \ufffd")

    def test_a_job_is_cancelled_from_another_process(self, image: str) -> None:
        with JobRunner("local_docker") as jobs:
            handle = jobs.submit(app("sleep", "600", image=image, num_replicas=2), launch_id="launch-1")
        with JobRunner("local_docker") as others:
            assert others.look(handle).phase is JobPhase.RUNNING
            others.cancel(handle)
            assert end_of(others, handle).end is JobEnd.FAILED

    def test_a_job_without_containers_is_unknown(self, client: Any, image: str) -> None:
        with JobRunner("local_docker") as jobs:
            handle = jobs.submit(app("true", image=image), launch_id="launch-1")
            end_of(jobs, handle)
            for container in client.containers.list(
                all=True, filters={"label": f"torchx.pytorch.org/app-id={handle.rpartition('/')[2]}"}
            ):
                container.remove()
            assert jobs.look(handle).phase is JobPhase.UNKNOWN

    def test_a_job_that_docker_cannot_start_is_refused(self, image: str) -> None:
        with JobRunner("local_docker") as jobs:
            with pytest.raises(LaunchError, match="local_docker rejected the job"):
                jobs.submit(app("/no/such/program", image=image), launch_id="launch-1")
            assert jobs.find(["launch-1"]) == {}
