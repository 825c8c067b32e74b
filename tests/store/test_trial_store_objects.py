"""Objects of a store: their bytes, their limit, and the warning about those that cannot be read."""

from __future__ import annotations

import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.store.backend import Directory, Listing
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.store.trial_store import TOO_LARGE, TrialStore, decode_event, open_backend, skipped_warnings

EVENT = Event(kind=EventKind.STARTED, trial_id="a", observed={"x": (1, "é")})
WRITTEN = (
    b'{"schema":1,"event":"started","trial_id":"a","attempt":[0,0],"sequence":0,"origin":"user",'
    b'"observed":{"x":[1,"\\u00e9"]}}\n'
)


class Kept:
    """Backend that keeps what is published, and reads what it is given."""

    def __init__(self, contents: dict[str, bytes | Exception], listing: Listing) -> None:
        self.contents, self.listing = contents, listing
        self.published: list[tuple[str, str, bytes]] = []

    def publish(self, day: str, name: str, data: bytes) -> None:
        self.published.append((day, name, data))

    def list_objects(self) -> Listing:
        return self.listing

    def read(self, places: list[str]) -> list[tuple[str, bytes | Exception]]:
        return [(place, self.contents[place]) for place in places]


def store_on(backend: Kept, monkeypatch: pytest.MonkeyPatch) -> TrialStore:
    monkeypatch.setattr("torchx_cubicml.store.trial_store.open_backend", lambda _: backend)
    return TrialStore("/data/x")


def test_an_event_is_one_line_of_compact_json(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Kept({}, Listing(directories={}))
    store_on(backend, monkeypatch).append(EVENT)
    ((day, name, data),) = backend.published
    assert data == WRITTEN
    assert decode_event(data) == EVENT
    assert name.startswith(day.replace("-", "") + "T")


def test_an_object_has_at_most_a_mebibyte() -> None:
    assert TOO_LARGE == "larger than the limit of 1048576 bytes"
    padded = WRITTEN + b" " * (1_048_576 - len(WRITTEN))
    assert decode_event(padded) == EVENT
    with pytest.raises(RecordError, match=f"^{TOO_LARGE}$"):
        decode_event(padded + b" ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON: "),
        (b'{"schema": 1, "event": "started", "trial_id": "a", "x": NaN}', "not JSON: NaN is not allowed"),
        (b'{"schema": 1, "event": "started", "trial_id": "a", "x": -Infinity}', "not JSON: -Infinity is not allowed"),
        (b"[" * 200_000, "not JSON: "),
        (OSError("no"), "cannot read it: no"),
        (b"{}", "invalid event: unknown schema None"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_the_cause_of_a_refusal_is_told(content: bytes | Exception, message: str) -> None:
    with pytest.raises(RecordError, match=f"^{message}"):
        decode_event(content)


def test_a_reading_warns_of_every_object_that_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("1.json", "2.json", "3.json", "4.json")
    listing = Listing(
        directories={"/s": Directory(place="/s", names=names)},
        too_large=frozenset({"/s/3.json", "/s/1.json"}),
        problems=("/s/closed (Permission denied)",),
    )
    store = store_on(Kept({"/s/2.json": WRITTEN, "/s/4.json": b"{"}, listing), monkeypatch)
    assert [trial.trial_id for trial in store] == ["a"]
    (warning,) = store.warnings
    head = "skipped 4 unreadable objects in store /data/x: /s/closed (Permission denied); "
    assert warning.startswith(f"{head}/s/1.json ({TOO_LARGE}); /s/3.json ({TOO_LARGE}); /s/4.json (not JSON: ")


@pytest.mark.parametrize(
    ("count", "head", "tail"),
    [
        (1, "skipped 1 unreadable object in store s3://***@x/y: 0", ": 0"),
        (2, "skipped 2 unreadable objects in store", ": 0; 1"),
        (5, "skipped 5 unreadable objects in store", ": 0; 1; 2; 3; 4"),
        (6, "skipped 6 unreadable objects in store", ": 0; 1; 2; 3; 4 and 1 more"),
        (99, "skipped 99 unreadable objects in store", ": 0; 1; 2; 3; 4 and 94 more"),
    ],
)
def test_a_warning_names_five_and_counts_the_rest(count: int, head: str, tail: str) -> None:
    (warning,) = skipped_warnings("s3://me:hunter2@x/y", [str(number) for number in range(count)])
    assert warning.startswith(head)
    assert warning.endswith(tail)


def test_nothing_skipped_is_no_warning() -> None:
    assert skipped_warnings("/data/x", []) == ()


def test_a_skipped_object_is_named_in_short_and_without_secrets() -> None:
    (warning,) = skipped_warnings("/x", ["y" * 499 + "zz", "password=hunter2", "a\x1b\nb"])
    assert warning == f"skipped 3 unreadable objects in store /x: {'y' * 499}z; password=***; a??b"


def test_the_protocol_chooses_the_backend() -> None:
    assert isinstance(open_backend("/data/x"), LocalBackend)
    assert isinstance(open_backend("file:///data/x"), LocalBackend)
    assert type(open_backend("memory://x")).__name__ == "RemoteBackend"
