from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, OBJECT_PROTOCOLS, absolute_url, split_url

if TYPE_CHECKING:
    from pathlib import Path

OBJECTS = "s3 s3a gs gcs abfs abfss az oss oci tos memory"
FILES = "sftp ssh ftp hdfs webhdfs smb dbfs webdav"
WRAPPERS = "simplecache filecache blockcache cached zip tar libarchive reference generic dir data"
WRAPS = "wraps another store; use the URL of that store alone"
LEGAL = "a path, file, s3, gs, abfs, sftp, ftp, hdfs, smb, memory or any other protocol of fsspec"


def test_the_protocols_are_these() -> None:
    assert LOCAL_PROTOCOLS == ("", "file", "local")
    assert " ".join(OBJECT_PROTOCOLS) == OBJECTS


@pytest.mark.parametrize("protocol", [*OBJECTS.split(), *FILES.split()])
def test_a_known_protocol_is_legal_and_needs_its_slashes(protocol: str) -> None:
    for url in (f"{protocol}://host/x", f"{protocol.upper()}://host/x///"):
        assert absolute_url(url) == f"{protocol}://host/x"
        assert split_url(url)[0] == protocol
    with pytest.raises(StoreError, match=f"^store {protocol}:x has no slashes; write {protocol}://... , or ./"):
        absolute_url(f"{protocol}:x")


@pytest.mark.parametrize("protocol", FILES.split())
def test_known_protocols_are_legal_without_a_client(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = importlib.import_module("fsspec.registry")
    for table in ("known_implementations", "registry"):
        monkeypatch.setattr(registry, table, {})
    assert absolute_url(f"{protocol}://host/x") == f"{protocol}://host/x"


def test_a_protocol_that_fsspec_knows_is_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = importlib.import_module("fsspec.registry")
    for table, other in (("known_implementations", "registry"), ("registry", "known_implementations")):
        monkeypatch.setattr(registry, table, {"rare": {}})
        monkeypatch.setattr(registry, other, {})
        assert absolute_url("rare://host/x") == "rare://host/x"
        with pytest.raises(StoreError, match=f"^store rarer://x/y has the unknown protocol 'rarer'; use {LEGAL}$"):
            absolute_url("rarer://x/y")


@pytest.mark.parametrize("protocol", WRAPPERS.split())
def test_a_wrapper_of_a_store_is_refused(protocol: str) -> None:
    for url in (f"{protocol}://x/y", f"{protocol}::s3://x/y", f"{protocol.upper()}://x/y"):
        with pytest.raises(StoreError, match=f"^store {url} {WRAPS}$"):
            absolute_url(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", f"the store URL is empty; use {LEGAL}"),
        (" \n", f"the store URL is empty; use {LEGAL}"),
        ("a\0b", "store 'a\\x00b' contains a null character"),
        ("s3://", "store s3:// has no folder; use s3://<place>/<folder>"),
        ("s3:///", "store s3:/// has no folder; use s3://<place>/<folder>"),
        ("file://", "store file:// has no folder; use file:///<folder>"),
        ("file:x", "store file:x has no slashes; write file://... , or ./file:x for a path"),
        ("S3:x", "store S3:x has no slashes; write s3://... , or ./S3:x for a path"),
        ("a b::s3://x", f"store a b::s3://x {WRAPS}"),
        ("s3://x::y", f"store s3://x::y {WRAPS}"),
    ],
    ids=repr,
)
def test_an_illegal_url_is_refused_with_the_rule(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        absolute_url(url)


@pytest.mark.parametrize("path", ["a::b", "://x", "1x://y", "a:b", "x/s3:y", ":x"])
def test_an_odd_path_is_a_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_url(path) == ("", path)
    assert absolute_url(path).startswith(f"{tmp_path}/")


def test_a_memory_store_needs_no_folder_and_serves_no_job() -> None:
    assert absolute_url("memory://") == "memory://"
    with pytest.raises(StoreError, match=r"^store memory://x exists only in this process; use one that the job can"):
        absolute_url("memory://x", for_launch=True)
    assert absolute_url("s3://x/y", for_launch=True) == "s3://x/y"


def test_local_protocols_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = [absolute_url(url) for url in ("x", "file://x", "local://x", "FILE:///x//y/")]
    assert found == [f"{tmp_path}/x", f"file://{tmp_path}/x", f"local://{tmp_path}/x", "file:///x/y"]


def test_variables_of_a_path_are_those_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", str(tmp_path))
    assert absolute_url("$PLACE/a") == absolute_url("${PLACE}/a") == f"{tmp_path}/a"
    assert absolute_url("file://$PLACE/a") == f"file://{tmp_path}/a"
    monkeypatch.setenv("WHOLE", "s3://bucket/a")
    assert absolute_url("$WHOLE") == "s3://bucket/a"
    with pytest.raises(StoreError, match=r"holds the variable \$UNSET_HERE, which is not set"):
        absolute_url("$UNSET_HERE/a")


def test_an_unknown_home_is_reported() -> None:
    with pytest.raises(StoreError, match=r"^cannot make store ~no-such-user/x absolute: "):
        absolute_url("~no-such-user/x")


def test_a_url_can_have_lines_and_signs() -> None:
    assert split_url("s3://a\nb") == ("s3", "a\nb")
    assert split_url("git+x.y-z://b") == ("git+x.y-z", "b")
