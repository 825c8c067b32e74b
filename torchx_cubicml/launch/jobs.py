"""Jobs on a TorchX scheduler: submit one, wait for it with a deadline, read its last lines."""

from __future__ import annotations

import logging
import re
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from types import TracebackType

    from torchx.runner import Runner
    from torchx.specs import AppDef

_OPTION_NAME = re.compile(r"(?:^|[,;])\s*(\w+)=")
POLL_S = 0.2  # local jobs end within seconds; a scheduler's own cache answers faster than this
_LONGEST_POLL_S = 10.0
_LOST_AFTER = 30  # status answers in a row that know nothing of the job


def interruptions() -> tuple[type[BaseException], ...]:
    """Return what Ctrl-C raises: TorchX's local scheduler puts an exception of its own in place of Python's."""
    from torchx.schedulers.local_scheduler import SignalException

    return KeyboardInterrupt, SignalException


class JobEnd(StrEnum):
    """How a job ended, as its scheduler tells; what the training itself did is in its trial."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What is known of a job that ended.

    Args:
        handle: the TorchX app handle.
        end: how it ended.
        wall_s: seconds from submission to the end, queueing included.
        last_lines: last lines of its first replica's stderr; empty where the scheduler has none.
    """

    handle: str
    end: JobEnd
    wall_s: float
    last_lines: tuple[str, ...]


class JobRunner(AbstractContextManager["JobRunner"]):
    """One scheduler with its options; leaving the context ends local jobs that still run."""

    def __init__(self, scheduler: str, *, scheduler_args: str = "", log_dir: str = "") -> None:
        """Read the scheduler's options as ``torchx run`` does.

        Args:
            scheduler: name of a TorchX scheduler.
            scheduler_args: ``key=value,key=value``, as ``-cfg`` of ``torchx run``.
            log_dir: where local schedulers keep logs unless the options say otherwise.

        Raises:
            LaunchError: the scheduler or an option is unknown.
        """
        from torchx.runner import config, get_runner

        logging.getLogger("torchx").setLevel(logging.WARNING)  # its start-up notes would break the progress display
        self._runner: Runner = get_runner(component_defaults=config.load_sections("component"))
        self._scheduler = scheduler
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
        config.apply(scheduler=scheduler, cfg=self._cfg)
        if log_dir and scheduler.startswith("local_cwd"):
            self._cfg.setdefault("log_dir", log_dir)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, traceback)

    def run(self, app: AppDef, *, timeout_s: float) -> JobOutcome:
        """Submit ``app`` and wait for its end; past ``timeout_s`` seconds it is cancelled.

        Raises:
            LaunchError: the scheduler refuses the job.
            KeyboardInterrupt: the user interrupts; the job is cancelled first.
        """
        started = time.monotonic()
        handle = self._submit(app)
        try:
            end = self._wait(handle, deadline=started + timeout_s)
        except interruptions() as error:
            self._cancel(handle)
            raise KeyboardInterrupt from error
        lines = self._last_lines(handle, app.roles[0].name)
        return JobOutcome(handle=handle, end=end, wall_s=time.monotonic() - started, last_lines=lines)

    def _submit(self, app: AppDef) -> str:
        try:
            return str(self._runner.run(app, self._scheduler, cfg=self._cfg))
        except interruptions() as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            raise LaunchError(f"{self._scheduler} refuses the job: {type(error).__name__}: {error}") from error

    def _wait(self, handle: str, *, deadline: float) -> JobEnd:
        pause, unknown = POLL_S, 0
        while time.monotonic() < deadline:
            end = self._end(handle)
            unknown = unknown + 1 if end is JobEnd.LOST else 0
            if unknown > _LOST_AFTER or end not in {None, JobEnd.LOST}:
                return end or JobEnd.LOST
            time.sleep(pause)
            pause = min(pause * 1.05, _LONGEST_POLL_S)
        self._cancel(handle)
        return JobEnd.TIMED_OUT

    def _cancel(self, handle: str) -> None:
        with suppress(Exception):  # its status may be unreadable; the scheduler's own time limit remains
            self._runner.cancel(handle)

    def _end(self, handle: str) -> JobEnd | None:
        """Return how the job ended, ``None`` while it runs, ``LOST`` while the scheduler knows nothing of it."""
        from torchx.specs import AppState

        try:
            status = self._runner.status(handle)
        except interruptions():
            raise
        except Exception:  # noqa: BLE001 - TorchX 0.7 raises AssertionError, KeyError... for states it does not know
            return JobEnd.LOST
        if status is None:
            return JobEnd.LOST
        ends = {
            AppState.SUCCEEDED: JobEnd.SUCCEEDED,
            AppState.FAILED: JobEnd.FAILED,
            AppState.CANCELLED: JobEnd.CANCELLED,
        }
        return ends.get(status.state)

    def _last_lines(self, handle: str, role: str, *, count: int = 60) -> tuple[str, ...]:
        from torchx.schedulers.api import Stream

        try:
            lines = list(self._runner.log_lines(handle, role, k=0, streams=Stream.STDERR))
        except interruptions():
            raise
        except Exception:  # noqa: BLE001 - logs are a courtesy; a scheduler without them must not end a tune
            return ()
        return tuple(line.rstrip("\n") for line in lines[-count:])
