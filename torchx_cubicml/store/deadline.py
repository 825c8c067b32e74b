"""Reads a store within a deadline, for a launch waits for nobody."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.event import fold_events
from torchx_cubicml.masking import mask
from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.event import Event
    from torchx_cubicml.trial import Trial


@dataclass(slots=True)
class _Reading:
    """One reading in a thread of its own, and what came of it."""

    store: TrialStore
    given_up: threading.Event = field(default_factory=threading.Event)
    trials: list[Trial] = field(default_factory=list)
    error: Exception | None = None

    def run(self) -> None:
        try:
            self.trials = fold_events(self._events())
        except Exception as error:  # noqa: BLE001  it is raised again by who waits
            self.error = error

    def _events(self) -> Iterator[Event]:
        for event in self.store.events():
            if self.given_up.is_set():
                return
            yield event


def read_trials(url: str, *, deadline_s: float = 5.0) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the trials of a store, and what could not be read of it; a store that does not exist yet is empty.

    Args:
        url: as ``TrialStore`` takes it.
        deadline_s: seconds after which the reading is given up. What hangs is left behind in a thread that delays
            neither the caller nor the exit of the process.

    Raises:
        StoreError: the store cannot be reached or read, or not before the deadline.
    """
    reading = _Reading(TrialStore(url))
    thread = threading.Thread(target=reading.run, name="torchx-cubicml-read", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        reading.given_up.set()
        raise StoreError(f"store {mask(reading.store.url)} was not read within {deadline_s:g} s")
    if reading.error is not None:
        raise reading.error
    return reading.trials, reading.store.warnings
