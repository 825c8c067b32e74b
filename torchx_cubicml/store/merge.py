"""Merge of one store into another: the union of their events, which can be repeated and loses nothing.

Events are immutable, so a merge copies the objects that the target lacks, and neither changes nor removes one. An
interrupted merge is completed by another one. Events of one trial id are of one trial. Where both stores hold different
versions of the same event, the target's counts; and a public event adds nothing to a trial of a higher trust level.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.provenance import Trust, least_trusted
from torchx_cubicml.store.digest_key import copy_digest_keys
from torchx_cubicml.store.trial_store import decode_event, skipped_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.store.trial_store import TrialStore

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}\.json")
_TRUST = "trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """Result of one merge.

    Args:
        new: ids of the trials that the target did not hold.
        completed: ids of the trials of which it held some events only.
        n_known: number of trials of which it held every event.
        differing: ids of the trials of which an event was not copied: the target holds another version of it, or holds
            the trial at a higher trust level than ``public``.
        warnings: objects of either store that cannot be read, one sentence per store.
    """

    new: tuple[str, ...]
    completed: tuple[str, ...]
    n_known: int
    differing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredEvent:
    """Object of a store with the event in it, and a digest of its content without the trust level."""

    place: str
    content: bytes
    event: Event
    digest: bytes


@dataclass(slots=True)
class _Known:
    """Events of the target: digests by the key of the event, names of its objects, and trust level by trial."""

    digests: defaultdict[Hashable, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    names: set[str] = field(default_factory=set)
    trials: dict[str, Trust] = field(default_factory=dict)

    def add(self, stored: _StoredEvent) -> None:
        """Note an event that the target holds."""
        self.digests[_key(stored.event)].add(stored.digest)
        self.names.add(stored.place.rpartition("/")[2])
        name = _trial_id(stored.event)
        self.trials[name] = least_trusted((stored.event.trust, self.trials.get(name, Trust.OWN)))

    def keeps_out(self, stored: _StoredEvent, trust: Trust, offered: set[bytes]) -> bool:
        """Return whether an event of the source, ``offered`` with others, would change what the target holds."""
        own = self.digests[_key(stored.event)] - offered  # what an earlier merge copied is among the offered
        level = least_trusted((stored.event.trust, trust))
        return bool(own) or (level is Trust.PUBLIC and self.trials.get(_trial_id(stored.event), level) is not level)


def merge_into(
    target: TrialStore,
    source: TrialStore,
    *,
    trust: Trust,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> MergeResult:
    """Copy the events that ``target`` lacks from ``source``, with the keys of their digests.

    Args:
        target: store that receives the events.
        source: store that stays as it is.
        trust: highest trust level of the copied events; one with a lower level keeps its own.
        report: takes the number of events compared so far, and of all.

    Raises:
        StoreError: a store cannot be read, or the target cannot be written. What was copied by then stays.
    """
    known = _Known()
    warnings: list[str] = []
    for stored in _stored_events(target, warnings):
        known.add(stored)
    copy_digest_keys(source.url, target.url, is_own=trust is Trust.OWN)
    events = list(_stored_events(source, warnings))
    offered = {stored.digest for stored in events}
    added, differing = set(), set()
    for number, stored in enumerate(events):
        report(number, len(events))
        held = known.digests[_key(stored.event)]
        if stored.digest in held:
            continue
        if known.keeps_out(stored, trust, offered):
            differing.add(_trial_id(stored.event))
            continue
        held.add(stored.digest)
        _publish(target, stored, known.names, trust)
        added.add(_trial_id(stored.event))
    ids = {_trial_id(stored.event) for stored in events}
    return MergeResult(
        new=tuple(sorted(added - known.trials.keys())),
        completed=tuple(sorted(added & known.trials.keys())),
        n_known=len(ids - added - differing),
        differing=tuple(sorted(differing)),
        warnings=tuple(warnings),
    )


def _stored_events(store: TrialStore, warnings: list[str]) -> Iterator[_StoredEvent]:
    """Yield the readable events of a store; add a warning about the others."""
    listing = store.folder.list_objects()
    skipped = [*listing.problems]
    for place, content in store.folder.read(listing.places()):
        try:
            event = decode_event(content)
        except RecordError as error:
            skipped.append(f"{place} ({error})")
            continue
        if isinstance(content, bytes):
            yield _StoredEvent(place=place, content=content, event=event, digest=_digest(content))
    warnings += skipped_warnings(store.url, skipped)


def _digest(content: bytes) -> bytes:
    payload = {name: value for name, value in json.loads(content).items() if name != _TRUST}
    return blake2b(json.dumps(payload, sort_keys=True).encode(), digest_size=16).digest()


def _key(event: Event) -> Hashable:
    return event.trial_id, event.launch_id, event.kind, event.attempt, event.sequence, event.writer


def _trial_id(event: Event) -> str:
    return event.trial_id or event.launch_id


def _publish(target: TrialStore, stored: _StoredEvent, names: set[str], trust: Trust) -> None:
    """Publish an event under its own day and name, which sort it; under a new name if that is taken."""
    folder, _, name = stored.place.rpartition("/")
    day, now = folder.rpartition("/")[2][:10], datetime.now(UTC)
    if not _DAY.fullmatch(day):
        day = f"{now:%Y-%m-%d}"
    if not _NAME.fullmatch(name) or name in names:
        name = f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json"
    names.add(name)
    target.folder.publish(day, name, _with_trust(stored, trust))


def _with_trust(stored: _StoredEvent, trust: Trust) -> bytes:
    level = least_trusted((stored.event.trust, trust))
    if level is stored.event.trust:
        return stored.content
    payload = {**json.loads(stored.content), _TRUST: str(level)}
    return json.dumps(payload, separators=(",", ":")).encode("ascii") + b"\n"
