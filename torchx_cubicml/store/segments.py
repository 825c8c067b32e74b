"""Segments: gzip files that hold many events of one past day; their encoding, decoding and in-memory cache."""

from __future__ import annotations

import json
import time
import zlib
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.store.backend import Directory, Listing, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


SEGMENTS = "segments"
SUFFIX = ".events.gz"
MAX_SEGMENT_BYTES = 64 * 1024 * 1024  # uncompressed


def segment_of(place: str) -> str:
    """Return the path of the segment that contains the object at ``place``; empty for an object of its own.

    >>> segment_of("/s/segments/2026-01-01-ab.events.gz/x.json"), segment_of("/s/events/2026-01-01/x.json")
    ('/s/segments/2026-01-01-ab.events.gz', '')
    """
    folder = place.rpartition("/")[0]
    return folder if folder.endswith(SUFFIX) else ""


def is_segment(name: str) -> bool:
    """Return whether a file name is that of a published segment."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def encode_segment(objects: Mapping[str, bytes]) -> bytes:
    """Encode events as one gzip segment.

    Args:
        objects: object name -> its event, as JSON.
    """
    import gzip  # imported late: no launch writes a segment

    lines = (name.encode("ascii") + b"\t" + encode_line(content) + b"\n" for name, content in objects.items())
    return gzip.compress(b"".join(lines), mtime=0)


def encode_line(content: bytes) -> bytes:
    """Return an event as its line in a segment: compact JSON.

    Raises:
        ValueError: the content is not JSON.
    """
    return json.dumps(json.loads(content), separators=(",", ":")).encode("ascii")


def decode_segment(data: bytes) -> dict[str, bytes]:
    """Return name -> content of the objects in a segment.

    Raises:
        RecordError: the segment is damaged or too large.
    """
    reader = zlib.decompressobj(wbits=31)  # the gzip format
    try:
        text = reader.decompress(data, MAX_SEGMENT_BYTES + 1)
    except zlib.error as error:
        raise RecordError(f"not a segment: {error}") from error
    if len(text) > MAX_SEGMENT_BYTES or not reader.eof:
        raise RecordError(f"truncated, or larger than the limit of {MAX_SEGMENT_BYTES} bytes")
    found = {}
    for line in text.splitlines():
        name, _, content = line.partition(b"\t")
        known = name.decode("ascii", "replace")
        if not is_object(known) or "/" in known:
            raise RecordError("it holds an invalid object name")
        found[known] = content
    return found


_MOST_BYTES = 64 * 1024 * 1024  # uncompressed, in memory: merged stores have many segments read in turn
_MAX_FETCHED = 32  # segments fetched at once, where that is quick
_QUICK_S = 0.5
_IMMUTABLE = 0  # stamp of a folder that never changes


class Segments:
    """Reader of segments with a bounded in-memory cache.

    Args:
        fetch: returns path -> bytes of some segments, or the ``OSError`` or ``StoreError`` of one that cannot be read;
            it may raise these too.
    """

    def __init__(self, fetch: Callable[[Sequence[str]], Mapping[str, bytes | Exception]]) -> None:
        self._fetch = fetch
        self._cache: dict[str, Mapping[str, bytes]] = {}
        self._bytes: dict[str, int] = {}

    def listed(self, places: Iterable[str], known: Mapping[str, Directory], out_of_time: Callable[[], bool]) -> Listing:
        """List each segment as a folder of objects.

        Args:
            places: paths of the segments.
            known: an earlier listing; the listing of a segment never changes.
            out_of_time: see ``Backend.list_objects``.
        """
        places = list(places)
        directories = {place: known[place] for place in places if place in known}
        problems: list[str] = []
        unknown = [place for place in places if place not in known]
        size = 1
        while unknown and not out_of_time():
            batch, unknown = unknown[:size], unknown[size:]
            start = time.monotonic()
            for place, data in self._fetch(batch).items():
                try:
                    names = tuple(sorted(self._decode_and_cache(place, data)))
                    directories[place] = Directory(place=place, names=names, stamp=_IMMUTABLE)
                except (OSError, StoreError, RecordError) as error:
                    problems.append(f"{place} ({error})")
            size = min(2 * size, _MAX_FETCHED) if time.monotonic() - start < _QUICK_S else size
        return Listing(directories=directories, problems=tuple(problems), unopened=tuple(unknown))

    def content(self, place: str) -> bytes | Exception:
        """Return the object at a path within a segment, or the error that prevents reading it."""
        try:
            return self._contents(segment_of(place))[place.rpartition("/")[2]]
        except (OSError, StoreError, RecordError) as error:
            return error
        except KeyError:
            return FileNotFoundError(f"no such object in {segment_of(place)}")

    def found(self, place: str, among: Iterable[str]) -> bytes | None:
        """Return an object once at ``place`` from the one of ``among`` it was moved into; ``None`` if there is none."""
        folder, _, name = place.rpartition("/")
        of_its_day = f"{folder.rpartition('/')[2]}-"
        for segment in among:
            if not segment.rpartition("/")[2].startswith(of_its_day):
                continue
            content = self.content(f"{segment}/{name}")
            if isinstance(content, bytes):
                return content
        return None

    def _contents(self, place: str) -> Mapping[str, bytes]:
        return (
            self._cache[place] if place in self._cache else self._decode_and_cache(place, self._fetch([place])[place])
        )

    def _decode_and_cache(self, place: str, data: bytes | Exception) -> Mapping[str, bytes]:
        if isinstance(data, Exception):
            raise data
        content = decode_segment(data)
        self._bytes[place] = sum(map(len, content.values()))
        while self._cache and sum(self._bytes.values()) > _MOST_BYTES:
            oldest = next(iter(self._cache))
            del self._cache[oldest], self._bytes[oldest]
        self._cache[place] = content
        return content
