"""Whether every rank has come with the same word, in the store of the job's agents: all of them get one answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment

_PAUSE_S = 0.02


def prefix_of(job: JobEnvironment) -> str:
    """Return what the keys of one attempt begin with."""
    return "torchx_cubicml/{}.{}/".format(*job.attempt)


def all_say(
    store: TCPStore, job: JobEnvironment, question: tuple[str, str], *, until: float, comes: Callable[[], None]
) -> bool:
    """Whether all ranks have come with one word; one that comes with none, or not at all, is against.

    The answer is written once, by the last to come, or by whoever is against or waited in vain. A rank that asks again
    counts once, and gets the same answer.

    Args:
        store: of the job's agents.
        job: says who is asking.
        question: its name, and the word of this rank; empty to be against.
        until: reading of the monotonic clock until which it waits for the others.
        comes: called before the others can count on this rank.

    Raises:
        RuntimeError: the store does not answer, and what counts is not known.
    """
    name, word = question
    key = prefix_of(job) + name
    verdict, came = f"{key}/verdict", f"{key}/came"
    if not store.check([verdict]):
        if not word or bytes(store.compare_set(f"{key}/word", "", word)).decode() != word:
            store.compare_set(verdict, "", "no")
        else:
            comes()
            first = store.add(f"{came}/rank{job.rank}", 1) == 1
            if first and store.add(came, 1) == job.world_size:
                store.compare_set(verdict, "", "yes")
    while not store.check([verdict]) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return bytes(store.compare_set(verdict, "", "no")).decode() == "yes"
