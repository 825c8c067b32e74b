"""Jobs on a TorchX scheduler: submit, look with patience, cancel, read last lines, find what a dead process left.

TorchX's own status calls raise while a job is pending or after a cancel, forget jobs, and lag behind: here none of that
reaches the caller.
"""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.local import LocalQuery
from torchx_cubicml.tuner.scheduler.slurm import SlurmQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import TracebackType

    from torchx.runner import Runner
    from torchx.specs import AppDef

    from torchx_cubicml.tuner.scheduler.job_state import SchedulerQuery

_OPTION_NAME = re.compile(r"(?:^|[,;])\s*([\w-]+)=")
_OUT_OF_MEMORY = re.compile(
    r"exceeded (?:job )?memory limit|oom[-_]kill|\bOOM[ -]?[Kk]ill|OUT_OF_MEMORY", re.IGNORECASE
)
_ADOPTED = "adopted/"  # in the handle of a local job that another process started


def interruptions() -> tuple[type[BaseException], ...]:
    """Return what Ctrl-C raises: TorchX's local scheduler puts an exception of its own in place of Python's."""
    from torchx.schedulers.local_scheduler import SignalException

    return KeyboardInterrupt, SignalException


class JobRunner(AbstractContextManager["JobRunner"]):
    """One scheduler with its options; leaving the context ends local jobs that it started and that still run."""

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
            log_dir: where local schedulers keep logs, in a folder for each launch, unless the options say otherwise.
            workspace: as ``--workspace`` of ``torchx run``; its image is built at the first launch, and serves all.
            runner: in place of TorchX's own; then ``.torchxconfig`` is not read.

        Raises:
            LaunchError: the scheduler or an option is unknown.
        """
        from torchx.runner import config, get_runner

        logging.getLogger("torchx").setLevel(logging.WARNING)  # its start-up notes would break the progress display
        self._runner = runner or get_runner(component_defaults=config.load_sections("component"))
        self._scheduler = scheduler
        self._workspace = workspace
        self.image = ""  # of the workspace, once it is built
        if scheduler not in self._runner.scheduler_backends():
            legal = ", ".join(self._runner.scheduler_backends())
            raise LaunchError(f"unknown scheduler {scheduler!r}; legal are {legal}")
        options = self._runner.scheduler_run_opts(scheduler)
        try:
            self._cfg = options.cfg_from_str(scheduler_args)
        except (ValueError, KeyError) as error:
            raise LaunchError(f"scheduler options {scheduler_args!r} are not legal for {scheduler}: {error}") from error
        # TorchX's own parser leaves unknown options out without a word.
        unknown = [name for name in _OPTION_NAME.findall(scheduler_args) if options.get(name) is None]
        if unknown:
            legal = ", ".join(name for name, _ in options)
            raise LaunchError(f"scheduler option {unknown[0]!r} is unknown to {scheduler}; legal are {legal}")
        if runner is None:
            config.apply(scheduler=scheduler, cfg=self._cfg)
        self._logs = log_dir if scheduler == "local_cwd" and not self._cfg.get("log_dir") else ""
        self._witness: SchedulerQuery | None = None
        if scheduler == "slurm":
            self._witness = SlurmQuery()
        elif scheduler == "local_cwd":
            self._witness = LocalQuery(self._logs)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, traceback)

    def submit(self, app: AppDef, *, launch_id: str) -> str:
        """Submit ``app`` under a name by which its job can be found again, and return its handle.

        Raises:
            LaunchError: the scheduler refuses the job.
            KeyboardInterrupt: the user interrupts; whether there is a job is open.
        """
        cfg = dict(self._cfg)
        if self._logs:
            cfg["log_dir"] = f"{self._logs}/{launch_id}"
        if self._scheduler == "slurm":
            cfg["comment"] = " ".join(filter(None, (str(cfg.get("comment") or ""), launch_id)))
        if self.image:
            app.roles[0].image = self.image
        workspace, typed = None if self.image else self._workspace or None, app.roles[0].image
        try:
            handle = str(self._runner.run(app, self._scheduler, cfg=cfg, workspace=workspace))
        except interruptions() as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            raise LaunchError(f"{self._scheduler} refuses the job: {type(error).__name__}: {error}") from error
        if app.roles[0].image != typed:
            self.image = app.roles[0].image
        return handle

    def look(self, handle: str) -> JobState:
        """Return how a job stands, ``UNKNOWN`` while nobody knows; what cannot be asked now is asked again later."""
        app_id = handle.rpartition("/")[2]
        if _ADOPTED in handle:
            return (self._witness.look(app_id) if self._witness else None) or JobState(phase=JobPhase.UNKNOWN)
        told = self._torchx_state(handle)
        if isinstance(self._witness, SlurmQuery) and told.phase is not JobPhase.RUNNING:
            return self._witness.look(app_id) or told
        return told

    def cancel(self, handle: str) -> None:
        """Ask the scheduler to end a job."""
        app_id = handle.rpartition("/")[2]
        if (isinstance(self._witness, SlurmQuery) or _ADOPTED in handle) and self._witness is not None:
            self._witness.cancel(app_id)
            return
        with suppress(Exception):  # its status may be unreadable; the scheduler's own time limit remains
            self._runner.cancel(handle)

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        """Return launch id -> handle of those launches that have a job which this process did not start."""
        if self._witness is None or not launch_ids:
            return {}
        inner = _ADOPTED if isinstance(self._witness, LocalQuery) else "torchx/"
        found = self._witness.find(launch_ids)
        return {launch_id: f"{self._scheduler}://{inner}{app_id}" for launch_id, app_id in found.items()}

    @property
    def is_local(self) -> bool:
        """Whether jobs are known to the process alone that started them."""
        return isinstance(self._witness, LocalQuery)

    @property
    def finds(self) -> bool:
        """Whether ``find`` can tell that a launch has no job."""
        return self._witness is not None

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Whether a killed process may still bring one of the launches to the scheduler."""
        return self._witness is not None and bool(launch_ids) and self._witness.submitting(launch_ids)

    def last_lines(self, handle: str, role: str, *, count: int = 60) -> tuple[str, ...]:
        """Return the last lines that a job's first replica wrote to stderr; none where the scheduler has none.

        TorchX's readers wait for the end of a job, which one that cannot be cancelled never has: of a job that TorchX
        does not take for ended, what the scheduler's own logs hold.
        """
        from torchx.schedulers.api import Stream
        from torchx.specs import is_terminal

        try:
            scheduler, app_id = self._runner._scheduler(self._scheduler), handle.rpartition("/")[2]
            told = scheduler.describe(app_id)
            if told is not None and not is_terminal(told.state):
                return self.scheduler_lines(handle)[-count:]
            # Past the runner, which asks for the state first.
            lines = list(scheduler.log_iter(app_id, role, k=0, streams=Stream.STDERR))
        except interruptions():
            raise
        except Exception:  # noqa: BLE001 - logs are a courtesy; a scheduler without them must not end a tune
            return ()
        return tuple(line.rstrip("\n") for line in lines[-count:])

    def scheduler_lines(self, handle: str) -> tuple[str, ...]:
        """Return what the scheduler itself wrote into the logs of a job; none where it writes none."""
        if not isinstance(self._witness, SlurmQuery):
            return ()
        return self._witness.lines(handle.rpartition("/")[2], str(self._cfg.get("job_dir") or "."))

    def _torchx_state(self, handle: str) -> JobState:
        from torchx.specs import AppState

        try:
            # Past the runner, which writes each question into its log of events.
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
        waits = {AppState.UNSUBMITTED, AppState.SUBMITTED, AppState.PENDING}
        return JobState(phase=JobPhase.QUEUED if status.state in waits else JobPhase.UNKNOWN)


def is_out_of_memory(lines: Collection[str]) -> bool:
    """Whether a scheduler's words among a job's last lines say that it killed the job for want of memory.

    >>> tells_out_of_memory(["slurmstepd-n1: error: StepId=1.0 exceeded memory limit (957362176 > 209715200)"])
    True
    """
    return any(_OUT_OF_MEMORY.search(line) for line in lines if "slurm" in line)
