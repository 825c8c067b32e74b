"""Queries by the name of the scheduler: one line for each that TorchX alone does not serve."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torchx_cubicml.tuner.scheduler.docker import DockerQuery
from torchx_cubicml.tuner.scheduler.kubernetes import KubernetesQuery
from torchx_cubicml.tuner.scheduler.local import LocalQuery
from torchx_cubicml.tuner.scheduler.ray import RayQuery
from torchx_cubicml.tuner.scheduler.slurm import SlurmQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torchx.runner import Runner

    from torchx_cubicml.tuner.scheduler.scheduler_query import SchedulerQuery


def query_of(scheduler: str, runner: Runner, options: Mapping[str, object], *, logs: str) -> SchedulerQuery | None:
    """Return the query of a scheduler; ``None`` if TorchX alone is asked.

    Args:
        scheduler: name of a TorchX scheduler.
        runner: TorchX's runner.
        options: options of the scheduler.
        logs: folder with a folder of logs for each launch; empty if the options set another.
    """
    new = _QUERIES.get(scheduler)
    return new(runner, options, logs) if new is not None else None


def _kubernetes(runner: Runner, options: Mapping[str, object]) -> KubernetesQuery:
    return KubernetesQuery(
        lambda: runner._scheduler("kubernetes")._api_client(),  # with the user's kubeconfig, as TorchX reads it
        str(options.get("namespace") or "default"),
    )


def _ray(runner: Runner, options: Mapping[str, object]) -> RayQuery:
    for handler in logging.getLogger("ray").handlers:
        handler.setLevel(logging.WARNING)  # of its client, as for TorchX's
    logging.getLogger("torchx.schedulers.ray_scheduler").setLevel(logging.ERROR)  # it warns of ports each time
    resolved = runner.scheduler_run_opts("ray").resolve(options)
    return RayQuery(str(resolved.get("dashboard_address") or ""))


_QUERIES: Mapping[str, Callable[[Runner, Mapping[str, object], str], SchedulerQuery]] = {
    "kubernetes": lambda runner, options, _: _kubernetes(runner, options),
    "local_cwd": lambda _, __, logs: LocalQuery(logs),
    "local_docker": lambda _, __, ___: DockerQuery(),
    "ray": lambda runner, options, _: _ray(runner, options),
    "slurm": lambda _, options, __: SlurmQuery(str(options.get("job_dir") or ".")),
}
