"""Small facts that ranks hand to one another through the job's own TCPStore: never a collective, never without a limit.

Every call runs in a thread that is left behind where the store does not answer.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.recorder.ranks.agreement import all_say, prefix_of
from torchx_cubicml.recorder.ranks.tcp_store import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment

_CONNECT_S = 3.0
_LONGEST_CALL_S = _CONNECT_S + 0.5  # of the store, whose calls give up after the time to connect
_PAUSE_S = 0.02
_PATIENCE_S = 30.0  # of a search in the background

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What the other ranks have told of themselves up to now.

    Args:
        peak_memory_gib: largest of them; 0 where none has told.
        samples: of a step of each, in the mean, of those that know.
        tokens: likewise.
        has_ended: whether the training of all of them has.
    """

    peak_memory_gib: float = 0.0
    samples: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    has_ended: bool = False

    def mean_with(self, samples: float | None, tokens: float | None) -> tuple[float | None, float | None]:
        """Return samples and tokens of a step of one rank, in the mean over this rank and the others.

        Each batch is shared by as many ranks; so, times the degree of data parallelism, these are of the whole job.
        """
        return (
            None if samples is None else fmean([samples, *self.samples]),
            None if tokens is None else fmean([tokens, *self.tokens]),
        )

    def differs(self, samples: float | None, tokens: float | None) -> bool:
        """Whether another rank has consumed more or less than ``samples``, or ``tokens``, a step."""
        return any(
            own is not None and abs(each - own) > 1e-9 * own
            for own, others in ((samples, self.samples), (tokens, self.tokens))
            for each in others
        )


def rank_word(peak_memory_gib: float, samples: float | None, tokens: float | None, *, has_ended: bool) -> str:
    """Return what a rank tells the others of itself; see ``RankWork``."""
    return json.dumps([peak_memory_gib, samples, tokens, has_ended])


class Peers:
    """The other ranks of this attempt.

    Args:
        job: says where the store is and who is asking.
    """

    def __init__(self, job: JobEnvironment) -> None:
        self._job = job
        self._prefix = prefix_of(job)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._store: TCPStore | None = None
        self._posting: dict[str, threading.Thread] = {}
        self._gathering: threading.Thread | None = None
        self._gathered: list[str] = []

    @property
    def exist(self) -> bool:
        """Whether there are others, and a way to them."""
        return self._job.world_size > 1 and self._job.store_address is not None

    def post(self, name: str, value: str, *, within_s: float = 0.0) -> None:
        """Publish a value in the background; it is lost where the one before of that name is on its way.

        Args:
            name: under which the others find it.
            value: small.
            within_s: seconds to wait for it to arrive.
        """
        before = self._posting.get(name)
        if not self.exist or (before is not None and before.is_alive()):
            return
        self._posting[name] = self._start(lambda: self._connect().set(self._prefix + name, value))
        if within_s:
            self._posting[name].join(within_s)

    def ask(self, name: str, *, within_s: float) -> str:
        """Return what a rank has posted under ``name``, waiting for it; empty past the limit."""
        if not self.exist:
            return ""
        return self._limited(lambda: self._wait_for(name, within_s), within_s) or ""

    def post_work(self, word: str, *, within_s: float = 0.0) -> None:
        """Publish this rank's ``rank_word``."""
        self.post(f"rank/{self._job.rank}", word, within_s=within_s)

    def work(self, *, within_s: float) -> RankWork | None:
        """Return what the other ranks have posted of themselves by now; ``None`` past the limit."""
        return self._limited(self._read_work, within_s) if self.exist else RankWork()

    def gather(self, names: Sequence[str], *, within_s: float = 0.0) -> list[str]:
        """Return what ranks have posted under the names, once all of it was found; empty before.

        Args:
            names: the same at each call.
            within_s: seconds to wait for the search, which goes on in the background.
        """
        if not self.exist or self._gathered:
            return self._gathered
        if self._gathering is None or not self._gathering.is_alive():
            self._gathering = self._start(lambda: self._find_all(names))
        if within_s:
            self._gathering.join(within_s)
        return self._gathered

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        """Whether every rank has come with the same word; one that comes with none, or not at all, is against.

        All ranks get one answer: it is written once, by the last to come, or by whoever is against or waited in vain.

        Args:
            name: of the question.
            word: small; empty to be against.
            within_s: seconds to wait for the others.
        """
        if self._job.world_size == 1:
            return bool(word)
        if not self.exist:
            return False
        return self._limited(lambda: self._ballot(name, word, within_s), within_s + 2 * _CONNECT_S) or False

    def meet(self, *, within_s: float) -> None:
        """Wait until every rank has come here, or until the limit."""
        if self.exist:
            self._limited(lambda: self._gather(within_s), within_s)

    def close(self, *, within_s: float = _LONGEST_CALL_S) -> None:
        """Wait until no thread is at the store any more, or until the limit: the process is about to end.

        A thread that came back from the store while the interpreter is being taken down would end the process by
        SIGABRT: the interpreter ends it within a C++ frame that may not be left so.
        """
        self._closing.set()
        end = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))

    def _connect(self) -> TCPStore:
        with self._lock:
            if self._store is None:
                self._store = connected(self._job, within_s=_CONNECT_S)
            return self._store

    def _wait_for(self, name: str, within_s: float) -> str:
        key, end = self._prefix + name, time.monotonic() + within_s
        store = self._connect()
        while not store.check([key]):
            if time.monotonic() > end or self._closing.wait(_PAUSE_S):
                return ""
        return bytes(store.get(key)).decode()

    def _find_all(self, names: Sequence[str]) -> None:
        values = [self._wait_for(name, _PATIENCE_S) for name in names]
        self._gathered = values if all(values) else []

    def _read_work(self) -> RankWork:
        store = self._connect()
        keys = [f"{self._prefix}rank/{rank}" for rank in range(self._job.world_size) if rank != self._job.rank]
        known = keys if store.check(keys) else [key for key in keys if store.check([key])]
        told = [json.loads(word) for word in (store.multi_get(known) if known else ())]
        return RankWork(
            peak_memory_gib=max((memory for memory, _, _, _ in told), default=0.0),
            samples=tuple(samples for _, samples, _, _ in told if samples is not None),
            tokens=tuple(tokens for _, _, tokens, _ in told if tokens is not None),
            has_ended=len(told) == len(keys) and all(has_ended for _, _, _, has_ended in told),
        )

    def _ballot(self, name: str, word: str, within_s: float) -> bool:
        end = time.monotonic() + within_s
        return all_say(self._connect(), self._job, (name, word), until=end, comes=lambda: None)

    def _gather(self, within_s: float) -> bool:
        key, end = f"{self._prefix}met", time.monotonic() + within_s
        store = self._connect()
        met = store.add(key, 1)
        while met < self._job.world_size and time.monotonic() < end and not self._closing.wait(_PAUSE_S):
            met = store.add(key, 0)
        return met >= self._job.world_size

    def _limited(self, call: Callable[[], T], within_s: float) -> T | None:
        """Return what ``call`` returns, or ``None`` where it fails or has not returned within the limit."""
        answers: list[T] = []
        self._start(lambda: answers.append(call())).join(within_s)
        return answers[0] if answers else None

    def _start(self, call: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except Exception:  # noqa: BLE001 - a store that is gone tells nothing, and there is nobody to tell of it
                return

        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=run, name="torchx-cubicml-peers", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread
