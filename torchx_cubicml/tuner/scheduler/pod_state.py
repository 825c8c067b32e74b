"""State of a Volcano job, by the job's own status and by the pods of its replicas.

The reasons are those of Kubernetes' kubelet and controllers:
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions and
https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState, no_answer, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_JOB_ENDS = {
    "Completed": JobEnd.SUCCEEDED,
    "Aborted": JobEnd.CANCELLED,
    "Terminated": JobEnd.FAILED,
    "Failed": JobEnd.FAILED,
}
_RUNNING_PHASES = frozenset({"Running", "Restarting", "Completing", "Terminating", "Aborting"})
_POD_REASONS = {
    "Evicted": JobEnd.EVICTED,
    "Preempting": JobEnd.PREEMPTED,
    "NodeLost": JobEnd.NODE_FAILED,
    "NodeShutdown": JobEnd.NODE_FAILED,
    "Shutdown": JobEnd.NODE_FAILED,
    "Terminated": JobEnd.NODE_FAILED,  # by a kubelet whose node shuts down
    "DeadlineExceeded": JobEnd.TIMED_OUT,
}
_DISRUPTIONS = {
    "PreemptionByScheduler": JobEnd.PREEMPTED,
    "PreemptionByKubeScheduler": JobEnd.PREEMPTED,
    "DeletionByTaintManager": JobEnd.EVICTED,
    "EvictionByEvictionAPI": JobEnd.EVICTED,
    "TerminationByKubelet": JobEnd.EVICTED,
    "DeletionByPodGC": JobEnd.NODE_FAILED,
}
# A replica that fails ends the others, so the most specific end counts for a job of several replicas.
_SPECIFIC_FIRST = (
    JobEnd.OUT_OF_MEMORY,
    JobEnd.NODE_FAILED,
    JobEnd.EVICTED,
    JobEnd.PREEMPTED,
    JobEnd.TIMED_OUT,
    JobEnd.REJECTED,
    JobEnd.FAILED,
)
_USUAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})


def state_of(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobState:
    """Combine the status of a Volcano job with those of its pods.

    Args:
        job: the job as JSON; ``None`` if it was deleted.
        pods: its pods as JSON; those of a deleted job live on until they have ended.

    >>> memory = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]}
    >>> str(state_of({"status": {"state": {"phase": "Completed"}, "failed": 1}}, [{"status": memory}]).end)
    'ran out of memory'
    """
    if job is None:
        return _state_of_deleted(pods)
    status = _status(job)
    phase = str((status.get("state") or {}).get("phase") or "")
    end = _JOB_ENDS.get(phase)
    if end is None and any(map(_is_on_lost_node, pods)):
        end = JobEnd.NODE_FAILED
    if end is None:
        return _live(phase, pods)
    return _ended(end, pods, n_failed=int(status.get("failed") or 0) - sum(map(_failed_beside, pods)))


def container_of_role(pod: Mapping[str, Any]) -> str:
    """Return the name of the container that TorchX asked for, beside which a cluster may put others; empty if unknown.

    TorchX gives it the name of its Volcano task, and Volcano names a pod ``JOB-TASK-NUMBER``.

    >>> containers = [{"name": "istio-proxy"}, {"name": "trainer-0"}]
    >>> container_of_role({"metadata": {"name": "train-a-trainer-0-0"}, "spec": {"containers": containers}})
    'trainer-0'
    """
    task = str((pod.get("metadata") or {}).get("name") or "").rpartition("-")[0]
    names = [str(container["name"]) for container in (pod.get("spec") or {}).get("containers") or ()]
    only = names[0] if len(names) == 1 else ""
    return max((name for name in names if task.endswith(f"-{name}")), key=len, default=only)


def _state_of_deleted(pods: Sequence[Mapping[str, Any]]) -> JobState:
    if _phases(pods) & {"Pending", "Running", "Unknown"}:
        return JobState(phase=JobPhase.RUNNING, why="its Volcano job was deleted, and its pods end")
    return JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED, why="its Volcano job was deleted")


def _live(phase: str, pods: Sequence[Mapping[str, Any]]) -> JobState:
    """Return the state of a job that has not ended."""
    if "Unknown" in _phases(pods):
        return no_answer("the node of a pod does not answer")
    if phase in _RUNNING_PHASES or "Running" in _phases(pods):
        return JobState(phase=JobPhase.RUNNING)
    if phase in {"", "Pending"}:
        return JobState(phase=JobPhase.QUEUED, why=one_line(next(filter(None, map(_wait_of, pods)), "")))
    return JobState(phase=JobPhase.UNKNOWN, why=one_line(phase))


def _ended(end: JobEnd, pods: Sequence[Mapping[str, Any]], *, n_failed: int) -> JobState:
    """Return the end of a job: the most specific of its pods, else that of the job itself."""
    causes = sorted(filter(None, map(_cause_of, pods)), key=lambda cause: _SPECIFIC_FIRST.index(cause[0]))
    if not causes:
        causes = [(JobEnd.FAILED if n_failed > 0 else end, "")]
    worst, why = causes[0]
    if end is JobEnd.CANCELLED and worst is JobEnd.FAILED:  # a cancelled pod exits with an error
        worst, why = end, ""
    return JobState(phase=JobPhase.ENDED, end=worst, why=one_line(why))


def _cause_of(pod: Mapping[str, Any]) -> tuple[JobEnd, str] | None:
    """Return the end of a pod that failed or is lost, with its explanation; ``None`` for any other pod."""
    status = _status(pod)
    if (status.get("phase") != "Failed" or _failed_beside(pod)) and not _is_on_lost_node(pod):
        return None
    exits = list(_exits(pod))
    killed = next((text for reason, text in exits if reason == "OOMKilled"), None)
    if killed is not None:
        return JobEnd.OUT_OF_MEMORY, killed
    reason, why = _told(status)
    if reason in _POD_REASONS:
        return _POD_REASONS[reason], why
    disruption = next(filter(None, map(_disruption, status.get("conditions") or ())), None)
    if disruption is not None:
        return disruption
    if exits:
        return JobEnd.FAILED, exits[0][1]
    return (JobEnd.REJECTED if reason else JobEnd.FAILED), why  # no container of it has started


def _disruption(condition: Mapping[str, Any]) -> tuple[JobEnd, str] | None:
    reason, why = _told(condition)
    is_known = condition.get("type") == "DisruptionTarget" and reason in _DISRUPTIONS
    return (_DISRUPTIONS[reason], why) if is_known else None


def _is_on_lost_node(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod cannot end, because its node is gone; Kubernetes leaves it in its last phase."""
    status = _status(pod)
    return status.get("reason") == "NodeLost" and status.get("phase") not in {"Failed", "Succeeded"}


def _failed_beside(pod: Mapping[str, Any]) -> bool:
    """Return whether the role's container of a failed pod succeeded, and only one beside it failed."""
    status = _status(pod)
    codes = {str(each.get("name")): ended.get("exitCode") for each, ended in _ends(status)}
    own = codes.pop(container_of_role(pod), None)
    disrupted = status.get("reason") or any(map(_disruption, status.get("conditions") or ()))
    return status.get("phase") == "Failed" and not disrupted and own == 0 and any(codes.values())


def _ends(status: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each container of a pod that has ended, and how it ended."""
    for container in status.get("containerStatuses") or ():
        if ended := (container.get("state") or {}).get("terminated"):
            yield container, ended


def _exits(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the reason why the role's container failed, and the reason with its exit status.

    If that container is unknown, it yields those of each container that failed.
    """
    name = container_of_role(pod)
    for container, ended in _ends(_status(pod)):
        reason, code = str(ended.get("reason") or ""), ended.get("exitCode")
        if (not name or container.get("name") == name) and (code != 0 or reason == "OOMKilled"):
            text = f"exit status {code}" if code is not None else ""
            yield reason, ", ".join(filter(None, (reason if reason != "Error" else "", text)))


def _wait_of(pod: Mapping[str, Any]) -> str:
    """Return the reason why a pod waits; empty if it gives none."""
    status = _status(pod)
    for container in status.get("containerStatuses") or ():
        reason, why = _told((container.get("state") or {}).get("waiting") or {})
        if reason and reason not in _USUAL_WAITS:
            return why
    unscheduled = (
        _told(condition)[1]
        for condition in status.get("conditions") or ()
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    )
    return next(unscheduled, "")


def _told(told: Mapping[str, Any]) -> tuple[str, str]:
    """Return a reason, and the reason with its message."""
    reason, message = str(told.get("reason") or ""), str(told.get("message") or "")
    return reason, ": ".join(filter(None, (reason, message)))


def _phases(pods: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(_status(pod).get("phase")) for pod in pods}


def _status(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    return resource.get("status") or {}
