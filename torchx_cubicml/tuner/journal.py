"""What a tune notes beside the trials: that it began and lives, which job a launch became, what it cost, how it ended.

Notes lie in the store, in a folder ``tunes`` of their own: one immutable JSON object each, as events do.
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
from torchx_cubicml.store.trial_store import open_folder
from torchx_cubicml.tuner.polling import NewObjects, StoreRetry

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMA = 1
_FOLDER = "tunes"


class NoteKind(StrEnum):
    """What a note tells."""

    BEGUN = "begun"  # a tune, or a process that goes on with it
    ALIVE = "alive"
    SUBMITTED = "submitted"  # a launch has a job
    SETTLED = "settled"  # a launch is over, and what it cost
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One immutable object of the journal.

    Args:
        kind: what it tells.
        tune_id: of which tune.
        launch_id: of which launch; empty where it is of the tune.
        time: ISO 8601 in UTC.
        facts: JSON values.
    """

    kind: NoteKind
    tune_id: str
    launch_id: str = ""
    time: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """Return a fact that is a number; 0 where it is none."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    def text(self, name: str) -> str:
        """Return a fact that is a text; empty where it is none."""
        value = self.facts.get(name)
        return value if isinstance(value, str) else ""


class Journal:
    """The notes of all tunes on one store, each read once.

    Args:
        store_url: absolute URL of the store.
        patience: with the store.
    """

    def __init__(self, store_url: str, patience: StoreRetry | None = None) -> None:
        self._patience = patience or StoreRetry()
        self._folder = open_folder(f"{store_url.rstrip('/')}/{_FOLDER}")
        self._arrivals = NewObjects(self._folder)
        self._notes: list[Note] = []

    def write(self, note: Note) -> None:
        """Add one note.

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
        # Under one name, however often it is tried: what a launch took counts once.
        self._patience.write(lambda: self._folder.publish(f"{now:%Y-%m-%d}", name, text.encode()))

    def read(self) -> Sequence[Note]:
        """Return all notes by name, that is by their writers' clocks; what cannot be read is left out.

        Raises:
            StoreError: the store cannot be reached.
        """
        self._patience.read(self._read_on)
        return self._notes

    def _read_on(self) -> None:
        for content in self._arrivals.read():
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
