"""The scenarios on a real API server and kubelet; Volcano's controller is a stand-in of these tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torchx import specs

from tests.schedulers.kubernetes_cluster import IMAGE, PROGRAMS, KubernetesCluster
from tests.schedulers.scenarios import ROOT, Scenarios, Site
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    mounts = [
        *(f"type=bind,src={path},dst={path},readonly" for path in programs()),
        f"type=bind,src={folder},dst={folder}",
    ]
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin"
    yield Site(
        scheduler="kubernetes",
        version=f"{cluster.version()} with kubelet and Docker, Volcano's controller a stand-in",
        options=("-s", "kubernetes", "-cfg", OPTIONS, "--workspace", ""),
        component=("--image", IMAGE, "--mounts", ",".join(mounts), "--env", f"PATH={path},PYTHONPATH={ROOT}"),
        folder=folder,
        store=str(folder / "stores"),
        limits_memory=True,
    )
    shutil.rmtree(folder, ignore_errors=True)


def programs() -> list[Path]:
    """Return the folders that a job runs: Python, its environment and this checkout, without those within another."""
    wanted = {Path(name).resolve() for name in ("/usr", sys.prefix, sys.base_prefix, ROOT)}
    return sorted(path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted))


class TestKubernetes(Scenarios):
    pass


def app(*command: str, image: str = IMAGE, memory_mb: int = 200) -> specs.AppDef:
    """Return an app of one plain command."""
    resource = specs.Resource(cpu=1, gpu=0, memMB=memory_mb)
    mounts = [specs.BindMount("/usr", "/usr", read_only=True)]
    role = specs.Role(
        name="role", image=image, entrypoint=command[0], args=[*command[1:]], resource=resource, mounts=mounts
    )
    return specs.AppDef(name="app", roles=[role])


@pytest.fixture
def jobs(cluster: KubernetesCluster) -> Iterator[JobRunner]:
    del cluster
    with JobRunner("kubernetes", scheduler_args=OPTIONS) as runner:
        yield runner


def until(jobs: JobRunner, handle: str, phase: JobPhase) -> JobState:
    end = time.monotonic() + 300
    while (state := jobs.look(handle)).phase is not phase:
        assert time.monotonic() < end, state
        time.sleep(0.2)
    return state


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
        handle = jobs.submit(app(*command), launch_id="launch-1")
        assert until(jobs, handle, JobPhase.ENDED) == JobState(phase=JobPhase.ENDED, end=end, why=why)

    def test_a_job_is_found_and_cancelled_by_another_process(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("bash", "-c", "echo here; exec sleep 600"), launch_id="launch-2")
        until(jobs, handle, JobPhase.RUNNING)
        with JobRunner("kubernetes", scheduler_args=OPTIONS) as others:
            assert others.find(["launch-2", "launch-3"]) == {"launch-2": handle}
            assert others.last_lines(handle, "role") == ("here",)
            others.cancel(handle)
            assert until(others, handle, JobPhase.ENDED).end is JobEnd.CANCELLED

    def test_an_image_that_cannot_be_had_keeps_a_job_waiting(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("true", image="127.0.0.1:1/none:1"), launch_id="launch-4")
        end = time.monotonic() + 120
        while "Image" not in (state := jobs.look(handle)).why and time.monotonic() < end:
            time.sleep(0.2)
        assert state.phase is JobPhase.QUEUED
        assert state.why.partition(":")[0] in {"ErrImagePull", "ImagePullBackOff"}
        jobs.cancel(handle)

    def test_a_node_without_the_memory_rejects_a_job(self, jobs: JobRunner) -> None:
        handle = jobs.submit(app("true", memory_mb=10_000_000), launch_id="launch-5")
        state = until(jobs, handle, JobPhase.ENDED)
        assert (state.end, state.why.partition(":")[0]) == (JobEnd.REJECTED, "OutOfmemory")
