"""Jobs on a TorchX scheduler: submit, query, cancel, read last lines, find jobs of a dead process.

TorchX's own status calls raise while a job is pending or after a cancel, forget jobs, and lag behind. This module hides
these defects from the caller.
"""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.scheduler import option_texts
from torchx_cubicml.settings import visible_devices
from torchx_cubicml.space.toml.schema import closest
from torchx_cubicml.tuner.scheduler.devices import list_devices, usable_devices
from torchx_cubicml.tuner.scheduler.docker import DockerQuery
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.kubernetes import LAUNCH_LABEL, KubernetesQuery
from torchx_cubicml.tuner.scheduler.local import LocalQuery
from torchx_cubicml.tuner.scheduler.ray import RayQuery
from torchx_cubicml.tuner.scheduler.slurm import SlurmQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from types import TracebackType

    from kubernetes.client import ApiClient
    from torchx.runner import Runner
    from torchx.specs import AppDef

    from torchx_cubicml.tuner.scheduler.job_state import SchedulerQuery

_OUT_OF_MEMORY = re.compile(
    r"exceeded (?:job )?memory limit|oom[-_]kill|\bOOM[ -]?[Kk]ill|OUT_OF_MEMORY", re.IGNORECASE
)
_ON_THIS_HOST = frozenset({"local_cwd", "local_docker"})
_RAY = "ray"
_ADOPTED = "adopted/"  # part of the handle of a local job that another process started


def interruptions() -> tuple[type[BaseException], ...]:
    """Return the exceptions that Ctrl-C raises: TorchX's local scheduler replaces Python's by its own."""
    from torchx.schedulers.local_scheduler import SignalException

    return KeyboardInterrupt, SignalException


class JobRunner(AbstractContextManager["JobRunner"]):
    """Scheduler with its options; leaving the context ends local jobs that it started and that still run."""

    def __init__(
        self,
        scheduler: str,
        *,
        scheduler_args: str = "",
        log_dir: str = "",
        workspace: str = "",
        runner: Runner | None = None,
    ) -> None:
        """Read the scheduler's options as ``torchx run`` does.

        Args:
            scheduler: name of a TorchX scheduler.
            scheduler_args: ``key=value,key=value``, as ``-cfg`` of ``torchx run``.
            log_dir: folder of local schedulers' logs, with a folder for each launch, unless the options set another.
            workspace: as ``--workspace`` of ``torchx run``; its image is built at the first launch and reused. On Ray
                it is a folder that TorchX removes once it is uploaded, and each launch builds its own.
            runner: replaces TorchX's own; ``.torchxconfig`` is not read then.

        Raises:
            LaunchError: the scheduler or an option is unknown, or the scheduler's client is missing.
        """
        from torchx.runner import config, get_runner

        logging.getLogger("torchx").setLevel(logging.WARNING)  # its start-up notes would break the progress display
        self._runner = runner or get_runner(component_defaults=config.load_sections("component"))
        self._scheduler = scheduler
        self._workspace = workspace
        self.image = ""  # of the workspace, once it is built
        if scheduler not in self._runner.scheduler_backends():
            legal = list(self._runner.scheduler_backends())
            raise LaunchError(
                f"unknown scheduler {scheduler!r}; choose from {', '.join(legal)}{closest(scheduler, legal)}"
            )
        try:
            options = self._runner.scheduler_run_opts(scheduler)
        except (ImportError, NameError) as error:  # of TorchX, where the scheduler's client is missing
            raise LaunchError(f"the client of scheduler {scheduler} is not installed here: {error}") from error
        try:
            self._cfg = options.cfg_from_str(scheduler_args)
        except (ValueError, KeyError) as error:
            raise LaunchError(f"invalid options {scheduler_args!r} for scheduler {scheduler}: {error}") from error
        self.check_options(option_texts(scheduler_args))  # TorchX's own parser silently ignores unknown ones
        if runner is None:
            config.apply(scheduler=scheduler, cfg=self._cfg)
        self._logs = log_dir if scheduler == "local_cwd" and not self._cfg.get("log_dir") else ""
        self._query = self._new_query()
        self._answered = True  # the last search for jobs

    def _new_query(self) -> SchedulerQuery | None:
        if self._scheduler == "slurm":
            return SlurmQuery()
        if self._scheduler == "local_cwd":
            return LocalQuery(self._logs)
        if self._scheduler == "local_docker":
            return DockerQuery()
        if self._scheduler == "kubernetes":
            return KubernetesQuery(self._api_client, str(self._cfg.get("namespace") or "default"))
        if self._scheduler == _RAY:
            for handler in logging.getLogger(_RAY).handlers:
                handler.setLevel(logging.WARNING)  # of its client, as for TorchX's
            logging.getLogger("torchx.schedulers.ray_scheduler").setLevel(logging.ERROR)  # it warns of ports each time
            options = self._runner.scheduler_run_opts(_RAY).resolve(self._cfg)
            return RayQuery(str(options.get("dashboard_address") or ""))
        return None

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, traceback)

    def check_options(self, names: Iterable[str]) -> None:
        """Check that the scheduler has options of these names.

        Raises:
            LaunchError: it lacks one.
        """
        options = self._runner.scheduler_run_opts(self._scheduler)
        for name in names:
            if options.get(name) is None:
                legal = [known for known, _ in options]
                raise LaunchError(
                    f"unknown option {name!r} of scheduler {self._scheduler}; choose from {', '.join(legal)}"
                    f"{closest(name, legal)}"
                )

    def submit(self, app: AppDef, *, launch_id: str, options: Mapping[str, str] = MappingProxyType({})) -> str:
        """Submit ``app``, marked with the launch id so that its job can be found again, and return its handle.

        Args:
            app: the job.
            launch_id: its launch.
            options: options of the scheduler that differ from those of the other jobs.

        Raises:
            LaunchError: the scheduler rejects the job.
            KeyboardInterrupt: the user interrupts; there may or may not be a job.
        """
        cfg = self._options_of(launch_id, options)
        if self._scheduler == _RAY:
            app.name = f"{app.name}-{launch_id}"
        if self.image:
            app.roles[0].image = self.image
        workspace, typed = None if self.image else self._workspace or None, app.roles[0].image
        try:
            handle = self._run(app, cfg, workspace, launch_id=launch_id)
        except interruptions() as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            raise LaunchError(f"{self._scheduler} rejected the job: {type(error).__name__}: {error}") from error
        if app.roles[0].image != typed and self._scheduler != _RAY:
            self.image = app.roles[0].image
        return handle

    def _run(self, app: AppDef, cfg: Mapping[str, object], workspace: str | None, *, launch_id: str) -> str:
        if self._scheduler != "kubernetes":
            return str(self._runner.run(app, self._scheduler, cfg=cfg, workspace=workspace))
        info = self._runner.dryrun(app, self._scheduler, cfg=cfg, workspace=workspace)
        with suppress(AttributeError, KeyError, TypeError):  # a later TorchX may word its request otherwise
            info.request.resource["metadata"].setdefault("labels", {})[LAUNCH_LABEL] = launch_id
        return str(self._runner.schedule(info))

    def _options_of(self, launch_id: str, options: Mapping[str, str]) -> dict[str, object]:
        given = ",".join(f"{name}={text}" for name, text in options.items())
        cfg = {**self._cfg, **self._runner.scheduler_run_opts(self._scheduler).cfg_from_str(given)}
        if self._logs:
            cfg["log_dir"] = f"{self._logs}/{launch_id}"
        if self._scheduler == "slurm":
            cfg["comment"] = " ".join(filter(None, (str(cfg.get("comment") or ""), launch_id)))
        return cfg

    def check_request(self, app: AppDef) -> None:
        """Check that TorchX can make a request of ``app``, as a dry run does; nothing is submitted and no image built.

        Raises:
            LaunchError: it cannot, as where an option that the scheduler needs is missing.
        """
        if self._workspace:
            app.roles[0].image = str(Path.cwd())  # the image of a workspace is built at the first launch
        try:
            self._runner.dryrun(app, self._scheduler, cfg=self._options_of("dry-run", {}))
        except interruptions() as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            raise LaunchError(
                f"TorchX cannot make a request for {self._scheduler}: {type(error).__name__}: {error}"
            ) from error

    def look(self, handle: str) -> JobState:
        """Return the state of a job; ``UNKNOWN`` if no source knows it or a query fails."""
        app_id = handle.rpartition("/")[2]
        if _ADOPTED in handle or isinstance(self._query, DockerQuery | KubernetesQuery | RayQuery):
            return (self._query.look(app_id) if self._query else None) or JobState(phase=JobPhase.UNKNOWN)
        state = self._torchx_state(handle)
        if isinstance(self._query, SlurmQuery) and state.phase is not JobPhase.RUNNING:
            return self._query.look(app_id) or state
        return state

    def cancel(self, handle: str) -> None:
        """Request the end of a job from the scheduler."""
        app_id = handle.rpartition("/")[2]
        is_asked = isinstance(self._query, SlurmQuery | DockerQuery | KubernetesQuery | RayQuery)
        if self._query is not None and (is_asked or _ADOPTED in handle):
            self._query.cancel(app_id)
            return
        with suppress(Exception):  # TorchX may fail to read the job's status; the scheduler's own time limit remains
            self._runner.cancel(handle)

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        """Return launch id -> handle of the launches whose job can be found although another process started it."""
        if self._query is None or not launch_ids:
            return {}
        inner = _ADOPTED if isinstance(self._query, LocalQuery) else "torchx/"
        found = self._query.find(launch_ids)
        self._answered = found is not None
        return {launch_id: f"{self._scheduler}://{inner}{app_id}" for launch_id, app_id in (found or {}).items()}

    @property
    def is_local(self) -> bool:
        """Return whether only the process that started a job can query TorchX for it."""
        return isinstance(self._query, LocalQuery)

    @property
    def shares_host(self) -> bool:
        """Return whether all jobs run on this host, and nothing divides its processors and devices between them."""
        return self._scheduler in _ON_THIS_HOST

    @property
    def why_indivisible(self) -> str:
        """Reason why this host's devices cannot be divided between jobs; empty if they can."""
        if self._scheduler == "local_docker":
            return "local_docker gives each of them the same devices of this host; local_cwd divides them"
        if self._cfg.get("auto_set_cuda_visible_devices"):
            return "auto_set_cuda_visible_devices gives each of them the same devices; leave it out to divide them"
        return ""

    def devices(self, visible: str | None) -> tuple[str, ...]:
        """Return the devices of this host that jobs may use.

        Args:
            visible: ``CUDA_VISIBLE_DEVICES`` of the job; ``None`` for that of this process.
        """
        return usable_devices(visible if visible is not None else visible_devices(), self._listed_devices)

    @cached_property
    def _listed_devices(self) -> tuple[str, ...] | None:
        return list_devices()

    @property
    def finds(self) -> bool:
        """Return whether ``find`` can establish that a launch has no job, and did so at its last call."""
        return self._query is not None and self._answered and not (self._is_blind and not self._logs)

    def can_look(self, handle: str) -> bool:
        """Return whether the state of a job can be queried; not that of a local job whose processes are not seen."""
        return bool(handle) and not (_ADOPTED in handle and self._is_blind)

    @property
    def _is_blind(self) -> bool:
        return isinstance(self._query, LocalQuery) and not self._query.sees_processes

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return whether a killed process may still submit one of the launches."""
        return self._query is not None and bool(launch_ids) and self._query.submitting(launch_ids)

    def last_lines(self, handle: str, role: str, *, count: int = 60) -> tuple[str, ...]:
        """Return the last lines that a job's first replica wrote to stderr; empty if there are none.

        On Kubernetes and Ray, which keep one log for both streams, they include those of stdout.
        TorchX's readers wait for the end of a job, and a job that cannot be cancelled never ends. For a job that TorchX
        does not report as ended, the lines are those of the scheduler's own logs.
        """
        from torchx.schedulers.api import Stream
        from torchx.specs import is_terminal

        if isinstance(self._query, RayQuery):
            return self._query.lines(handle.rpartition("/")[2])[-count:]
        if isinstance(self._query, DockerQuery | KubernetesQuery):
            return self._query.lines(handle.rpartition("/")[2], role, count=count)
        try:
            scheduler, app_id = self._runner._scheduler(self._scheduler), handle.rpartition("/")[2]
            status = scheduler.describe(app_id)
            if status is not None and not is_terminal(status.state):
                return self.scheduler_lines(handle)[-count:]
            # The runner would query the state first.
            lines = list(scheduler.log_iter(app_id, role, k=0, streams=Stream.STDERR))
        except interruptions():
            raise
        except Exception:  # noqa: BLE001 - logs are a courtesy; a scheduler without them must not end a tune
            return ()
        return tuple(line.rstrip("\n") for line in lines[-count:])

    def scheduler_lines(self, handle: str) -> tuple[str, ...]:
        """Return the lines that the scheduler itself wrote into a job's logs; empty except on Slurm."""
        if not isinstance(self._query, SlurmQuery):
            return ()
        return self._query.lines(handle.rpartition("/")[2], str(self._cfg.get("job_dir") or "."))

    def _api_client(self) -> ApiClient:
        return self._runner._scheduler(self._scheduler)._api_client()  # with the user's kubeconfig, as TorchX reads it

    def _torchx_state(self, handle: str) -> JobState:
        from torchx.specs import AppState

        try:
            # The runner would log an event for each query.
            status = self._runner._scheduler(self._scheduler).describe(handle.rpartition("/")[2])
        except interruptions():
            raise
        except Exception as error:  # noqa: BLE001 - TorchX 0.7 raises AssertionError, KeyError... for states it does not know
            return JobState(phase=JobPhase.UNKNOWN, why=f"{type(error).__name__}: {error}")
        if status is None:
            return JobState(phase=JobPhase.UNKNOWN)
        ends = {
            AppState.SUCCEEDED: JobEnd.SUCCEEDED,
            AppState.FAILED: JobEnd.FAILED,
            AppState.CANCELLED: JobEnd.CANCELLED,
        }
        if status.state in ends:
            return JobState(phase=JobPhase.ENDED, end=ends[status.state], why=str(status.msg or ""))
        if status.state is AppState.RUNNING:
            return JobState(phase=JobPhase.RUNNING)
        waiting = {AppState.UNSUBMITTED, AppState.SUBMITTED, AppState.PENDING}
        return JobState(phase=JobPhase.QUEUED if status.state in waiting else JobPhase.UNKNOWN)


def is_out_of_memory(lines: Collection[str]) -> bool:
    """Return whether a Slurm line among a job's last lines reports an out-of-memory kill.

    >>> is_out_of_memory(["slurmstepd-n1: error: StepId=1.0 exceeded memory limit (957362176 > 209715200)"])
    True
    """
    return any(_OUT_OF_MEMORY.search(line) for line in lines if "slurm" in line)
