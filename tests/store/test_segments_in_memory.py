"""The reader of segments: what it fetches at once, what it keeps, and what it refuses."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.store import segments
from torchx_cubicml.store.backend import Directory, never
from torchx_cubicml.store.segments import (
    MAX_SEGMENT_BYTES,
    Segments,
    decode_segment,
    encode_line,
    encode_segment,
    is_segment,
    segment_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "/s/segments"


class Server:
    """Segments by their paths, with a record of what was fetched at once."""

    def __init__(self, contents: dict[str, bytes | Exception]) -> None:
        self.contents = contents
        self.fetched: list[list[str]] = []

    def fetch(self, places: Sequence[str]) -> dict[str, bytes | Exception]:
        self.fetched.append([*places])
        return {place: self.contents[place] for place in places}


def server_of(count: int, size: int = 2) -> tuple[Server, list[str]]:
    content = json.dumps("x" * (size - 2)).encode()
    places = [f"{FOLDER}/2026-01-{number:02}-a.events.gz" for number in range(1, count + 1)]
    return Server({place: encode_segment({"0.json": content}) for place in places}), places


def test_a_segment_is_gzip_of_names_and_compact_json() -> None:
    data = encode_segment({"b.json": b'{"x": [1, 2]}', "a.json": b'"\xc3\xa9"'})
    assert gzip.decompress(data) == b'b.json\t{"x":[1,2]}\na.json\t"\\u00e9"\n'
    assert data[4:8] == bytes(4)  # no time, so that equal events are equal bytes
    assert decode_segment(data) == {"b.json": b'{"x":[1,2]}', "a.json": b'"\\u00e9"'}
    assert encode_line(b'{"a": 1, "b": 2}') == b'{"a":1,"b":2}'
    assert decode_segment(gzip.compress(b"a.json\tb\tc\n")) == {"a.json": b"b\tc"}


@pytest.mark.parametrize("name", ["a.txt", ".a.json", "x/a.json", "/a.json", "", "é.txt"])
def test_a_segment_with_an_odd_name_is_refused(name: str) -> None:
    with pytest.raises(RecordError, match=r"^it holds an invalid object name$"):
        decode_segment(gzip.compress(name.encode() + b"\t{}\n"))


def test_a_name_outside_of_ascii_is_replaced() -> None:
    assert decode_segment(gzip.compress(b"\xff.json\t{}")) == {"\ufffd.json": b"{}"}


def test_a_segment_is_legal_up_to_its_limit() -> None:
    assert MAX_SEGMENT_BYTES == 67_108_864
    whole = b"a.json\t" + b" " * (MAX_SEGMENT_BYTES - 7)
    assert len(decode_segment(gzip.compress(whole, 1))["a.json"]) == MAX_SEGMENT_BYTES - 7
    with pytest.raises(RecordError, match=r"^truncated, or larger than the limit of 67108864 bytes$"):
        decode_segment(gzip.compress(whole + b" ", 1))


def test_only_a_path_within_a_segment_has_one() -> None:
    assert segment_of("/s/segments/a.events.gz/x/y.json") == ""
    assert segment_of("a.events.gz/y.json") == "a.events.gz"
    assert segment_of("/s/a.events.gz") == segment_of("y.json") == ""
    assert [is_segment(name) for name in ("a.events.gz", ".a.events.gz", "a.gz", ".a")] == [True, False, False, False]


def test_quick_segments_are_fetched_in_growing_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    server, places = server_of(99)
    monkeypatch.setattr(segments.time, "monotonic", lambda: 7.0)
    listing = Segments(server.fetch).listed(places, {}, never)
    assert [len(batch) for batch in server.fetched] == [1, 2, 4, 8, 16, 32, 32, 4]
    assert [place for batch in server.fetched for place in batch] == places
    assert [*listing.directories] == places
    assert (listing.problems, listing.unopened) == ((), ())


def test_slow_segments_are_fetched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server, places = server_of(3)
    times = iter([0.0, 0.5, 1.0, 1.5, 2.0, 2.499])
    monkeypatch.setattr(segments.time, "monotonic", lambda: next(times))
    Segments(server.fetch).listed(places, {}, never)
    assert server.fetched == [[place] for place in places]


def test_known_segments_are_not_fetched() -> None:
    server, places = server_of(2)
    known = Directory(place=places[0], names=("k.json",))
    answers = iter([False, True])
    listing = Segments(server.fetch).listed([*places, "later"], {places[0]: known}, lambda: next(answers))
    assert listing.directories[places[0]] is known
    assert listing.directories[places[1]] == Directory(place=places[1], names=("0.json",), stamp=0)
    assert (server.fetched, listing.unopened) == ([[places[1]]], ("later",))


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreError("503"), RecordError("damaged")])
def test_an_unreadable_segment_is_a_problem(error: Exception) -> None:
    server = Server({"a": error, "b": encode_segment({"2.json": b"1", "1.json": b"2"})})
    listing = Segments(server.fetch).listed(["a", "b"], {}, never)
    assert listing.problems == (f"a ({error})",)
    assert listing.directories == {"b": Directory(place="b", names=("1.json", "2.json"), stamp=0)}


def test_an_object_is_read_from_its_segment() -> None:
    server, places = server_of(3)
    reader = Segments(server.fetch)
    assert reader.content(f"{places[1]}/0.json") == reader.content(f"{places[1]}/0.json") == b'""'
    missing = reader.content(f"{places[1]}/9.json")
    assert isinstance(missing, FileNotFoundError)
    assert str(missing) == f"no such object in {places[1]}"
    assert server.fetched == [[places[1]]]


def test_a_moved_object_is_looked_for_in_segments_of_its_day() -> None:
    contents = {
        f"{FOLDER}/2026-01-01-a.events.gz": encode_segment({"1.json": b"1"}),
        f"{FOLDER}/2026-01-02-a.events.gz": encode_segment({"1.json": b"2"}),
        f"{FOLDER}/2026-01-02-b.events.gz": encode_segment({"2.json": b"3"}),
        f"{FOLDER}/2026-01-020-c.events.gz": encode_segment({"3.json": b"4"}),
    }
    server = Server(contents)
    reader = Segments(server.fetch)
    found = [reader.found(f"/s/events/2026-01-02/{name}.json", contents) for name in (1, 2, 3)]
    assert found == [b"2", b"3", None]
    assert [place for (place,) in server.fetched] == list(contents)[1:3]


def test_segments_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    server, places = server_of(3, size=10)
    monkeypatch.setattr(segments, "_MOST_BYTES", 20)
    reader = Segments(server.fetch)
    for number in (0, 1, 0, 1, 2, 1, 2, 0):
        reader.content(f"{places[number]}/0.json")
    assert [places.index(place) for (place,) in server.fetched] == [0, 1, 2, 0]
