"""Storage backend for any protocol of fsspec."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import (
    EVENTS,
    MAX_OBJECT_BYTES,
    NO_DIRECTORIES,
    Directory,
    Listing,
    Presence,
    is_object,
    never,
    presence_of,
)
from torchx_cubicml.store.obstacle import S3_CLIENT
from torchx_cubicml.store.segments import MAX_SEGMENT_BYTES, SEGMENTS, Segments, is_segment, segment_of
from torchx_cubicml.store.url import OBJECT_PROTOCOLS

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fsspec import AbstractFileSystem

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S3 = ("s3", "s3a")
_BATCH = 256  # objects fetched at once, and held in memory


class RemoteBackend:
    """Backend that stores objects below one URL; it imports fsspec and connects at the first use."""

    def __init__(self, url: str, protocol: str) -> None:
        self._url = url
        self._protocol = protocol
        self._connection: tuple[AbstractFileSystem, str] | None = None
        self._made: set[str] = set()
        self._segments = Segments(self._fetch)

    def publish(self, day: str, name: str, data: bytes) -> None:
        """Put one object; where a put is not atomic, write a hidden file and move it."""
        self._publish(f"{EVENTS}/{day}", name, data)

    def publish_segment(self, name: str, data: bytes) -> str:
        """Put one segment in the same way; whether it survives a power loss depends on the server."""
        return self._publish(SEGMENTS, name, data)

    def _publish(self, below: str, name: str, data: bytes) -> str:
        with self._failing_as("cannot write to"):
            system, root = self._connect()
            folder = f"{root}/{below}"
            if self._protocol in OBJECT_PROTOCOLS:
                system.pipe_file(f"{folder}/{name}", data)
                return f"{folder}/{name}"
            if folder not in self._made:
                system.makedirs(folder, exist_ok=True)
                self._made.add(folder)
            system.pipe_file(f"{folder}/.{name}.tmp", data)
            system.mv(f"{folder}/.{name}.tmp", f"{folder}/{name}")
            return f"{folder}/{name}"

    def write_probe(self, name: str, data: bytes) -> tuple[bytes, float | None]:
        """Put an object below ``events``, or below the root where a put does not make folders."""
        with self._failing_as("cannot write to"):
            system, root = self._connect()
            place = f"{root}/{EVENTS}/{name}" if self._protocol in OBJECT_PROTOCOLS else f"{root}/{name}"
            try:
                system.pipe_file(place, data)
                return bytes(system.cat_file(place)), _modified(system, place)
            finally:
                with suppress(FileNotFoundError):
                    system.rm_file(place)

    def remove(self, places: Sequence[str]) -> None:
        """Remove the objects one by one."""
        with self._failing_as("cannot remove an object from"):
            system, _ = self._connect()
            for place in places:
                with suppress(FileNotFoundError):
                    system.rm_file(place)

    def presence(self) -> Presence:
        """List the place itself, without fsspec's caches."""
        with self._failing_as("cannot read"):
            system, root = self._connect()
            system.invalidate_cache()
            try:
                infos = system.ls(root, detail=True)
            except FileNotFoundError:
                return Presence.ABSENT
        names = {str(info["name"]).rstrip("/") for info in infos}
        is_file = names == {root} and all(info["type"] == "file" for info in infos)
        return Presence.FILE if is_file else presence_of({name.rpartition("/")[2] for name in names})

    def list_objects(
        self, known: Mapping[str, Directory] = NO_DIRECTORIES, out_of_time: Callable[[], bool] = never
    ) -> Listing:
        """List without fsspec's caches, as other processes write to the same store; folders have no stamps."""
        infos, problems = self._infos(EVENTS)
        sizes = {name: size for name, size in map(_name_and_size, infos) if is_object(name.rsplit("/", 1)[-1])}
        too_large = frozenset(name for name, size in sizes.items() if size is not None and size > MAX_OBJECT_BYTES)
        places, unlisted = self._segment_places()
        segments = self._segments.listed(places, known, out_of_time)
        return Listing(
            directories={**_group_by_folder(sizes), **segments.directories},
            too_large=too_large,
            problems=(*problems, *unlisted, *segments.problems),
            unopened=segments.unopened,
        )

    def read(self, places: Sequence[str], *, follows: bool = True) -> Iterator[tuple[str, bytes | Exception]]:
        """Fetch in batches, concurrently within a batch where the protocol allows it."""
        for start in range(0, len(places), _BATCH):
            batch = list(places[start : start + _BATCH])
            contents = self._read_objects([place for place in batch if not segment_of(place)], follows=follows)
            for place in batch:
                yield place, contents[place] if place in contents else self._segments.content(place)

    def _read_objects(self, places: list[str], *, follows: bool) -> dict[str, bytes | Exception]:
        if not places:
            return {}
        with self._failing_as("cannot read"):
            system, _ = self._connect()
            fetched = system.cat_ranges(places, 0, MAX_OBJECT_BYTES + 1, on_error="return")
        contents = dict(zip(places, fetched, strict=True))
        gone = [place for place, content in contents.items() if isinstance(content, FileNotFoundError)]
        if not gone or not follows:
            return contents
        segments = self._segment_places()[0]
        return contents | {place: self._segments.found(place, segments) or contents[place] for place in gone}

    def _fetch(self, segments: Sequence[str]) -> dict[str, bytes | Exception]:
        """Fetch segments, concurrently where the protocol allows it."""
        with self._failing_as("cannot read"):
            system, _ = self._connect()
            places = list(segments)
            fetched = system.cat_ranges(places, 0, MAX_SEGMENT_BYTES + 1, on_error="return")
        return {
            place: _as_store_error(data) if isinstance(data, Exception) else bytes(data)
            for place, data in zip(places, fetched, strict=True)
        }

    def _segment_places(self) -> tuple[list[str], list[str]]:
        infos, problems = self._infos(SEGMENTS)
        places = sorted(name for name, _ in map(_name_and_size, infos))
        return [place for place in places if is_segment(place.rsplit("/", 1)[-1])], problems

    def _infos(self, below: str) -> tuple[list[Mapping[str, object]], list[str]]:
        """Return fsspec's entries below one folder of the store, and the entries that cannot be listed."""
        with self._failing_as("cannot read"):
            system, root = self._connect()
            system.invalidate_cache()
            list_all = _find if self._protocol in OBJECT_PROTOCOLS else _walk
            return list_all(system, f"{root}/{below}")

    def _connect(self) -> tuple[AbstractFileSystem, str]:
        if self._connection is None:
            from fsspec.core import url_to_fs

            # Without fsspec's cache of connections: a failed connection must not be used again.
            system, root = url_to_fs(self._url, skip_instance_cache=True)
            _use_daemon_threads(system)
            self._connection = system, str(root).rstrip("/")
        return self._connection

    @contextmanager
    def _failing_as(self, what: str) -> Iterator[None]:
        # Each protocol has its own errors (botocore, paramiko, ftplib); Exception is their only common base.
        try:
            yield
        except ImportError as error:
            package = S3_CLIENT if self._protocol in _S3 else "a client package"
            raise StoreError(f"store {mask(self._url)} needs {package} ({error})") from error
        except Exception as error:
            why = mask(f"{type(error).__name__}: {error}")
            raise StoreError(f"{what} store {mask(self._url)}: {why}") from error


class _DaemonThreads(ThreadPoolExecutor):
    """Executor that runs each call in a daemon thread: asyncio's own delays the exit for, say, a slow name server."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        threading.Thread(target=run, daemon=True).start()
        return future


def _use_daemon_threads(system: AbstractFileSystem) -> None:
    loop: AbstractEventLoop | None = getattr(system, "loop", None)
    if loop is not None:
        loop.call_soon_threadsafe(loop.set_default_executor, _DaemonThreads())


def _modified(system: AbstractFileSystem, place: str) -> float | None:
    """Return the time of an object's last change, in seconds since 1970; ``None`` where that is unknown."""
    try:
        time = system.modified(place)
    except (NotImplementedError, OSError, LookupError, ValueError):
        return None
    return time.timestamp() if isinstance(time, datetime) and time.tzinfo is not None else None


def _as_store_error(error: Exception) -> Exception:
    """Convert an error of any protocol to a ``StoreError``."""
    return StoreError(mask(f"{type(error).__name__}: {error}"))


def _find(system: AbstractFileSystem, events: str) -> tuple[list[Mapping[str, object]], list[str]]:
    try:
        return list(system.find(events, detail=True).values()), []
    except FileNotFoundError:
        return [], []


def _walk(system: AbstractFileSystem, events: str) -> tuple[list[Mapping[str, object]], list[str]]:
    """List folder by folder, as ``find`` treats an error as an empty folder."""
    files: list[Mapping[str, object]] = []
    problems: list[str] = []
    folders = [events]
    while folders:
        folder = folders.pop()
        try:
            infos = system.ls(folder, detail=True)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            if folder == events:
                raise
            problems.append(f"{folder} ({error})")
            continue
        files += [info for info in infos if info["type"] != "directory"]
        folders += [str(info["name"]) for info in infos if info["type"] == "directory"]
    return files, problems


def _group_by_folder(places: Iterable[str]) -> dict[str, Directory]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for place in places:
        folder, _, name = place.rpartition("/")
        names[folder].append(name)
    return {folder: Directory(place=folder, names=tuple(sorted(names[folder]))) for folder in sorted(names)}


def _name_and_size(info: Mapping[str, object]) -> tuple[str, int | None]:
    size = info.get("size")
    return str(info["name"]), size if isinstance(size, int) else None
