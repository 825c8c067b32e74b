"""The one key in the job's own TCPStore that says what all ranks run."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment

NOTHING = "nothing: "  # begins the verdict that nobody is rewritten; the reason follows
_PAUSE_S = 0.05


class Ballot:
    """The one key that counts, in the store of a job.

    Args:
        store: of the job's agents.
        job: says who is voting.
        question: the command; only ranks with the same one can agree.
    """

    def __init__(self, store: TCPStore, job: JobEnvironment, question: str) -> None:
        self._store = store
        self._size = job.world_size
        prefix = "torchx_cubicml/decision/"
        came = f"{prefix}{job.attempt[0]}.{job.attempt[1]}"
        self._verdict = f"{prefix}verdict"
        self._alike = f"{came}/{hashlib.sha256(question.encode()).hexdigest()}"
        self._came = f"{came}/all"
        self._own = f"{came}/rank{job.rank}"

    @property
    def verdict(self) -> str:
        """What was decided, such as before a restart; empty where nothing is yet."""
        return bytes(self._store.get(self._verdict)).decode() if self._store.check([self._verdict]) else ""

    def come(self) -> None:
        """Say that this rank will do what is decided; said again, it counts once."""
        if self._store.add(self._own, 1) == 1:
            self._store.add(self._alike, 1)
            self._store.add(self._came, 1)

    def obstacle(self, *, until: float) -> str:
        """Wait until every rank has come, and return why they cannot agree, in words; empty where they can."""
        while (came := self._store.add(self._came, 0)) < self._size:
            if time.monotonic() > until:
                return f"only {came} of {self._size} ranks came in time"
            time.sleep(_PAUSE_S)
        return "" if self._store.add(self._alike, 0) >= self._size else "not all ranks were started alike"

    def decide(self, verdict: str) -> str:
        """Write the verdict where none is written, and return the one that counts."""
        return bytes(self._store.compare_set(self._verdict, "", verdict)).decode()

    def wait(self, *, until: float) -> str:
        """Return the verdict, which is nothing where none came in time."""
        while not (verdict := self.verdict):
            if time.monotonic() > until:
                return self.decide(f"{NOTHING}a rank has waited too long")
            time.sleep(_PAUSE_S)
        return verdict
