"""Agreement of all ranks through the TCPStore of the job's agents: one verdict, and a unanimous vote on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment

_PAUSE_S = 0.02


def key_prefix(job: JobEnvironment) -> str:
    """Return the prefix of the store keys of one attempt."""
    return "torchx_cubicml/{}.{}/".format(*job.attempt)


class Verdict:
    """A verdict under one key of the TCPStore: written once, by compare and set, and the same for every rank.

    Args:
        store: TCPStore of the job's agents.
        key: of the verdict.
    """

    def __init__(self, store: TCPStore, key: str) -> None:
        self._store = store
        self._key = key

    @property
    def value(self) -> str:
        """The verdict; empty if there is none yet."""
        return bytes(self._store.get(self._key)).decode() if self._store.check([self._key]) else ""

    def decide(self, value: str) -> str:
        """Write ``value`` unless there is a verdict, and return the verdict."""
        return bytes(self._store.compare_set(self._key, "", value)).decode()

    def wait(self, *, until: float, otherwise: str, pause_s: float = _PAUSE_S) -> str:
        """Wait for the verdict; at the monotonic clock reading ``until``, decide ``otherwise``."""
        while not (value := self.value):
            if time.monotonic() > until:
                return self.decide(otherwise)
            time.sleep(pause_s)
        return value


def vote_unanimously(
    store: TCPStore, job: JobEnvironment, question: tuple[str, str], *, until: float, comes: Callable[[], None]
) -> bool:
    """Return whether all ranks voted with the same word; an empty word, or no vote, is a veto.

    The verdict is written once: by the last rank to vote, or by one that vetoes or times out. The call is idempotent:
    a rank that votes again counts once and gets the same verdict.

    Args:
        store: TCPStore of the job's agents.
        job: environment of this rank.
        question: name of the vote, and the word of this rank; empty for a veto.
        until: monotonic clock reading until which it waits for the other ranks.
        comes: called before the other ranks can rely on this one.

    Raises:
        RuntimeError: the store does not answer, and the verdict is unknown.
    """
    name, word = question
    key = key_prefix(job) + name
    verdict, votes = Verdict(store, f"{key}/verdict"), f"{key}/came"
    if not verdict.value:
        if not word or bytes(store.compare_set(f"{key}/word", "", word)).decode() != word:
            verdict.decide("no")
        else:
            comes()
            first = store.add(f"{votes}/rank{job.rank}", 1) == 1
            if first and store.add(votes, 1) == job.world_size:
                verdict.decide("yes")
    return verdict.wait(until=until, otherwise="no") == "yes"
