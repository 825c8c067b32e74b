"""A stand-in for Volcano's batch controller: it makes the pods of a Volcano job, and writes the job's status.

It follows Volcano's rules for a job without policies and without ``minAvailable``, which TorchX leaves out and no
webhook fills in here: such a job is completed once all pods have ended, whether or not they failed. It binds pods to
the one node itself, and has neither queues nor retries. https://volcano.sh/en/docs/vcjob/ describes the job.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROUP, VERSION, PLURAL = "batch.volcano.sh", "v1alpha1", "jobs"
JOB_NAME = "volcano.sh/job-name"
_EVERY_S = 0.3
_TIMEOUT_S = 20.0
_ENDED = ("Completed", "Failed")


class VolcanoStandIn(threading.Thread):
    """A controller of the jobs of all namespaces, in a thread of its own.

    Args:
        kubeconfig: path of the clients' configuration.
        node: name of the node that all pods run on.
    """

    def __init__(self, kubeconfig: str, *, node: str) -> None:
        from kubernetes import client, config

        super().__init__(name="volcano-stand-in", daemon=True)
        api = config.new_client_from_config(kubeconfig)
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._node = node
        self._ends = threading.Event()
        self.problem = ""
        client.ApiextensionsV1Api(api).create_custom_resource_definition(_definition())

    def run(self) -> None:
        """Reconcile until ``stop``; a conflict or a server that is busy is tried again."""
        while not self._ends.wait(_EVERY_S):
            try:
                self._reconcile()
            except Exception as error:  # noqa: BLE001 - told by the tests that then fail
                self.problem = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """End the thread."""
        self._ends.set()
        if self.is_alive():
            self.join(timeout=60)

    def node_is_ready(self) -> bool:
        """Return whether the node is there and ready."""
        with suppress(Exception):
            conditions = self._core.read_node(self._node).status.conditions or ()
            return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
        return False

    def delete_all(self) -> None:
        """Delete all jobs and pods at once."""
        self._custom.delete_collection_namespaced_custom_object(GROUP, VERSION, "default", PLURAL)
        self._core.delete_collection_namespaced_pod("default", grace_period_seconds=0)

    def _reconcile(self) -> None:
        found = self._custom.list_cluster_custom_object(GROUP, VERSION, PLURAL, _request_timeout=_TIMEOUT_S)
        jobs = {(job["metadata"]["namespace"], job["metadata"]["name"]): job for job in found["items"]}
        answer = self._core.list_pod_for_all_namespaces(_preload_content=False, _request_timeout=_TIMEOUT_S)
        pods: dict[tuple[str, str], list[Mapping[str, Any]]] = {key: [] for key in jobs}
        for pod in json.loads(answer.data)["items"]:
            metadata = pod["metadata"]
            owner = metadata["namespace"], metadata.get("labels", {}).get(JOB_NAME, "")
            if owner in pods:
                pods[owner].append(pod)
            elif owner[1] and "deletionTimestamp" not in metadata:  # as the garbage collector does
                self._core.delete_namespaced_pod(metadata["name"], metadata["namespace"])
        for key, job in jobs.items():
            self._reconcile_one(job, pods[key])

    def _reconcile_one(self, job: dict[str, Any], pods: Sequence[Mapping[str, Any]]) -> None:
        phase = job.get("status", {}).get("state", {}).get("phase", "")
        if phase in _ENDED:
            return
        names = {pod["metadata"]["name"] for pod in pods}
        for pod in _pods_of(job, self._node):
            if pod["metadata"]["name"] not in names:
                self._core.create_namespaced_pod(job["metadata"]["namespace"], pod)
        status = _status(pods)
        if status != job.get("status"):
            self._custom.patch_namespaced_custom_object_status(
                GROUP, VERSION, job["metadata"]["namespace"], PLURAL, job["metadata"]["name"], {"status": status}
            )


def _pods_of(job: Mapping[str, Any], node: str) -> list[dict[str, Any]]:
    metadata = job["metadata"]
    pods = []
    for task in job["spec"]["tasks"]:
        template = task["template"]
        for index in range(task["replicas"]):
            own = {"name": f"{metadata['name']}-{task['name']}-{index}", "namespace": metadata["namespace"]}
            labels = {**template["metadata"].get("labels", {}), JOB_NAME: metadata["name"]}
            spec = {**template["spec"], "nodeName": node, "enableServiceLinks": False}
            pods.append({"metadata": {**own, "labels": labels}, "spec": spec})
    return pods


def _status(pods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    phases = Counter(pod.get("status", {}).get("phase", "Pending") for pod in pods)
    if not pods or phases["Pending"]:
        phase = "Pending"
    else:
        phase = "Completed" if phases["Succeeded"] + phases["Failed"] == len(pods) else "Running"
    counted = {name.lower(): phases[name] for name in ("Pending", "Running", "Succeeded", "Failed")}
    return {"state": {"phase": phase}, **counted}


def _definition() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "job", "kind": "Job", "shortNames": ["vcjob"]},
            "versions": [version],
        },
    }
