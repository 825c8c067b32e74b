"""Exchange of small values between ranks through the job's own TCPStore: no collectives, and every call has a timeout.

Every call runs in a thread, which is abandoned if the store does not answer.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.recorder.ranks.agreement import key_prefix, vote_unanimously
from torchx_cubicml.recorder.ranks.tcp_store import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.settings import JobEnvironment

_CONNECT_S = 3.0
_MAX_CALL_S = _CONNECT_S + 0.5  # of the store, whose calls time out after _CONNECT_S
_PAUSE_S = 0.02
_GATHER_S = 30.0  # of a gather in the background

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """Values that the other ranks have posted by now.

    Args:
        peak_memory_gib: maximum over these ranks; 0 if none has posted.
        samples: mean samples per step of each rank where known.
        tokens: likewise.
        has_ended: whether the training of all of them has ended.
        watts: power of each energy counter that a rank reads, by its key; one mapping per rank that reads any.
    """

    peak_memory_gib: float = 0.0
    samples: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    has_ended: bool = False
    watts: tuple[Mapping[str, float], ...] = ()

    def mean_with(self, samples: float | None, tokens: float | None) -> tuple[float | None, float | None]:
        """Return samples and tokens per step and rank, as the mean over this rank and the others.

        Each batch is shared by the same number of ranks. So the means times the data-parallel degree are the values of
        the whole job.
        """
        return (
            None if samples is None else fmean([samples, *self.samples]),
            None if tokens is None else fmean([tokens, *self.tokens]),
        )

    def differs(self, samples: float | None, tokens: float | None) -> bool:
        """Return whether another rank's samples or tokens per step differ from these."""
        return any(
            own is not None and abs(each - own) > 1e-9 * own
            for own, others in ((samples, self.samples), (tokens, self.tokens))
            for each in others
        )


def encode_rank_work(
    peak_memory_gib: float,
    samples: float | None,
    tokens: float | None,
    *,
    has_ended: bool,
    training: int = 1,
    watts: Mapping[str, float] | None = None,
) -> str:
    """Return the JSON message that a rank posts about itself; see ``RankWork``."""
    return json.dumps([peak_memory_gib, samples, tokens, has_ended, training, dict(watts or {})])


class Peers:
    """Connection to the other ranks of this attempt.

    Args:
        job: environment of this rank, with the address of the store.
    """

    def __init__(self, job: JobEnvironment) -> None:
        self._job = job
        self._prefix = key_prefix(job)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._store: TCPStore | None = None
        self._post_threads: dict[str, threading.Thread] = {}
        self._gather_thread: threading.Thread | None = None
        self._gathered: list[str] = []

    @property
    def rank(self) -> int:
        """Rank of this process in the job."""
        return self._job.rank

    @property
    def world_size(self) -> int:
        """Number of processes of the job."""
        return self._job.world_size

    @property
    def exist(self) -> bool:
        """True if there are other ranks and a store to reach them."""
        return self._job.world_size > 1 and self._job.store_address is not None

    def post(self, name: str, value: str, *, within_s: float = 0.0) -> None:
        """Publish a value in the background; drop it if the previous one of that name is still being sent.

        Args:
            name: name of the value.
            value: small text.
            within_s: seconds to wait until it is stored.
        """
        before = self._post_threads.get(name)
        if not self.exist or (before is not None and before.is_alive()):
            return
        self._post_threads[name] = self._start(lambda: self._connect().set(self._prefix + name, value))
        if within_s:
            self._post_threads[name].join(within_s)

    def ask(self, name: str, *, within_s: float) -> str:
        """Return the value posted under ``name``; wait for it, and return an empty string after the timeout."""
        if not self.exist:
            return ""
        return self._limited(lambda: self._wait_for(name, within_s), within_s) or ""

    def post_work(self, word: str, *, within_s: float = 0.0) -> None:
        """Publish the ``encode_rank_work`` of this rank."""
        self.post(f"rank/{self._job.rank}", word, within_s=within_s)

    def work(self, *, within_s: float, training: int = 1) -> RankWork | None:
        """Return the values that the other ranks have posted by now; ``None`` after the timeout.

        Args:
            within_s: seconds to wait.
            training: number of the training that this rank reports. Samples and tokens of another one are left out.
        """
        return self._limited(lambda: self._read_work(training), within_s) if self.exist else RankWork()

    def gather(self, names: Sequence[str], *, within_s: float = 0.0) -> list[str]:
        """Return the values posted under the names, once all are found; an empty list before.

        Args:
            names: names of the values, the same at each call.
            within_s: seconds to wait for the search, which continues in the background.
        """
        if not self.exist or self._gathered:
            return self._gathered
        if self._gather_thread is None or not self._gather_thread.is_alive():
            self._gather_thread = self._start(lambda: self._gather_all(names))
        if within_s:
            self._gather_thread.join(within_s)
        return self._gathered

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        """Return whether all ranks voted with the same word; an empty word, or no vote, is a veto.

        Args:
            name: name of the vote.
            word: small text; empty for a veto.
            within_s: seconds to wait for the other ranks.
        """
        if self._job.world_size == 1:
            return bool(word) and not _has_started_ranks()
        if not self.exist:
            return False
        return self._limited(lambda: self._vote(name, word, within_s), within_s + 2 * _CONNECT_S) or False

    def meet(self, *, within_s: float) -> None:
        """Wait at a barrier for all ranks, up to the timeout."""
        if self.exist:
            self._limited(lambda: self._barrier(within_s), within_s)

    def close(self, *, within_s: float = _MAX_CALL_S) -> None:
        """Wait until all threads have left the store, up to the timeout, before the process ends.

        A thread that returns from the store during interpreter shutdown would end the process by SIGABRT: the
        interpreter terminates it within a C++ frame that must not be unwound so.
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

    def _gather_all(self, names: Sequence[str]) -> None:
        values = [self._wait_for(name, _GATHER_S) for name in names]
        self._gathered = values if all(values) else []

    def _read_work(self, training: int) -> RankWork:
        store = self._connect()
        keys = [f"{self._prefix}rank/{rank}" for rank in range(self._job.world_size) if rank != self._job.rank]
        known = keys if store.check(keys) else [key for key in keys if store.check([key])]
        reports = [json.loads(word) for word in (store.multi_get(known) if known else ())]
        same = [report for report in reports if report[4] == training]
        return RankWork(
            peak_memory_gib=max((report[0] for report in reports), default=0.0),
            samples=tuple(report[1] for report in same if report[1] is not None),
            tokens=tuple(report[2] for report in same if report[2] is not None),
            has_ended=len(reports) == len(keys) and all(report[3] for report in reports),
            watts=tuple(report[5] for report in reports if report[5]),
        )

    def _vote(self, name: str, word: str, within_s: float) -> bool:
        end = time.monotonic() + within_s
        return vote_unanimously(self._connect(), self._job, (name, word), until=end, comes=lambda: None)

    def _barrier(self, within_s: float) -> bool:
        key, end = f"{self._prefix}met", time.monotonic() + within_s
        store = self._connect()
        arrived = store.add(key, 1)
        while arrived < self._job.world_size and time.monotonic() < end and not self._closing.wait(_PAUSE_S):
            arrived = store.add(key, 0)
        return arrived >= self._job.world_size

    def _limited(self, call: Callable[[], T], within_s: float) -> T | None:
        """Return the result of ``call``; ``None`` if it fails or exceeds the timeout."""
        results: list[T] = []
        self._start(lambda: results.append(call())).join(within_s)
        return results[0] if results else None

    def _start(self, call: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except Exception:  # noqa: BLE001 - the store may be gone, and there is nobody to report it to
                return

        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=run, name="torchx-cubicml-peers", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread


def _has_started_ranks() -> bool:
    """Return whether a single process trains together with ranks that it has started, and that cannot be asked."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
