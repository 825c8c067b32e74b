"""Store URLs: checks them and makes them absolute."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask

LOCAL_PROTOCOLS = ("", "file", "local")
# Object stores put an object atomically; elsewhere a temporary file is written and then moved.
OBJECT_PROTOCOLS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "tos", "memory")
_FILE_PROTOCOLS = ("sftp", "ssh", "ftp", "hdfs", "webhdfs", "smb", "dbfs", "webdav")
_LEGAL = "a path, file, s3, gs, abfs, sftp, ftp, hdfs, smb, memory or any other protocol of fsspec"
# A cache or an archive in front of a store shows stale objects, or cannot have several writers.
_WRAPPERS = frozenset(
    {
        "simplecache",
        "filecache",
        "blockcache",
        "cached",
        "zip",
        "tar",
        "libarchive",
        "reference",
        "generic",
        "dir",
        "data",
    }
)
_PROTOCOL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*)://(?P<path>.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_HALF_PROTOCOL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*):")


def absolute_url(url: str, *, for_launch: bool = False) -> str:
    """Return ``url`` in absolute form: it names the same store from every directory of this machine.

    Args:
        url: a path, ``file://`` or any other URL that fsspec supports.
        for_launch: whether a job in another process must reach the store, which rules out ``memory://``.

    Raises:
        StoreError: ``url`` names no store, or one of an unknown protocol.

    >>> absolute_url("s3://team/cubicml/"), absolute_url("file:///data//cubicml/")
    ('s3://team/cubicml', 'file:///data/cubicml')
    """
    url = os.path.expandvars(url)
    if unset := _VARIABLE.search(url):
        raise StoreError(f"store {mask(url)} holds the variable {unset[0]}, which is not set")
    protocol, path = split_url(url)
    if protocol in LOCAL_PROTOCOLS:
        return f"{protocol}://{_absolute_path(path)}" if protocol else str(_absolute_path(path))
    if protocol == "memory" and for_launch:
        raise StoreError(f"store {mask(url)} exists only in this process; use one that the job can reach")
    if protocol not in OBJECT_PROTOCOLS + _FILE_PROTOCOLS and not _known_to_fsspec(protocol):
        raise StoreError(f"store {mask(url)} has the unknown protocol {protocol!r}; use {_LEGAL}")
    if not path.strip("/") and protocol != "memory":
        raise StoreError(f"store {mask(url)} has no folder; use {protocol}://<place>/<folder>")
    return f"{protocol}://{path.rstrip('/')}"


def split_url(url: str) -> tuple[str, str]:
    """Split a store's URL into protocol and path; the protocol of a plain path is empty.

    Raises:
        StoreError: the URL is empty, chains several stores, or lacks the slashes of its protocol.
    """
    if not url.strip():
        raise StoreError(f"the store URL is empty; use {_LEGAL}")
    if "\0" in url:
        raise StoreError(f"store {mask(url)!r} contains a null character")
    match = _PROTOCOL.fullmatch(url)
    if match is None:
        _refuse_half_protocol(url)
        return "", url
    protocol = match["protocol"].lower()
    if "::" in url or protocol in _WRAPPERS:
        raise StoreError(f"store {mask(url)} wraps another store; use the URL of that store alone")
    return protocol, match["path"]


def _refuse_half_protocol(url: str) -> None:
    match = _HALF_PROTOCOL.match(url)
    protocol = match["protocol"].lower() if match else ""
    if protocol and protocol in (*LOCAL_PROTOCOLS, *OBJECT_PROTOCOLS, *_FILE_PROTOCOLS):
        raise StoreError(f"store {mask(url)} has no slashes; write {protocol}://... , or ./{mask(url)} for a path")
    if "::" in url and "://" in url:
        raise StoreError(f"store {mask(url)} wraps another store; use the URL of that store alone")


def _absolute_path(path: str) -> Path:
    if not path:
        raise StoreError("store file:// has no folder; use file:///<folder>")
    try:
        return Path.cwd() / Path(path).expanduser()
    except (RuntimeError, OSError) as error:
        raise StoreError(f"cannot make store {mask(path)} absolute: {error}") from error


def _known_to_fsspec(protocol: str) -> bool:
    from fsspec.registry import known_implementations, registry  # 75 ms, spent only on rare protocols

    return protocol in known_implementations or protocol in registry
