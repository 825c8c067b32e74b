"""When steps end: on the host, or on a CUDA device by events that are read steps later, never by a synchronise."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.recorder.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_MAX_PENDING = 1024  # steps whose events the device has not reached yet


class Clock(Protocol):
    """Called at the end of each step; it may keep what it needs to time the next, and must never wait."""

    def tick(self, samples: float | None, tokens: float | None) -> None:
        """Note that a step ends now, and what it consumed."""

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""


class HostClock:
    """Times steps where the host waits for the work, as on CPU."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._known: list[Step] = []

    def tick(self, samples: float | None, tokens: float | None) -> None:
        """Note that a step ends now, and what it consumed."""
        now = perf_counter()
        if self._last is not None and now > self._last:
            self._known.append(Step(seconds=now - self._last, samples=samples, tokens=tokens))
        self._last = now

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""
        known, self._known = self._known, []
        yield from known


class CudaClock:
    """Times steps by events on the current stream, each read once the device has passed it."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event, float | None, float | None]] = deque(maxlen=_MAX_PENDING)
        self._spare: list[torch.cuda.Event] = []

    def tick(self, samples: float | None, tokens: float | None) -> None:
        """Note that a step ends now, and what it consumed."""
        from torch import cuda

        if cuda.is_current_stream_capturing():
            return  # an event recorded here would become part of the captured graph
        event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._pending.append((event, samples, tokens))

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""
        while len(self._pending) > 1 and self._pending[1][0].query():  # type: ignore[no-untyped-call]
            before, _, _ = self._pending.popleft()
            event, samples, tokens = self._pending[0]
            seconds = before.elapsed_time(event) / 1000
            self._spare.append(before)
            if seconds > 0:
                yield Step(seconds=seconds, samples=samples, tokens=tokens)
