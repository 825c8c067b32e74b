"""Check of a job: one of a second, on the scheduler, tells its Python, its packages, its clock and the store.

It takes the place of the training in the user's own component: the same image, variables and Python, one process.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, skipped, warning, wrong
from torchx_cubicml.cli.checks.installation import LEAST_TORCH, installed_version, is_older
from torchx_cubicml.cli.checks.store_health import MAX_OFFSET_S, write_cure, wrong_clock
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import ComponentLaunch
from torchx_cubicml.launch.recorder_fallback import job_python
from torchx_cubicml.launch.shell import join
from torchx_cubicml.launch.torchrun_command import RECORDER
from torchx_cubicml.records.contract import CONTRACT_VERSION
from torchx_cubicml.records.json_fields import number_of, object_of
from torchx_cubicml.settings import PREFIX
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.probe import StoreProbe, clock_offset
from torchx_cubicml.tuner.scheduler.job_state import JobPhase
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torchx.specs import AppDef

_POLL_S, _LONGEST_POLL_S, _POLL_GROWTH = 0.2, 10.0, 1.5
_LOG_WAIT_S = 15.0  # for the log of a job that has ended: a shared file system shows it late
_MARK = "CUBICML_DOCTOR "
_MEMORY_MB = 1024
_LEAST_PYTHON = (3, 11)
_ONE_VERSION = "install one version of torchx-cubicml here and in the job's image"
_STORE = f"{PREFIX}STORE"

# Runs in a Python of any version, with nothing installed. Contains no $, which TorchX would take for a macro.
_SCRIPT = f"""
import json, os, sys, time
found = dict(python=".".join(map(str, sys.version_info[:3])), executable=sys.executable, time=time.time())
try:
    import {RECORDER}
    from importlib.metadata import distributions
    names = ("torch", "torchx-cubicml")
    found["versions"] = dict((name, each.version) for name in names for each in list(distributions(name=name))[:1])
    from torchx_cubicml.records.contract import CONTRACT_VERSION
    found["contract"] = CONTRACT_VERSION
    from torchx_cubicml.store.probe import probe_store
    probe = probe_store(os.environ[{_STORE!r}], writes=WRITES)
    found["store"] = dict(presence=probe.presence, obstacle=probe.obstacle[:2000], is_written=probe.is_written)
except BaseException as error:
    found["error"] = (str(error) or type(error).__name__)[:2000]
sys.stderr.write(chr(10) + {_MARK!r} + json.dumps(found) + chr(10))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Report of the job.

    Args:
        python: version of its Python.
        executable: path of that Python.
        time: its clock, in seconds since 1970.
        versions: package -> installed version.
        contract: version of the contract that its recorder reads; ``None`` where the recorder cannot be loaded.
        error: reason why it cannot be loaded, or why the store was not probed; empty without one.
        store: probe of the store from there; ``None`` where it was not probed.
    """

    python: str
    executable: str
    time: float
    versions: Mapping[str, str] = field(default_factory=dict)
    contract: int | None = None
    error: str = ""
    store: StoreProbe | None = None


def _job(context: CheckContext) -> Finding:
    """Submit the job and judge its report; without ``--job`` nothing is submitted."""
    if not context.args.job:
        return skipped("nothing is submitted; --job submits a job of one second and tells what it finds")
    if not isinstance(context.typed, ComponentLaunch | LaunchError):
        return skipped("a command of torchrun starts where you type it; each node needs what is checked here")
    if context.address_problem:
        return skipped("the store's URL cannot be used")
    began = time.time()
    try:
        report, why = _run(context)
    except LaunchError as error:
        cure = "correct -s, -cfg or the command; a queue: give --timeout SECONDS, or another partition"
        return wrong(str(error), cure)
    if report is None:
        found = f"the job on {context.scheduler} ended without a report{f': {why}' if why else ''}"
        return wrong(found, "see its log (torchx log); in a container, check that its image has sh and a Python")
    return next(_findings(context, report, clock_offset(report.time, began, time.time()) or 0.0))


def _run(context: CheckContext) -> tuple[JobReport | None, str]:
    """Return the report of a job, ``None`` without one, and what else tells how it ended.

    Raises:
        LaunchError: the scheduler rejects the job, or it does not end in time.
    """
    args, typed = context.args, context.typed
    if args.command and isinstance(typed, LaunchError):
        raise typed
    component = typed if isinstance(typed, ComponentLaunch) else None
    app = job_probe(component, store=context.url, writes=not args.no_probe)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as logs:
        sent = logs if context.scheduler == "ray" else ""  # Ray wants a folder to send, be it empty
        with JobRunner(context.scheduler, scheduler_args=args.scheduler_args, log_dir=logs, workspace=sent) as jobs:
            handle, role = jobs.submit(app, launch_id=f"doctor-{os.urandom(4).hex()}"), app.roles[0].name
            if not jobs.is_local:
                say(open_console(stderr=True), f"torchx-cubicml: waiting for job {handle}")
            try:
                why = _wait(jobs, handle, timeout_s=args.timeout)
            except BaseException:
                jobs.cancel(handle)
                raise
            end = time.monotonic() + (0.0 if jobs.is_local else _LOG_WAIT_S)
            while (report := job_report(lines := jobs.last_lines(handle, role))) is None and time.monotonic() < end:
                time.sleep(1.0)
    return report, next(filter(None, reversed(lines)), why)


def _wait(jobs: JobRunner, handle: str, *, timeout_s: float) -> str:
    """Wait for the end of a job, and return the scheduler's explanation of it.

    Raises:
        LaunchError: it does not end in time.
    """
    end, pause_s = time.monotonic() + timeout_s, _POLL_S
    while (state := jobs.look(handle)).phase is not JobPhase.ENDED:
        if time.monotonic() > end:
            why = f" ({state.why})" if state.why else ""
            raise LaunchError(f"job {handle} is {state.phase} after {timeout_s:g} s, and was cancelled{why}")
        time.sleep(pause_s)
        pause_s = min(pause_s * _POLL_GROWTH, _LONGEST_POLL_S)
    return state.why


def _findings(context: CheckContext, report: JobReport, offset_s: float) -> Iterator[Finding]:
    """Yield what is wrong, then what is doubtful, at last that the job is in order.

    Args:
        context: options of the doctor.
        report: report of the job.
        offset_s: seconds by which the job's clock is ahead of this one.
    """
    found, store = f"Python {report.python} ({report.executable}) on {context.scheduler}", report.store
    found += "".join(f", {name} {version}" for name, version in report.versions.items())
    yield from _faults_of_python(report, found)
    if store is None:
        yield wrong(f"{found}; the store was not tried: {report.error}", write_cure(report.error))
    elif store.obstacle:
        yield wrong(f"{found}; the job cannot use the store: {store.obstacle}", write_cure(store.obstacle))
    elif store.presence == Presence.ABSENT and context.probe.presence in {*Presence} - {Presence.ABSENT}:
        text = f"{found}; the job sees no store at {context.url}, which exists here"
        yield wrong(text, "use a shared folder or an object store (--store URL), or mount the folder in the job")
    if abs(offset_s) > MAX_OFFSET_S:
        yield wrong_clock(f"{found}; the job's clock", offset_s)
    here = installed_version("torchx-cubicml")
    if here and report.versions.get("torchx-cubicml", here) != here:
        yield warning(f"{found}; here it is torchx-cubicml {here}", _ONE_VERSION)
    written = "writes" if store is not None and store.is_written else "may write"
    yield ok(f"{found}; loads the recorder and {written} the store")


def _faults_of_python(report: JobReport, found: str) -> Iterator[Finding]:
    install = f"install it there: {report.executable or sys.executable} -m pip install torchx-cubicml"
    if is_older(report.python, _LEAST_PYTHON):
        yield wrong(f"{found} is older than 3.11: launches run, and are not recorded", f"use a newer one; {install}")
    if report.contract is None:
        why = report.error or "no reason is known"
        yield wrong(f"{found} cannot load the recorder, so launches run and are not recorded: {why}", install)
    if report.contract != CONTRACT_VERSION:
        text = f"{found} reads contract version {report.contract}, launches here write {CONTRACT_VERSION}"
        yield wrong(text, _ONE_VERSION)
    if is_older(report.versions.get("torch", ""), LEAST_TORCH):
        yield wrong(f"{found}: torch is older than 2.4", "install torch>=2.4 in the job's image")


def job_probe(component: ComponentLaunch | None, *, store: str, writes: bool) -> AppDef:
    """Return the app of the job.

    Args:
        component: the user's component; ``None`` for torchrun in TorchX's ``dist.ddp``.
        store: URL of the store.
        writes: whether the job may write a probe to the store, which it removes.

    Raises:
        LaunchError: the component starts no training that can be recorded.
    """
    made = component or ComponentLaunch.parse("dist.ddp", ["-j", "1x1", "-m", "torchx_cubicml"])
    command = made.command
    if command is None:
        raise LaunchError(f"{made.source.component} cannot be recorded: {made.why_not_recorded}")
    app = copy.deepcopy(made.source.app)
    role = app.roles[made.role]
    python = join(command.words[command.parts.python]) if command.parts.python is not None else None
    torchrun = command.words[0].text if python is None else None
    found, words = job_python(torchrun=torchrun, python=python, honours_override=command.is_torchrun)
    script = f"exec({_SCRIPT.replace('WRITES', str(writes))!r})"  # one line: schedulers pass on newlines differently
    shell, option = command.shell or ("sh", "-c")
    role.entrypoint, role.args = shell, [option, f"{found}exec {words} -c {shlex.quote(script)}"]
    role.env[_STORE] = store
    role.num_replicas, role.min_replicas, role.max_retries = 1, None, 0
    role.resource = copy.copy(role.resource)
    role.resource.cpu, role.resource.gpu, role.resource.memMB = 1, 0, _MEMORY_MB
    app.roles = [role]
    return app


def job_report(lines: Iterable[str]) -> JobReport | None:
    """Return the report in the lines that a job wrote to stderr; ``None`` without one.

    >>> job_report(["CUBICML_DOCTOR {"]) is None
    True
    """
    for text in (line.partition(_MARK)[2] for line in lines):
        with suppress(ValueError, TypeError, LookupError, RecursionError):  # no report, or one that is cut
            found = object_of(json.loads(text), "report")
            number_of(found["time"], "time")
            store = found.get("store")
            return JobReport(**{**found, "store": StoreProbe(**store) if store else None})
    return None


CHECKS = {"job": _job}
