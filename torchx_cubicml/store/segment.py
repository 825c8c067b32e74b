"""Old events together in one immutable object, beside the others: listed and read like a folder that holds them.

A segment is gzipped text with one event on each line, its object's name in front: nothing of an event is changed.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.store.backend import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

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
