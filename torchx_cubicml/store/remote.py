"""A store behind any protocol of fsspec."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from torchx_cubicml.errors import StoreError
from torchx_cubicml.masking import mask
from torchx_cubicml.store.folder import EVENTS, MAX_OBJECT_BYTES, Listing, is_object
from torchx_cubicml.store.url import OBJECT_PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fsspec import AbstractFileSystem

_P = ParamSpec("_P")
_T = TypeVar("_T")
_BATCH = 256  # objects in flight together, and in memory


class RemoteFolder:
    """Objects below one URL; nothing is imported or connected before the first use."""

    def __init__(self, url: str, protocol: str) -> None:
        self._url = url
        self._protocol = protocol
        self._connection: tuple[AbstractFileSystem, str] | None = None
        self._made: set[str] = set()

    def publish(self, day: str, name: str, data: bytes) -> None:
        """Put one object; where a put can be seen half done, write a hidden name and move it."""
        with self._failing_as("cannot be written"):
            system, root = self._connect()
            folder = f"{root}/{EVENTS}/{day}"
            if self._protocol in OBJECT_PROTOCOLS:
                system.pipe_file(f"{folder}/{name}", data)
                return
            if folder not in self._made:
                system.makedirs(folder, exist_ok=True)
                self._made.add(folder)
            system.pipe_file(f"{folder}/.{name}.tmp", data)
            system.mv(f"{folder}/.{name}.tmp", f"{folder}/{name}")

    def list_objects(self) -> Listing:
        """List past all caches, for other processes write to the same store."""
        with self._failing_as("cannot be read"):
            system, root = self._connect()
            system.invalidate_cache()
            events = f"{root}/{EVENTS}"
            infos = _find(system, events) if self._protocol in OBJECT_PROTOCOLS else _walk(system, events)
            return Listing(
                sizes={
                    str(info["name"]): _size(info) for info in infos if is_object(str(info["name"]).rsplit("/", 1)[-1])
                }
            )

    def read(self, places: Sequence[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """Fetch in batches, each concurrently where the protocol can."""
        for start in range(0, len(places), _BATCH):
            batch = list(places[start : start + _BATCH])
            with self._failing_as("cannot be read"):
                system, _ = self._connect()
                contents = system.cat_ranges(batch, 0, MAX_OBJECT_BYTES + 1, on_error="return")
            yield from zip(batch, contents, strict=True)

    def _connect(self) -> tuple[AbstractFileSystem, str]:
        if self._connection is None:
            from fsspec.core import url_to_fs

            # Not from fsspec's own cache of connections: one that has failed must not serve again.
            system, root = url_to_fs(self._url, skip_instance_cache=True)
            _let_exit_go_on(system)
            self._connection = system, str(root).rstrip("/")
        return self._connection

    @contextmanager
    def _failing_as(self, what: str) -> Iterator[None]:
        # Every protocol has errors of its own (botocore, paramiko, ftplib), which share no base but Exception.
        try:
            yield
        except StoreError:
            raise
        except ImportError as error:
            why = f"the client package is missing: {error}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        else:
            return
        raise StoreError(f"store {mask(self._url)} {what}: {mask(why)}")
