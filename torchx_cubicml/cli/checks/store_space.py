"""Check of the space that is left for a local store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, warning, wrong

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "store: space", 80
_MIB = 1024 * 1024
_LEAST_BYTES = 64 * _MIB  # an event takes a few hundred bytes: room for some 10,000 launches at 4 KiB a file
_LEAST_FILES = 10_000


def check(context: CheckContext) -> Finding:
    """Check free bytes and free files of the store's file system, as for this user."""
    from torchx_cubicml.store.obstacle import nearest_existing
    from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

    if context.address_problem or split_url(context.url)[0] not in LOCAL_PROTOCOLS:
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
