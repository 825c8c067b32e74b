"""Probe of a store: writes a small object, reads it back and removes it; compares the store's clock with this one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.obstacle import write_obstacle
from torchx_cubicml.store.trial_store import open_backend
from torchx_cubicml.store.url import OBJECT_PROTOCOLS, absolute_url, split_url

_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProbe:
    """Result of a probe.

    Args:
        presence: presence of a store at its place, one of ``Presence``; empty where it cannot be reached.
        obstacle: reason why this process cannot write to it; empty if it can, as far as is known.
        is_written: whether a probe was written, read back and removed.
        clock_offset_s: seconds by which the store's clock is ahead of this machine's; ``None`` where unknown.
    """

    presence: str
    obstacle: str = ""
    is_written: bool = False
    clock_offset_s: float | None = None


def probe_store(url: str, *, writes: bool = True) -> StoreProbe:
    """Probe a store; nothing stays behind. Nothing is written where there is no store yet, or something else.

    Args:
        url: URL as ``TrialStore`` accepts it.
        writes: whether a probe may be written; else only known obstacles are looked for.
    """
    try:
        url = absolute_url(url)
        if why := write_obstacle(url):  # before its client is needed
            return StoreProbe(presence="", obstacle=why)
        folder = open_backend(url)
        presence = folder.presence()
        if presence is Presence.FILE:
            return StoreProbe(presence=presence, obstacle=f"store {mask(url)} is not a folder but a file")
        # A put makes no folder in an object store: removing the probe leaves nothing.
        leaves_nothing = presence is not Presence.ABSENT or split_url(url)[0] in OBJECT_PROTOCOLS
        if not writes or presence is Presence.OTHER or not leaves_nothing:
            return StoreProbe(presence=presence)
        data, before = os.urandom(_BYTES), time.time()
        content, changed = folder.write_probe(f".doctor-{os.urandom(8).hex()}.tmp", data)
        after = time.time()
    except StoreError as error:
        return StoreProbe(presence="", obstacle=mask(str(error)))
    if content != data:
        return StoreProbe(presence=presence, obstacle=f"store {mask(url)} returns other bytes than were written")
    return StoreProbe(presence=presence, is_written=True, clock_offset_s=clock_offset(changed, before, after))


def clock_offset(changed: float | None, before: float, after: float) -> float | None:
    """Return by how many seconds the clock that stamped a change is surely ahead of this one, behind if negative.

    Args:
        changed: stamp of the change; ``None`` where unknown.
        before: this clock before the change.
        after: this clock after it.

    >>> clock_offset(100.0, 99.0, 101.0), clock_offset(400.0, 99.0, 101.0), clock_offset(40.0, 99.0, 101.0)
    (0.0, 299.0, -59.0)
    """
    if changed is None:
        return None
    return max(changed - after, 0.0) + min(changed - before, 0.0)
