"""Job states from Kubernetes' API server: the Volcano job, and the pods in which its replicas run.

Volcano may report a job as completed when its pods have ended, failed ones included, and TorchX then reports a success.
Only the pods contain the cause of an end. A launch is found by its id in a label of the job.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torchx_cubicml.tuner.scheduler.job_state import JobPhase, JobState, no_answer, one_line
from torchx_cubicml.tuner.scheduler.pod_state import container_of_role, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kubernetes.client import ApiClient

LAUNCH_LABEL = "torchx-cubicml/launch"
_JOBS = {"group": "batch.volcano.sh", "version": "v1alpha1", "plural": "jobs"}
_APP_LABEL = "app.kubernetes.io/instance"  # of a pod; TorchX sets these three
_ROLE_LABEL = "torchx.pytorch.org/role-name"
_REPLICA_LABEL = "torchx.pytorch.org/replica-id"
_TIMEOUT_S = 10.0
_NOT_FOUND = 404
_FORBIDDEN = 403


class KubernetesQuery:
    """Query of Kubernetes through its API; an app id is ``namespace:name of the Volcano job``. See ``SchedulerQuery``.

    Args:
        api: returns the client of the API server; it is called at the first query.
        namespace: namespace of the jobs to find.
    """

    def __init__(self, api: Callable[[], ApiClient], namespace: str = "default") -> None:
        self._api = api
        self._namespace = namespace

    def look(self, app_id: str) -> JobState:
        """Read the job and its pods; ``UNKNOWN`` with the cause if the API server does not answer."""
        try:
            return state_of(self._job(app_id), self._pods(app_id))
        except Exception as error:  # noqa: BLE001 - no method may raise, and the client raises errors of many packages
            return no_answer(one_line(f"{type(error).__name__}: {error}"))

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        """Search the jobs of the namespace by their label, ended ones included."""
        from kubernetes.client import CustomObjectsApi

        selector = f"{LAUNCH_LABEL} in ({','.join(sorted(launch_ids))})"
        try:
            jobs = CustomObjectsApi(self._api()).list_namespaced_custom_object(
                **_JOBS, namespace=self._namespace, label_selector=selector, _request_timeout=_TIMEOUT_S
            )
            named = [job["metadata"] for job in jobs["items"]]
            return {each["labels"][LAUNCH_LABEL]: f"{self._namespace}:{each['name']}" for each in named}
        except Exception:  # noqa: BLE001 - see look
            return None

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return false: a killed process leaves no submission behind."""
        del launch_ids
        return False

    def cancel(self, app_id: str) -> bool:
        """Delete the job unless it has ended: an ended one keeps the logs of its pods."""
        from kubernetes.client import CustomObjectsApi

        try:
            if state_of(self._job(app_id), []).phase is not JobPhase.ENDED:
                namespace, _, name = app_id.partition(":")
                CustomObjectsApi(self._api()).delete_namespaced_custom_object(
                    **_JOBS, namespace=namespace, name=name, _request_timeout=_TIMEOUT_S
                )
        except Exception:  # noqa: BLE001 - see look
            return False
        return True

    def lines(self, app_id: str, role: str, *, count: int) -> tuple[str, ...]:
        """Return the last lines of the log of a role's first replica; empty if they cannot be read.

        Kubernetes keeps one log for stdout and stderr.
        """
        from kubernetes.client import CoreV1Api

        try:
            labels = {_ROLE_LABEL: role, _REPLICA_LABEL: "0"}
            pods = [pod for pod in self._pods(app_id) if labels.items() <= pod["metadata"].get("labels", {}).items()]
            answer = CoreV1Api(self._api()).read_namespaced_pod_log(
                name=pods[0]["metadata"]["name"],
                namespace=app_id.partition(":")[0],
                container=container_of_role(pods[0]) or None,
                tail_lines=count,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            return tuple(answer.data.decode(errors="replace").splitlines())
        except Exception:  # noqa: BLE001 - see look
            return ()

    def _job(self, app_id: str) -> Mapping[str, Any] | None:
        """Return the Volcano job; ``None`` if there is none."""
        from kubernetes.client import CustomObjectsApi
        from kubernetes.client.rest import ApiException

        namespace, _, name = app_id.partition(":")
        try:
            job: Mapping[str, Any] = CustomObjectsApi(self._api()).get_namespaced_custom_object(
                **_JOBS, namespace=namespace, name=name, _request_timeout=_TIMEOUT_S
            )
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return job

    def _pods(self, app_id: str) -> list[Mapping[str, Any]]:
        from kubernetes.client import CoreV1Api
        from kubernetes.client.rest import ApiException

        namespace, _, name = app_id.partition(":")
        try:
            answer = CoreV1Api(self._api()).list_namespaced_pod(
                namespace,
                label_selector=f"{_APP_LABEL}={name}",
                _preload_content=False,  # the client rejects pods of a server that is newer than it
                _request_timeout=_TIMEOUT_S,
            )
        except ApiException as error:
            if error.status == _FORBIDDEN:  # the job's own status remains
                return []
            raise
        return list(json.loads(answer.data)["items"])
