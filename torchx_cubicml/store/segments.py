"""Segments: objects that hold many events of past days, and how they are written and read."""

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
MAX_SEGMENT_BYTES = 64 * 1024 * 1024  # of the text


def segment_of(place: str) -> str:
    """Return the place of the segment that an object at ``place`` is in; empty for an object of its own.

    >>> segment_of("/s/segments/2026-01-01-ab.events.gz/x.json"), segment_of("/s/events/2026-01-01/x.json")
    ('/s/segments/2026-01-01-ab.events.gz', '')
    """
    folder = place.rpartition("/")[0]
    return folder if folder.endswith(SUFFIX) else ""


def is_segment(name: str) -> bool:
    """Whether a file of this name is a published segment."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def encode_segment(objects: Mapping[str, bytes]) -> bytes:
    """Return a segment.

    Args:
        objects: name -> the event that it holds, as JSON.
    """
    import gzip  # no launch writes one

    lines = (name.encode("ascii") + b"\t" + line_of(content) + b"\n" for name, content in objects.items())
    return gzip.compress(b"".join(lines), mtime=0)


def line_of(content: bytes) -> bytes:
    """Return an event as it stands in a segment.

    Raises:
        ValueError: it is no JSON.
    """
    return json.dumps(json.loads(content), separators=(",", ":")).encode("ascii")


def decode_segment(data: bytes) -> dict[str, bytes]:
    """Return name -> content of the objects in a segment.

    Raises:
        RecordError: it is damaged, or too large.
    """
    reader = zlib.decompressobj(wbits=31)  # of gzip
    try:
        text = reader.decompress(data, MAX_SEGMENT_BYTES + 1)
    except zlib.error as error:
        raise RecordError(f"it is no segment: {error}") from error
    if len(text) > MAX_SEGMENT_BYTES or not reader.eof:
        raise RecordError(f"it is cut, or more than the {MAX_SEGMENT_BYTES} bytes that are legal")
    found = {}
    for line in text.splitlines():
        name, _, content = line.partition(b"\t")
        known = name.decode("ascii", "replace")
        if not is_object(known) or "/" in known:
            raise RecordError("it names an object that is none")
        found[known] = content
    return found


_MOST_BYTES = 64 * 1024 * 1024  # of text that stays in memory: of merged stores, many are read side by side
_AT_ONCE = 32  # fetched together, where that is quick
_QUICK_S = 0.5
_IMMUTABLE = 0  # stamp of what never changes


class Segments:
    """Segments by their places.

    Args:
        fetch: returns place -> bytes of some, or why one cannot be read, as an ``OSError`` or ``StoreError``; raises
            these too.
    """

    def __init__(self, fetch: Callable[[Sequence[str]], Mapping[str, bytes | Exception]]) -> None:
        self._fetch = fetch
        self._open: dict[str, Mapping[str, bytes]] = {}
        self._bytes: dict[str, int] = {}

    def listed(self, places: Iterable[str], known: Mapping[str, Directory], out_of_time: Callable[[], bool]) -> Listing:
        """Return segments as folders of objects.

        Args:
            places: of the segments.
            known: as listed before; what is known of a segment stays true.
            out_of_time: see ``Backend.list_objects``.
        """
        places = list(places)
        shelves = {place: known[place] for place in places if place in known}
        problems: list[str] = []
        unknown = [place for place in places if place not in known]
        size = 1
        while unknown and not out_of_time():
            batch, unknown = unknown[:size], unknown[size:]
            start = time.monotonic()
            for place, data in self._fetch(batch).items():
                try:
                    names = tuple(sorted(self._kept(place, data)))
                    shelves[place] = Directory(place=place, names=names, stamp=_IMMUTABLE)
                except (OSError, StoreError, RecordError) as error:
                    problems.append(f"{place} ({error})")
            size = min(2 * size, _AT_ONCE) if time.monotonic() - start < _QUICK_S else size
        return Listing(shelves=shelves, problems=tuple(problems), unopened=tuple(unknown))

    def content(self, place: str) -> bytes | Exception:
        """Return the object at a place in a segment, or why it cannot be read."""
        try:
            return self._opened(segment_of(place))[place.rpartition("/")[2]]
        except (OSError, StoreError, RecordError) as error:
            return error
        except KeyError:
            return FileNotFoundError(f"no such object in {segment_of(place)}")

    def found(self, place: str, among: Iterable[str]) -> bytes | None:
        """Return an object that was at ``place`` from the segment ``among`` which it was folded into meanwhile."""
        folder, _, name = place.rpartition("/")
        of_its_day = f"{folder.rpartition('/')[2]}-"
        for segment in among:
            if not segment.rpartition("/")[2].startswith(of_its_day):
                continue
            content = self.content(f"{segment}/{name}")
            if isinstance(content, bytes):
                return content
        return None

    def _opened(self, place: str) -> Mapping[str, bytes]:
        return self._open[place] if place in self._open else self._kept(place, self._fetch([place])[place])

    def _kept(self, place: str, data: bytes | Exception) -> Mapping[str, bytes]:
        if isinstance(data, Exception):
            raise data
        content = decode_segment(data)
        self._bytes[place] = sum(map(len, content.values()))
        while self._open and sum(self._bytes.values()) > _MOST_BYTES:
            oldest = next(iter(self._open))
            del self._open[oldest], self._bytes[oldest]
        self._open[place] = content
        return content
