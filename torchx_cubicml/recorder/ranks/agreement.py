"""Unanimous vote of all ranks through the TCPStore of the job's agents: every rank gets the same verdict."""

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
    verdict, votes = f"{key}/verdict", f"{key}/came"
    if not store.check([verdict]):
        if not word or bytes(store.compare_set(f"{key}/word", "", word)).decode() != word:
            store.compare_set(verdict, "", "no")
        else:
            comes()
            first = store.add(f"{votes}/rank{job.rank}", 1) == 1
            if first and store.add(votes, 1) == job.world_size:
                store.compare_set(verdict, "", "yes")
    while not store.check([verdict]) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return bytes(store.compare_set(verdict, "", "no")).decode() == "yes"
