"""Obstacle to writing to a store that is known without writing: no folder, no permission, no space, no client."""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from pathlib import Path

from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import EVENTS
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

S3_CLIENT = "s3fs: pip install 'torchx-cubicml[s3]'"
# Protocol -> module of the client, as in fsspec.registry, which takes 75 ms to import.
_CLIENTS = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "az"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
}
_OF_THE_KERNEL = ("/proc", "/sys")


def write_obstacle(url: str) -> str:
    """Return the reason why this process cannot write to the store; empty if none is known.

    Nothing is written, and no server is asked.

    Args:
        url: absolute URL of the store.

    >>> write_obstacle("/proc/nope")
    'cannot write to store /proc/nope: /proc holds no files but those of the kernel'
    """
    protocol, _ = split_url(url)
    if protocol in LOCAL_PROTOCOLS:
        return folder_obstacle(url)
    client = _CLIENTS.get(protocol)
    if client is None or importlib.util.find_spec(client) is not None:
        return ""
    return f"store {mask(url)} needs {S3_CLIENT if client == 's3fs' else client}"


def folder_obstacle(url: str) -> str:
    """Return the reason why no process of this user can write to the store here; empty for a remote store.

    Args:
        url: absolute URL of the store.
    """
    protocol, path = split_url(url)
    if protocol not in LOCAL_PROTOCOLS:
        return ""
    reason = place_obstacle(Path(path) / EVENTS)
    return f"cannot write to store {mask(path)}: {mask(reason)}" if reason else ""


def place_obstacle(folder: Path) -> str:
    """Return the reason why this process cannot write in a folder, or make it; empty if none is known."""
    place = nearest_existing(folder)
    try:
        return _reason(place)
    except OSError as error:  # a link to nowhere, or a folder that may not be searched
        return f"{place}: {error.strerror}"


def nearest_existing(place: Path) -> Path:
    """Return the place itself if it exists, else the nearest folder above it that does."""
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def _reason(place: Path) -> str:
    status = place.stat()
    if not place.is_dir():
        return f"{place} is not a folder"
    for folder in _OF_THE_KERNEL:
        with suppress(OSError):
            if status.st_dev == os.stat(folder).st_dev:  # noqa: PTH116 - short
                return f"{folder} holds no files but those of the kernel"
    system = os.statvfs(place)
    if system.f_flag & os.ST_RDONLY:
        return f"the file system of {place} is read-only"
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"no permission to write in {place}"
    is_full = system.f_blocks and not (system.f_bavail if os.geteuid() else system.f_bfree)
    return f"no space left on the file system of {place}" if is_full else ""
