"""Checks of the place of the store: its URL, writing there, the space that is left, and its clock."""

from __future__ import annotations

import os
from pathlib import Path

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, skipped, warning, wrong
from torchx_cubicml.launch.scheduler import folder_doubt
from torchx_cubicml.store.obstacle import nearest_existing
from torchx_cubicml.store.url import split_url

MAX_OFFSET_S = 60.0
"""Seconds by which two clocks may differ: far above a file system's ticks, far below what confuses a person."""
_CURES = {
    "no space left": "free space on that file system, or name another store (--store URL)",
    "disk quota": "free space within your quota, or name another store (--store URL)",
    "not a folder": "a store is a folder: name another place (--store URL), or move the file away",
    "permission": "let your user write there, or name another store (--store URL)",
    "access": "let your credentials write there, or name another store (--store URL)",
    "read-only": "name a store on a file system that can be written (--store URL)",
    "of the kernel": "name a folder on a disk (--store URL)",
    " needs ": "install that client here and in the job's image",
    "longer than": "check the network and the server; a folder: check that its file system answers",
}
_OTHER = "check the place, the network and the credentials, or name another store (--store URL)"
_MIB = 1024 * 1024
_LEAST_BYTES = 64 * _MIB  # an event takes a few hundred bytes: room for some 10,000 launches at 4 KiB a file
_LEAST_FILES = 10_000


def _url(context: CheckContext) -> Finding:
    """Check without asking its server that the URL is legal, has its client, and is visible to jobs."""
    problem, args = context.address_problem, context.args
    if " needs " in problem:
        return wrong(problem, "install it here and in the job's image")
    if problem:
        return wrong(problem, "correct --store, `store` of .torchxconfig or TORCHX_CUBICML_STORE")
    doubt = folder_doubt(context.scheduler) if context.is_local else ""
    if doubt and (args.scheduler or args.command or args.job):  # else the scheduler is a guess, TorchX's default
        cure = "use an object store (--store s3://...), or mount the folder; --job tells for sure"
        return warning(f"{context.url} {doubt}", cure)
    return ok(context.url)


def _write(context: CheckContext) -> Finding:
    """Check it with a small object that is written, read back and removed; ``--no-probe`` writes none."""
    if context.address_problem:
        return skipped("its URL cannot be used")
    probe, place = context.probe, context.url
    if probe.obstacle:
        return wrong(probe.obstacle, write_cure(probe.obstacle))
    if probe.presence == "absent" and not probe.is_written:
        return ok(f"{place} does not exist yet; the first launch can make it")
    how = "a probe was written, read back and removed"
    written = how if probe.is_written else "nothing known prevents writing (no probe was written)"
    if probe.presence == "other":
        cure = "check --store for a typing error; else the first launch makes a store among them"
        return warning(f"{place} holds other files and no store: {written}", cure)
    return ok(f"{place}: {written}")


def write_cure(obstacle: str) -> str:
    """Return the cure of an obstacle to writing."""
    lower = obstacle.lower()
    return next((cure for part, cure in _CURES.items() if part in lower), _OTHER)


def _space(context: CheckContext) -> Finding:
    """Check free bytes and free files of the store's file system, as for this user."""
    if context.address_problem or not context.is_local:
        return skipped("known of a local store alone")
    place = nearest_existing(Path(split_url(context.url)[1]))
    try:
        status = os.statvfs(place)
    except OSError as error:
        return skipped(f"{place}: {error.strerror}")
    own = os.geteuid() != 0
    free = (status.f_bavail if own else status.f_bfree) * status.f_frsize
    files = status.f_favail if own else status.f_ffree
    cure = f"free space on the file system of {place}, or name another store (--store URL)"
    if status.f_blocks and not free:
        return wrong(f"no space left on the file system of {place}", cure)
    if status.f_files and not files:
        return wrong(f"the file system of {place} takes no more files (no inodes left)", cure)
    if (status.f_blocks and free < _LEAST_BYTES) or (status.f_files and files < _LEAST_FILES):
        return warning(f"{free / _MIB:.1f} MiB and {files:,} files are left on the file system of {place}", cure)
    return ok(f"{free / _MIB:,.0f} MiB are left" if status.f_blocks else "its file system counts no blocks")


def _clock(context: CheckContext) -> Finding:
    """Check the stamp that the store gave the probe."""
    offset = context.probe.clock_offset_s
    if offset is None:
        return skipped("no probe was written, or the store does not tell when")
    if abs(offset) > MAX_OFFSET_S:
        return wrong(*clock_finding("the store's clock", offset))
    return ok(f"agrees with the clock here within {MAX_OFFSET_S:g} s")


def clock_finding(whose: str, offset_s: float) -> tuple[str, str]:
    """Return finding and cure of a clock that is ahead of the one here, or behind if negative.

    >>> clock_finding("the store's clock", -3600.0)[0]
    "the store's clock is 3600 s behind the one here"
    """
    found = f"{whose} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the one here"
    return found, "set both clocks by NTP (timedatectl); signed requests and the order of records depend on them"


CHECKS = {"store: URL": _url, "store: write": _write, "store: space": _space, "store: clock": _clock}
