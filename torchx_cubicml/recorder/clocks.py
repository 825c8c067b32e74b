"""When steps end: on the host, or on a CUDA device by events that are read steps later, never by a synchronise."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.recorder.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_MAX_PENDING = 1024  # steps whose events the device has not reached yet


class Clock(Protocol):
    """Called where each step begins and ends; it may keep what it needs to time the next, and must never wait."""

    def begin(self) -> None:
        """Note that the first forward of a step begins now."""

    def tick(self, samples: float | None, tokens: float | None) -> None:
        """Note that a step ends now, and what it consumed."""

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""


class HostClock:
    """Times steps where the host waits for the work, as on CPU."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._began: float | None = None
        self._known: list[Step] = []

    def begin(self) -> None:
        """Note that the first forward of a step begins now."""
        self._began = perf_counter()

    def tick(self, samples: float | None, tokens: float | None) -> None:
        """Note that a step ends now, and what it consumed."""
        now = perf_counter()
        if self._last is not None and now > self._last:
            outside = self._began - self._last if self._began is not None else None
            self._known.append(Step(seconds=now - self._last, samples=samples, tokens=tokens, outside_s=outside))
        self._last, self._began = now, None

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""
        known, self._known = self._known, []
        yield from known


class CudaClock:
    """Times steps by events on the current stream, each read once the device has passed it."""

    def __init__(self) -> None:
        self._pending: deque[_Mark] = deque(maxlen=_MAX_PENDING)
        self._spare: list[torch.cuda.Event] = []
        self._began: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Note that the first forward of a step begins now."""
        self._began = self._record()

    def tick(self, samples: float | None, tokens: float | None) -> None:
        """Note that a step ends now, and what it consumed."""
        began, self._began = self._began, None
        end = self._record()
        if end is not None:
            self._pending.append(_Mark(end=end, began=began, samples=samples, tokens=tokens))

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""
        while len(self._pending) > 1 and self._pending[1].end.query():  # type: ignore[no-untyped-call]
            before, mark = self._pending.popleft(), self._pending[0]
            seconds = before.end.elapsed_time(mark.end) / 1000
            outside = before.end.elapsed_time(mark.began) / 1000 if mark.began is not None else None
            self._spare += [event for event in (before.end, before.began) if event is not None]
            if seconds > 0:
                yield Step(seconds=seconds, samples=mark.samples, tokens=mark.tokens, outside_s=outside)

    def _record(self) -> torch.cuda.Event | None:
        from torch import cuda

        if cuda.is_current_stream_capturing():
            return None  # an event recorded here would become part of the captured graph
        event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The events of one step on a device, and what the step consumed."""

    end: torch.cuda.Event
    began: torch.cuda.Event | None
    samples: float | None
    tokens: float | None
