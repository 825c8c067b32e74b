"""Journal of a tune: its start and heartbeats, the job and the cost of each launch, and its end.

Notes are kept in the store, in a folder ``tunes`` of their own. Like events, each is one immutable JSON object.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import MAX_OBJECT_BYTES
from torchx_cubicml.store.known_objects import READ, KnownObjects
from torchx_cubicml.store.trial_store import open_backend
from torchx_cubicml.tuner.polling import StoreRetry

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMA = 1
_FOLDER = "tunes"


class NoteKind(StrEnum):
    """Kind of a note."""

    BEGUN = "begun"  # a process began or resumed the tune
    ALIVE = "alive"  # heartbeat
    SUBMITTED = "submitted"  # a launch has a job
    SETTLED = "settled"  # a launch is over; contains its cost
    FINISHED = "finished"  # the tune is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One immutable entry of the journal.

    Args:
        kind: kind of the note.
        tune_id: id of the tune.
        launch_id: id of the launch; empty if the note is about the whole tune.
        time: ISO 8601 in UTC.
        facts: JSON values.
    """

    kind: NoteKind
    tune_id: str
    launch_id: str = ""
    time: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """Return a fact as a number; 0 if it is none."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    def text(self, name: str) -> str:
        """Return a fact as a text; empty if it is none."""
        value = self.facts.get(name)
        return value if isinstance(value, str) else ""


class Journal:
    """Journal of all tunes on one store; each note is read once.

    Args:
        store_url: absolute URL of the store.
        retry: retries store operations that fail.
    """

    def __init__(self, store_url: str, retry: StoreRetry | None = None) -> None:
        self._retry = retry or StoreRetry()
        self._folder = open_backend(f"{store_url.rstrip('/')}/{_FOLDER}")
        self._objects = KnownObjects()
        self._notes: list[Note] = []

    def write(self, note: Note) -> None:
        """Append one note.

        Raises:
            StoreError: the store cannot be written.
        """
        payload = {
            "schema": _SCHEMA,
            "note": str(note.kind),
            "tune_id": note.tune_id,
            "launch_id": note.launch_id,
            "time": note.time,
            "facts": dict(note.facts),
        }
        now = datetime.now(UTC)
        name = f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json"
        text = mask(json.dumps(payload, separators=(",", ":"), default=str))
        # All attempts use one name, so that the write is idempotent and the cost of a launch counts once.
        self._retry.write(lambda: self._folder.publish(f"{now:%Y-%m-%d}", name, text.encode()))

    def read(self) -> Sequence[Note]:
        """Return all readable notes, ordered by name and thus by their writers' clocks.

        Raises:
            StoreError: the store cannot be reached.
        """
        self._retry.read(self._read_new)
        return self._notes

    def _read_new(self) -> None:
        unread, _ = self._objects.update(self._folder.list_objects(self._objects.directories))
        read = self._folder.read(unread)
        contents = {place: content for place, content in read if not isinstance(content, Exception)}
        self._objects.assign(dict.fromkeys(contents, READ))
        for content in contents.values():
            with suppress(RecordError, ValueError, RecursionError):
                self._notes.append(_decode(content))


def _decode(content: bytes) -> Note:
    payload = json.loads(content) if len(content) <= MAX_OBJECT_BYTES else None
    if not isinstance(payload, dict) or payload.get("schema") != _SCHEMA:
        raise RecordError("a note must be a JSON object of a known schema")
    facts = payload.get("facts")
    texts = {name: payload.get(name, "") for name in ("tune_id", "launch_id", "time")}
    if not isinstance(facts, Mapping) or not all(isinstance(text, str) for text in texts.values()):
        raise RecordError("a note must hold texts and facts")
    return Note(kind=NoteKind(payload.get("note", "")), facts=facts, **texts)
