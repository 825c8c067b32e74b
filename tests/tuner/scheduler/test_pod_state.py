"""State of a Volcano job, from answers as Kubernetes gives them."""

from __future__ import annotations

from typing import Any

import pytest

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.pod_state import state_of

SUCCEEDED = {
    "phase": "Succeeded",
    "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}],
}
PENDING, RUNNING = {"phase": "Pending"}, {"phase": "Running"}
NODE_LOST = {"phase": "Running", "reason": "NodeLost", "message": "Node a which was running pod b is unresponsive"}


def job(phase: str, **counts: int) -> dict[str, Any]:
    return {"status": {"state": {"phase": phase}, **counts}}


def failed(*, container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [] if container is None else [{"state": {"terminated": container}}]
    return {"phase": "Failed", "containerStatuses": containers, **status}


def killed(code: int = 137) -> dict[str, Any]:
    return failed(container={"exitCode": code, "reason": "OOMKilled"})


def disrupted(reason: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "told\nby it"}
    return failed(container={"exitCode": 143, "reason": "Error"}, conditions=[{"type": "Ready"}, condition])


def state(found: dict[str, Any] | None, *statuses: dict[str, Any]) -> JobState:
    return state_of(found, [{"status": status} for status in statuses])


@pytest.mark.parametrize(
    ("pod", "end", "why"),
    [
        (killed(), JobEnd.OUT_OF_MEMORY, "OOMKilled, exit status 137"),
        (killed(1), JobEnd.OUT_OF_MEMORY, "OOMKilled, exit status 1"),  # a process of the container was killed
        (failed(container={"exitCode": 7, "reason": "Error"}), JobEnd.FAILED, "exit status 7"),
        (failed(container={"exitCode": 128, "reason": "StartError"}), JobEnd.FAILED, "StartError, exit status 128"),
        (failed(reason="Evicted", message="low on memory. "), JobEnd.EVICTED, "Evicted: low on memory."),
        (failed(reason="Preempting"), JobEnd.PREEMPTED, "Preempting"),
        (failed(reason="DeadlineExceeded", message="longer"), JobEnd.TIMED_OUT, "DeadlineExceeded: longer"),
        (failed(reason="Terminated", message="node shutdown"), JobEnd.NODE_FAILED, "Terminated: node shutdown"),
        (failed(reason="OutOfmemory", message="none left"), JobEnd.REJECTED, "OutOfmemory: none left"),
        (failed(), JobEnd.FAILED, ""),
        (disrupted("PreemptionByScheduler"), JobEnd.PREEMPTED, "PreemptionByScheduler: told by it"),
        (disrupted("EvictionByEvictionAPI"), JobEnd.EVICTED, "EvictionByEvictionAPI: told by it"),
        (disrupted("DeletionByPodGC"), JobEnd.NODE_FAILED, "DeletionByPodGC: told by it"),
        (disrupted("OfALaterRelease"), JobEnd.FAILED, "exit status 143"),
    ],
)
@pytest.mark.parametrize("phase", ["Completed", "Failed", "Terminated"])
def test_the_end_of_a_job_is_that_of_its_pod(phase: str, pod: dict[str, Any], end: JobEnd, why: str) -> None:
    assert state(job(phase, failed=1), pod) == JobState(phase=JobPhase.ENDED, end=end, why=why)


@pytest.mark.parametrize(
    ("pods", "end"),
    [
        ([SUCCEEDED, SUCCEEDED], JobEnd.SUCCEEDED),
        ([failed(container={"exitCode": 1}), killed()], JobEnd.OUT_OF_MEMORY),
        ([SUCCEEDED, failed(container={"exitCode": 1})], JobEnd.FAILED),
        ([failed(container={"exitCode": 1}), failed(reason="Evicted")], JobEnd.EVICTED),
    ],
)
def test_the_most_specific_end_of_several_pods_counts(pods: list[dict[str, Any]], end: JobEnd) -> None:
    assert state(job("Completed"), *pods).end is end


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (job("Completed", succeeded=1), JobEnd.SUCCEEDED),
        (job("Completed", failed=1), JobEnd.FAILED),
        (job("Failed"), JobEnd.FAILED),
        (job("Terminated"), JobEnd.FAILED),
        (job("Aborted", failed=1), JobEnd.CANCELLED),
        (job("Aborted"), JobEnd.CANCELLED),
    ],
)
def test_a_job_whose_pods_are_gone_ends_as_its_own_status_says(found: dict[str, Any], end: JobEnd) -> None:
    assert state(found) == JobState(phase=JobPhase.ENDED, end=end)


def test_a_cancelled_pod_did_not_fail_by_itself() -> None:
    ended = failed(container={"exitCode": 143, "reason": "Error"})
    assert state(job("Aborted", failed=1), ended) == JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED)
    assert state(job("Aborted", failed=1), killed()).end is JobEnd.OUT_OF_MEMORY


def test_a_killed_helper_of_a_program_that_succeeds_is_no_failure() -> None:
    pod = {
        "phase": "Succeeded",
        "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "reason": "OOMKilled"}}}],
    }
    assert state(job("Completed", succeeded=1), pod).end is JobEnd.SUCCEEDED


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {**PENDING, "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available",
}


@pytest.mark.parametrize(
    ("found", "pods", "expected"),
    [
        ({}, [], JobState(phase=JobPhase.QUEUED)),
        (job("Pending"), [PENDING], JobState(phase=JobPhase.QUEUED)),
        (job("Pending"), [waiting("ContainerCreating")], JobState(phase=JobPhase.QUEUED)),
        (
            job("Pending"),
            [waiting("ImagePullBackOff", "no a:1")],
            JobState(phase=JobPhase.QUEUED, why="ImagePullBackOff: no a:1"),
        ),
        (
            job("Pending"),
            [{**PENDING, "conditions": [UNSCHEDULED]}],
            JobState(phase=JobPhase.QUEUED, why="Unschedulable: 0/3 nodes are available"),
        ),
        (job("Pending"), [RUNNING, PENDING], JobState(phase=JobPhase.RUNNING)),
        (job("Running"), [RUNNING], JobState(phase=JobPhase.RUNNING)),
        (job("Running"), [RUNNING, killed()], JobState(phase=JobPhase.RUNNING)),
        (job("Running"), [killed()], JobState(phase=JobPhase.RUNNING)),  # Volcano has the last word
        (job("Restarting"), [], JobState(phase=JobPhase.RUNNING)),
        (job("OfALaterRelease"), [PENDING], JobState(phase=JobPhase.UNKNOWN, why="OfALaterRelease")),
        (
            job("Running"),
            [{"phase": "Unknown"}],
            JobState(phase=JobPhase.UNKNOWN, why="the node of a pod does not answer", is_answer=False),
        ),
    ],
)
def test_a_job_that_has_not_ended(found: dict[str, Any], pods: list[dict[str, Any]], expected: JobState) -> None:
    assert state(found, *pods) == expected


def test_a_pod_on_a_lost_node_ends_its_job_although_volcano_waits() -> None:
    assert state(job("Running"), RUNNING, NODE_LOST) == JobState(
        phase=JobPhase.ENDED, end=JobEnd.NODE_FAILED, why="NodeLost: Node a which was running pod b is unresponsive"
    )


def test_a_deleted_job_ends_with_its_last_pod() -> None:
    assert state(None, RUNNING, SUCCEEDED).phase is JobPhase.RUNNING
    ended = JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED, why="its Volcano job was deleted")
    assert state(None) == state(None, SUCCEEDED) == ended


@pytest.mark.parametrize(
    ("own", "beside", "expected"),
    [
        ((0, "Completed"), (143, "Error"), (JobEnd.SUCCEEDED, "")),
        ((0, "Completed"), (137, "OOMKilled"), (JobEnd.SUCCEEDED, "")),
        ((7, "Error"), (137, "OOMKilled"), (JobEnd.FAILED, "exit status 7")),
        ((137, "OOMKilled"), (0, "Completed"), (JobEnd.OUT_OF_MEMORY, "OOMKilled, exit status 137")),
    ],
)
def test_the_container_of_the_role_counts(
    own: tuple[int, str], beside: tuple[int, str], expected: tuple[JobEnd, str]
) -> None:
    containers = {"proxy": beside, "trainer-0": own}
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}}
        for name, (code, reason) in containers.items()
    ]
    status = {"phase": "Failed", "containerStatuses": statuses}
    pod = {
        "metadata": {"name": "train-a-trainer-0-0"},
        "spec": {"containers": [{"name": name} for name in containers]},
        "status": status,
    }
    for counts in ({"failed": 1}, {}):  # Volcano counts pods late
        found = state_of(job("Completed", **counts), [pod])
        assert (found.end, found.why) == expected
    evicted = {**pod, "status": {**status, "reason": "Evicted"}}
    assert state_of(job("Completed", failed=1), [evicted]).end is not JobEnd.SUCCEEDED


def test_a_pod_whose_role_is_unknown_fails_by_any_container() -> None:
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}}
        for name, code, reason in (("proxy", 0, "Completed"), ("trainer-0", 137, "OOMKilled"))
    ]
    pod = {
        "metadata": {"name": "named-otherwise"},
        "spec": {"containers": [{"name": "proxy"}, {"name": "trainer-0"}]},
        "status": {"phase": "Failed", "containerStatuses": statuses},
    }
    assert state_of(job("Completed", failed=1), [pod]).end is JobEnd.OUT_OF_MEMORY
