"""Jobs on a TorchX scheduler: submit, query, cancel, read last lines, find jobs of a dead process.

What one scheduler needs besides TorchX is in its ``SchedulerQuery``.
"""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.scheduler import option_texts
from torchx_cubicml.settings import environment_for_children, visible_devices
from torchx_cubicml.space.toml.schema import closest
from torchx_cubicml.tuner.scheduler.devices import list_devices, usable_devices
from torchx_cubicml.tuner.scheduler.job_state import JobPhase, JobState
from torchx_cubicml.tuner.scheduler.queries import query_of
from torchx_cubicml.tuner.scheduler.torchx_state import interruptions, torchx_lines, torchx_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from types import TracebackType

    from torchx.runner import Runner
    from torchx.schedulers import Scheduler
    from torchx.specs import AppDef, AppDryRunInfo

_OUT_OF_MEMORY = re.compile(
    r"exceeded (?:job )?memory limit|oom[-_]kill|\bOOM[ -]?[Kk]ill|OUT_OF_MEMORY", re.IGNORECASE
)
_ON_THIS_HOST = frozenset({"local_cwd", "local_docker"})
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_ADOPTED = "adopted/"  # part of the handle of a local job that another process started


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
        self._query = query_of(scheduler, self._runner, self._cfg, logs="" if self._cfg.get("log_dir") else log_dir)
        self._answered = True  # the last search for jobs

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

    def submit(self, app: AppDef, *, launch_id: str, options: Mapping[str, str] = _NO_OPTIONS) -> str:
        """Submit ``app``, marked with the launch id so that its job can be found again, and return its handle.

        Args:
            app: the job.
            launch_id: its launch.
            options: options of the scheduler that differ from those of the other jobs.

        Raises:
            LaunchError: the scheduler rejects the job.
            KeyboardInterrupt: the user interrupts; there may or may not be a job.
        """
        if self._query is not None:
            app.name = self._query.marked_name(app.name, launch_id)
        if self.image:
            app.roles[0].image = self.image
        workspace, typed = None if self.image else self._workspace or None, app.roles[0].image
        try:
            request = self._request(app, launch_id, options=options, workspace=workspace)
            with environment_for_children():
                handle = str(self._runner.schedule(request))
        except interruptions() as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            raise LaunchError(f"{self._scheduler} rejected the job: {_cause(error)}") from error
        if app.roles[0].image != typed and (self._query is None or self._query.keeps_image):
            self.image = app.roles[0].image
        return handle

    def _request(
        self, app: AppDef, launch_id: str, *, options: Mapping[str, str] = _NO_OPTIONS, workspace: str | None = None
    ) -> AppDryRunInfo[Any]:
        """Return TorchX's request for a job, marked with its launch id."""
        given = ",".join(f"{name}={text}" for name, text in options.items())
        cfg = {**self._cfg, **self._runner.scheduler_run_opts(self._scheduler).cfg_from_str(given)}
        if self._query is None:
            return self._runner.dryrun(app, self._scheduler, cfg=cfg, workspace=workspace)
        cfg = dict(self._query.marked_options(cfg, launch_id))
        made = self._runner.dryrun(app, self._scheduler, cfg=cfg, workspace=workspace)
        self._query.mark(made.request, launch_id)
        return made

    def check_request(self, app: AppDef) -> None:
        """Check that TorchX can make a request of ``app``, as a dry run does; nothing is submitted and no image built.

        Raises:
            LaunchError: it cannot, as where an option that the scheduler needs is missing, or a tune could not find the
                job again.
        """
        if self._workspace:
            app.roles[0].image = str(Path.cwd())  # the image of a workspace is built at the first launch
        try:
            self._request(app, "dry-run")
        except interruptions() as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            raise LaunchError(f"TorchX cannot make a request for {self._scheduler}: {_cause(error)}") from error

    def look(self, handle: str) -> JobState:
        """Return the state of a job; ``UNKNOWN`` if no source knows it or a query fails."""
        query, app_id = self._query, _app_id(handle)
        if _ADOPTED in handle or (query is not None and not query.believed):
            return (query.look(app_id) if query is not None else None) or JobState(phase=JobPhase.UNKNOWN)
        state = torchx_state(self._torchx, app_id)
        if query is None or state.phase in query.believed:
            return state
        return query.look(app_id) or state

    def cancel(self, handle: str) -> bool:
        """Request the end of a job, and return whether the scheduler accepted the request."""
        if self._query is not None and (_ADOPTED in handle or not self._query.is_local):
            return self._query.cancel(_app_id(handle))
        with suppress(Exception):  # TorchX may fail to read the job's status; the scheduler's own time limit remains
            self._runner.cancel(handle)
            return True
        return self.is_local  # its job ends with this process

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        """Return launch id -> handle of the launches whose job can be found although another process started it."""
        if self._query is None or not launch_ids:
            return {}
        inner = _ADOPTED if self._query.is_local else "torchx/"
        found = self._query.find(launch_ids)
        self._answered = found is not None
        return {launch_id: f"{self._scheduler}://{inner}{app_id}" for launch_id, app_id in (found or {}).items()}

    @property
    def is_local(self) -> bool:
        """Return whether only the process that started a job can query TorchX for it."""
        return self._query is not None and self._query.is_local

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
        return self._query is not None and self._answered and self._query.can_find

    @property
    def is_silent(self) -> bool:
        """Return whether the last search for jobs had no answer; it proves nothing."""
        return not self._answered

    def can_look(self, handle: str) -> bool:
        """Return whether the state of a job can be queried; not that of a local job whose processes are not seen."""
        return bool(handle) and (_ADOPTED not in handle or self._query is None or self._query.can_look)

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return whether a killed process may still submit one of the launches."""
        return self._query is not None and bool(launch_ids) and self._query.submitting(launch_ids)

    def last_lines(self, handle: str, role: str, *, count: int = 60) -> tuple[str, ...]:
        """Return the last lines that a job's first replica wrote to stderr; empty if there are none.

        On Kubernetes and Ray, which keep one log for both streams, they include those of stdout. For a job that TorchX
        does not report as ended, the lines are those of the scheduler's own logs.
        """
        app_id = _app_id(handle)
        lines = self._query.lines(app_id, role, count=count) if self._query is not None else None
        if lines is None:
            lines = torchx_lines(self._torchx, app_id, role, count=count)
        return lines if lines is not None else self.scheduler_lines(handle)[-count:]

    def scheduler_lines(self, handle: str) -> tuple[str, ...]:
        """Return the lines that the scheduler itself wrote into a job's logs; empty except on Slurm."""
        return self._query.scheduler_lines(_app_id(handle)) if self._query is not None else ()

    @property
    def _torchx(self) -> Scheduler[Any]:
        return self._runner._scheduler(self._scheduler)


def _app_id(handle: str) -> str:
    return handle.rpartition("/")[2]


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"


def is_out_of_memory(lines: Collection[str]) -> bool:
    """Return whether a Slurm line among a job's last lines reports an out-of-memory kill.

    >>> is_out_of_memory(["slurmstepd-n1: error: StepId=1.0 exceeded memory limit (957362176 > 209715200)"])
    True
    """
    return any(_OUT_OF_MEMORY.search(line) for line in lines if "slurm" in line)
