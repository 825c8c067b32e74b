"""Folders that may end with a job: a container's own disk, the temporary folder of a node, a file system in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

if TYPE_CHECKING:
    from collections.abc import Iterable

_OF_CONTAINERS = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/scratch", "/local_scratch")  # noqa: S108 - none is written to


def may_end_with_job(url: str, *, temporary: Iterable[str] = ()) -> bool:
    """Return whether a store may be gone when a job has ended that runs elsewhere than its launcher.

    So it may be on the own disk of a container, and in a folder for temporary files of a node.

    Args:
        url: absolute URL of the store.
        temporary: folders that the scheduler clears, besides the usual ones.

    >>> may_end_with_job("s3://team/cubicml"), may_end_with_job("/tmp/store")
    (False, True)
    """
    protocol, text = split_url(url)
    if protocol not in LOCAL_PROTOCOLS:
        return False
    path = Path(text)
    if any(path.is_relative_to(folder) for folder in (*_TEMPORARY, *temporary)):
        return True
    return any(os.path.lexists(name) for name in _OF_CONTAINERS) and _file_system(path) == _file_system(Path("/"))


def _file_system(path: Path) -> int:
    """Return the number of the file system of a path, or of its nearest folder that exists."""
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 - a Path would raise where it may not look
        path = path.parent
    return path.stat().st_dev
