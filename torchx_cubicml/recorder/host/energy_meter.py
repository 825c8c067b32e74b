"""Meter of the mean power of a training, by energy counters that a thread reads beside it.

The thread reads each second at first, each ten seconds later; the training waits for a reading at each report only, and
once for a second where the thread's reading hangs. The first steps are left out, and so is the time after the first
reading behind the last step. Evaluation and saving between steps count.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.recorder.host.energy_counters import EnergyCounters

_OFTEN_S, _SELDOM_S = 1.0, 10.0  # between readings, before and after _OFTEN_FOR_S
_OFTEN_FOR_S = 60.0
_LONGEST_GAP_S = 60.0  # between two readings; in a longer one a counter may have wrapped twice
_SHORTEST_S = 2.0  # of a mean: the counters of GPUs are renewed up to ten times a second
_LEFT_OUT = 8  # the first of so many parts of the steps is left out
_LONGEST_WAIT_S = 1.0  # for the thread, or its reading


@dataclass(slots=True)
class _Mark:
    """Readings at one moment: steps up to then, its time, and joules of each counter since the first reading."""

    steps: int
    at: float
    joules: dict[str, float]


@dataclass(slots=True, kw_only=True)
class EnergyMeter:
    """Meter of the counters of one process.

    Args:
        counters: to read.
        progress: changes with each optimizer step.
        now: seconds of a clock that never goes back.
    """

    counters: EnergyCounters
    progress: Callable[[], object]
    now: Callable[[], float] = time.monotonic
    _last: dict[str, float] = field(default_factory=dict)  # joules of each counter, as read
    _sums: dict[str, float] = field(default_factory=dict)
    _marks: list[_Mark] = field(default_factory=list)  # one a report
    _end: tuple[float, dict[str, float]] | None = None  # of the last reading before which a step ended
    _read_at: float = 0.0
    _seen: object = None
    _is_lost: bool = False
    _reading: threading.Lock = field(default_factory=threading.Lock)  # held while counters are read
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of the fields above; nothing is read under it
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Take the first reading and start the thread."""
        self.read()
        self._thread = threading.Thread(target=self._run, name="torchx-cubicml-energy", daemon=True)
        self._thread.start()

    def mark(self, steps: int) -> None:
        """Take a reading after so many steps, from which a mean may begin."""
        self.read()
        with self._lock:
            self._marks.append(_Mark(steps, self._read_at, dict(self._sums)))

    def begin_anew(self) -> None:
        """Forget the readings of a training that is no longer the reported one."""
        with self._lock:
            self._marks, self._end = [], None

    def stop(self) -> None:
        """Take the last reading and end the thread; further calls do nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_LONGEST_WAIT_S)
        self.read()

    def read(self) -> None:
        """Read all counters; after a failure, or a gap in which a counter may have wrapped twice, nothing is known."""
        if self._is_lost:
            return
        if not self._reading.acquire(timeout=_LONGEST_WAIT_S):
            self._is_lost = True
            return
        try:
            values = {counter.key: counter.read() for counter in self.counters.counters}
            with self._lock:
                self._add(values, self.now())
        except Exception:  # noqa: BLE001 - a counter that is gone must not reach the training
            self._is_lost = True
        finally:
            self._reading.release()

    def watts(self, steps: int) -> dict[str, float]:
        """Return the mean power of each counter, without the first eighth of ``steps``; empty where unknown."""
        with self._lock:
            begin = next((mark for mark in self._marks if mark.steps * _LEFT_OUT >= steps), None)
            if self._is_lost or begin is None or self._end is None or self._end[0] - begin.at < _SHORTEST_S:
                return {}
            end, joules = self._end
            return {key: (joules[key] - begin.joules[key]) / (end - begin.at) for key in joules}

    def _add(self, values: dict[str, float], now: float) -> None:
        if self._last and now - self._read_at > _LONGEST_GAP_S:
            self._is_lost = True
            return
        for counter in self.counters.counters:
            grown = values[counter.key] - self._last.get(counter.key, values[counter.key])
            grown += counter.range_j if grown < 0 else 0.0
            self._sums[counter.key] = self._sums.get(counter.key, 0.0) + grown
        self._is_lost |= any(not 0 <= total < float("inf") for total in self._sums.values())
        self._last, self._read_at = values, now
        seen = self.progress()
        if seen != self._seen:
            self._seen, self._end = seen, (now, dict(self._sums))

    def _run(self) -> None:
        began = self.now()
        while not self._stopping.wait(_OFTEN_S if self.now() - began < _OFTEN_FOR_S else _SELDOM_S):
            if self._is_lost:
                return
            self.read()
