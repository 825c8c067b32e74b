"""The scenarios on a real API server and kubelet; Volcano's controller is a stand-in of these tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.schedulers.job_images import container_options
from tests.schedulers.kubernetes_cluster import IMAGE, PROGRAMS, KubernetesCluster
from tests.schedulers.plain_jobs import ROLE, app, end_of, state_when, wait_until
from tests.schedulers.scenarios import ROOT, Scenarios, Site
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse.getheaders:DeprecationWarning")  # of the client itself
BUILT = ROOT / ".cache-kubernetes" / "bin"
OPTIONS = "queue=default"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    """Return a cluster that ends with these tests."""
    kube_config = pytest.importorskip("kubernetes.config.kube_config")
    missing = [name for name in PROGRAMS if not (BUILT / name).exists()]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a Kubernetes cannot be started here: {', '.join(missing) or 'root is wanted'}")
    with KubernetesCluster(BUILT) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(running.kubeconfig))
        patch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(running.kubeconfig))  # read at its import
        yield running


@pytest.fixture(scope="module")
def site(cluster: KubernetesCluster) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="cubicml-jobs-"))
    yield Site(
        scheduler="kubernetes",
        version=f"{cluster.version()} with kubelet and Docker, Volcano's controller a stand-in",
        options=("-s", "kubernetes", "-cfg", OPTIONS, "--workspace", ""),
        component=container_options(IMAGE, folder),
        folder=folder,
        store=str(folder / "stores"),
        limits_memory=True,
    )
    shutil.rmtree(folder, ignore_errors=True)


class TestKubernetes(Scenarios):
    """Kubernetes."""


@pytest.fixture
def jobs(cluster: KubernetesCluster) -> Iterator[JobRunner]:
    del cluster
    with JobRunner("kubernetes", scheduler_args=OPTIONS) as runner:
        yield runner


class TestAnswers:
    """Jobs of plain commands, as a tune sees them."""

    @pytest.mark.parametrize(
        ("command", "end", "why"),
        [
            (["true"], JobEnd.SUCCEEDED, ""),
            (["bash", "-c", "exit 7"], JobEnd.FAILED, "exit status 7"),
            (["bash", "-c", "head -c 1G /dev/zero | tail; exit 3"], JobEnd.OUT_OF_MEMORY, "OOMKilled, exit status 3"),
            (["/no/such/program"], JobEnd.FAILED, "ContainerCannotRun, exit status 127"),
        ],
        ids=["ends", "fails", "out of memory", "cannot start"],
    )
    def test_the_end_of_a_job(self, jobs: JobRunner, command: list[str], end: JobEnd, why: str) -> None:
        handle = jobs.submit(app(*command, image=IMAGE), launch_id="launch-1")
        assert end_of(jobs, handle) == JobState(phase=JobPhase.ENDED, end=end, why=why)

    def test_a_job_is_found_and_cancelled_by_another_process(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("bash", "-c", "echo here; exec sleep 600", image=IMAGE), launch_id="launch-2")
        state_when(jobs, handle, lambda state: state.phase is JobPhase.RUNNING)
        with JobRunner("kubernetes", scheduler_args=OPTIONS) as others:
            assert others.find(["launch-2", "launch-3"]) == {"launch-2": handle}
            wait_until(lambda: others.last_lines(handle, ROLE) == ("here",), "the log does not have its line")
            others.cancel(handle)
            assert end_of(others, handle).end is JobEnd.CANCELLED

    def test_an_image_that_cannot_be_had_keeps_a_job_waiting(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("true", image="127.0.0.1:1/none:1"), launch_id="launch-4")
        state = state_when(jobs, handle, lambda state: "Image" in state.why)
        assert state.phase is JobPhase.QUEUED
        assert state.why.partition(":")[0] in {"ErrImagePull", "ImagePullBackOff"}
        jobs.cancel(handle)

    def test_a_node_without_the_memory_rejects_a_job(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("true", image=IMAGE, memory_mb=10_000_000), launch_id="launch-5")
        state = end_of(jobs, handle)
        assert state.end is JobEnd.REJECTED
        assert state.why.startswith("OutOf"), state  # memory, or processors where a job before still ends
