"""Append-only store of trials: events are never changed, and an unreadable object is skipped with a warning."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import Event, trial_events, trials_of
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.store.backend import MAX_OBJECT_BYTES, Backend, Listing
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, absolute_url, split_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas
    import pyarrow

    from torchx_cubicml.records.trial import Trial

TOO_LARGE = f"larger than the limit of {MAX_OBJECT_BYTES} bytes"
_MAX_NAMED = 5  # objects that a warning names; the rest are counted


class TrialStore:
    """Journal of trials below one URL, as immutable events ``events/YYYY-MM-DD/<time>-<random>.json``.

    Any number of processes may write and read at the same time; two stores are merged by copying files.

    Args:
        url: a path, ``file://`` or any other URL that fsspec supports.

    Raises:
        StoreError: the URL is not legal. An unreachable store is noticed at its first use.
    """

    def __init__(self, url: str) -> None:
        self._url = absolute_url(url)
        self._warnings: tuple[str, ...] = ()
        self._folder = open_backend(self._url)

    @property
    def url(self) -> str:
        """Absolute URL of the store."""
        return self._url

    @property
    def folder(self) -> Backend:
        """Storage backend that holds the objects."""
        return self._folder

    @property
    def warnings(self) -> tuple[str, ...]:
        """Objects that the last reading skipped, one sentence per cause."""
        return self._warnings

    def append(self, event: Event) -> None:
        """Add one event as an object of its own.

        Raises:
            RecordError: no reader would accept the event.
            StoreError: the store cannot be written.
        """
        data = _encode(event)
        now = datetime.now(UTC)
        # The time sorts names for people and listings; the random half alone makes them unique.
        name = f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json"
        self._folder.publish(f"{now:%Y-%m-%d}", name, data)

    def add(self, trial: Trial) -> None:
        """Add a trial that was not recorded event by event; it is read back unchanged, unless its launch was crowded.

        Raises:
            RecordError: no reader would accept the trial.
            StoreError: the store cannot be written.
        """
        for event in trial_events(trial):
            self.append(event)

    def events(self) -> Iterator[Event]:
        """Yield every readable event, sorted by name and so by the writers' clocks.

        Raises:
            StoreError: the store cannot be reached or read.
        """
        self._warnings = ()
        listing = self._folder.list_objects()
        skipped = list(listing.problems)
        for place, content in self._folder.read(_places(listing, skipped)):
            try:
                yield decode_event(content)
            except RecordError as error:
                skipped.append(f"{place} ({error})")
        self._warnings = skipped_warnings(self._url, skipped)

    def __iter__(self) -> Iterator[Trial]:
        """Yield every trial as all commands read it: with the error that load on its host leaves.

        Raises:
            StoreError: the store cannot be reached or read.
        """
        yield from trials_of(self.events())

    def to_pandas(self) -> pandas.DataFrame:
        """Return every trial as a data frame: a row per trial, oldest first, and a typed column per fact.

        Throughput is per second, of the whole job; memory is in GiB, times are in UTC, and durations in seconds.

        Raises:
            StoreError: the store cannot be read, or pandas is not installed.
        """
        from torchx_cubicml.store.data_frames import data_frame

        return data_frame(self)

    def to_arrow(self) -> pyarrow.Table:
        """Return every trial as a table of Arrow, with the rows and columns of ``to_pandas``.

        Raises:
            StoreError: the store cannot be read, or pyarrow is not installed.
        """
        from torchx_cubicml.store.data_frames import arrow_table

        return arrow_table(self)

    def _repr_html_(self) -> str:
        """Return a table of the latest trials, for a notebook; a store that cannot be read gives one sentence."""
        from torchx_cubicml.store.store_html import store_html

        return store_html(self.events(), url=self._url, warnings=lambda: self._warnings)


def open_backend(url: str) -> Backend:
    """Return the storage backend for an absolute URL.

    Raises:
        StoreError: the URL is not legal.
    """
    protocol, path = split_url(url)
    if protocol in LOCAL_PROTOCOLS:
        return LocalBackend(path)
    from torchx_cubicml.store.remote import RemoteBackend

    return RemoteBackend(url, protocol)


def _encode(event: Event) -> bytes:
    try:
        text = json.dumps(event.to_json(), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"event of {event.trial_id or event.launch_id} cannot be written as JSON: {error}") from error
    data = text.encode("ascii") + b"\n"
    decode_event(data)
    return data


def decode_event(content: bytes | Exception) -> Event:
    """Decode the event that an object holds.

    Raises:
        RecordError: the object holds no legal event, or could not be read.
    """
    if isinstance(content, Exception):
        raise RecordError(f"cannot read it: {content}") from content
    if len(content) > MAX_OBJECT_BYTES:
        raise RecordError(TOO_LARGE)
    try:
        payload = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    return Event.from_json(payload)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


def _places(listing: Listing, skipped: list[str]) -> list[str]:
    skipped += [f"{place} ({TOO_LARGE})" for place in sorted(listing.too_large)]
    return [place for place in listing.places() if place not in listing.too_large]


def skipped_warnings(url: str, skipped: Sequence[str]) -> tuple[str, ...]:
    """Return one warning that names some of the skipped objects; none where nothing was skipped."""
    if not skipped:
        return ()
    named = "; ".join(printable(mask(text)[:500]).replace("\n", "?") for text in skipped[:_MAX_NAMED])
    more = f" and {len(skipped) - _MAX_NAMED} more" if len(skipped) > _MAX_NAMED else ""
    plural = "s" if len(skipped) > 1 else ""
    return (f"skipped {len(skipped)} unreadable object{plural} in store {mask(url)}: {named}{more}",)
