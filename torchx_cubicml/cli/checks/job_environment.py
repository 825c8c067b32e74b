"""Check of a job: one of a second, on the scheduler, tells its Python, its packages, its clock and the store."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, skipped, warning, wrong
from torchx_cubicml.cli.checks.installation import LEAST_PYTHON, LEAST_TORCH, installed_version, is_older
from torchx_cubicml.cli.checks.store_place import MAX_OFFSET_S, clock_finding, write_cure
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.job_probe import JobReport, job_probe, job_report
from torchx_cubicml.records.contract import CONTRACT_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.tuner.scheduler.job_state import JobState

_POLL_S, _LONGEST_POLL_S, _POLL_GROWTH = 0.2, 10.0, 1.5
_LOG_WAIT_S = 15.0  # for the log of a job that has ended: a shared file system shows it late


def _job(context: CheckContext) -> Finding:
    """Submit the job and judge its report; without ``--job`` nothing is submitted."""
    if not context.args.job:
        return skipped("nothing is submitted; --job submits a job of one second and tells what it finds")
    if context.is_torchrun:
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
    return _verdict(context, report, began=began, ended=time.time())


def _run(context: CheckContext) -> tuple[JobReport | None, str]:
    """Return the report of a job, ``None`` without one, and what else tells how it ended.

    Raises:
        LaunchError: the scheduler rejects the job, or it does not end in time.
    """
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner

    args = context.args
    component = context.component if args.command else None
    app = job_probe(component, store=context.url, writes=not args.no_probe)
    role, name = app.roles[0].name, f"doctor-{os.urandom(4).hex()}"
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as logs,
        JobRunner(
            context.scheduler,
            scheduler_args=args.scheduler_args,
            log_dir=logs,
            workspace=logs if context.scheduler == "ray" else "",  # Ray wants a folder to send, be it empty
        ) as jobs,
    ):
        handle = jobs.submit(app, launch_id=name)
        if not jobs.is_local:
            say(open_console(stderr=True), f"torchx-cubicml: waiting for job {handle}")
        try:
            state = _ended(lambda: jobs.look(handle), timeout_s=args.timeout, what=f"job {handle}")
        except BaseException:
            jobs.cancel(handle)
            raise
        end = time.monotonic() + (0.0 if jobs.is_local else _LOG_WAIT_S)
        while (report := job_report(lines := jobs.last_lines(handle, role))) is None and time.monotonic() < end:
            time.sleep(1.0)
    return report, next(filter(None, reversed(lines)), state.why)


def _ended(look: Callable[[], JobState], *, timeout_s: float, what: str) -> JobState:
    from torchx_cubicml.tuner.scheduler.job_state import JobPhase

    end, pause_s = time.monotonic() + timeout_s, _POLL_S
    while (state := look()).phase is not JobPhase.ENDED:
        if time.monotonic() > end:
            why = f" ({state.why})" if state.why else ""
            raise LaunchError(f"{what} is {state.phase} after {timeout_s:g} s, and was cancelled{why}")
        time.sleep(pause_s)
        pause_s = min(pause_s * _POLL_GROWTH, _LONGEST_POLL_S)
    return state


def _verdict(context: CheckContext, report: JobReport, *, began: float, ended: float) -> Finding:
    """Return the first thing that is wrong, else what doubts there are."""
    found = f"Python {report.python} ({report.executable}) on {context.scheduler}"
    found += "".join(f", {name} {text}" for name, text in report.versions.items())
    broken = _broken_python(report, found) or _broken_store(context, report, found)
    if broken is not None:
        return broken
    offset = max(report.time - ended, 0.0) + min(report.time - began, 0.0)
    if abs(offset) > MAX_OFFSET_S:
        text, cure = clock_finding("the job's clock", offset)
        return wrong(f"{found}; {text}", cure)
    here, there = installed_version("torchx-cubicml"), report.versions.get("torchx-cubicml", "")
    if here and there and here != there:
        return warning(f"{found}; here it is torchx-cubicml {here}", "install one version here and in the job's image")
    written = "writes the store" if report.store is not None and report.store.is_written else "may write the store"
    return ok(f"{found}; loads the recorder and {written}")


def _broken_python(report: JobReport, found: str) -> Finding | None:
    install = f"install it there: {report.executable or sys.executable} -m pip install torchx-cubicml"
    if is_older(report.python, LEAST_PYTHON):
        return wrong(f"{found} is older than 3.11: launches run, and are not recorded", f"use a newer one; {install}")
    if report.contract is None:
        why = report.error or "no reason is known"
        return wrong(f"{found} cannot load the recorder, so launches run and are not recorded: {why}", install)
    if report.contract != CONTRACT_VERSION:
        text = f"{found} reads contract version {report.contract}, launches here write {CONTRACT_VERSION}"
        return wrong(text, "install one version of torchx-cubicml here and in the job's image")
    if is_older(report.versions.get("torch", ""), LEAST_TORCH):
        return wrong(f"{found}: torch is older than 2.4", "install torch>=2.4 in the job's image")
    return None


def _broken_store(context: CheckContext, report: JobReport, found: str) -> Finding | None:
    store = report.store
    if store is None:
        return wrong(f"{found}; the store was not tried: {report.error}", write_cure(report.error))
    if store.obstacle:
        return wrong(f"{found}; the job cannot use the store: {store.obstacle}", write_cure(store.obstacle))
    if store.presence == "absent" and context.probe.presence not in {"absent", ""}:
        text = f"{found}; the job sees no store at {context.url}, which exists here"
        return wrong(text, "use a shared folder or an object store (--store URL), or mount the folder in the job")
    return None


CHECKS = {"job": _job}
