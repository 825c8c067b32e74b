"""When steps end: on the host, or on a CUDA device by events that are read steps later, never by a synchronise."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torchx_cubicml.recorder.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    Moment: TypeAlias = float | torch.cuda.Event | None  # seconds on the host, or a place in the device's work

_MAX_PENDING = 1024  # steps whose events the device has not reached yet


class Clock(Protocol):
    """Says what moment it is, wherever a step begins or ends; it may keep moments, and must never wait for a device."""

    def now(self) -> Moment:
        """Return this moment; ``None`` where none can be taken."""

    def tick(
        self,
        end: Moment,
        *,
        began: Moment = None,
        samples: float | None = None,
        tokens: float | None = None,
        is_watched: bool = True,
    ) -> None:
        """Note that a step ended at ``end``, that its first forward began at ``began``, and what it consumed."""

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""


class HostClock:
    """Times steps where the host waits for the work, as on CPU."""

    def __init__(self) -> None:
        self.now: Callable[[], Moment] = perf_counter  # itself: a method around it would cost as much again
        self._last: float | None = None
        self._known: list[Step] = []

    def tick(
        self,
        end: Moment,
        *,
        began: Moment = None,
        samples: float | None = None,
        tokens: float | None = None,
        is_watched: bool = True,
    ) -> None:
        """Note that a step ended at ``end``, that its first forward began at ``began``, and what it consumed."""
        if not isinstance(end, float):
            return
        if self._last is not None and end > self._last:
            outside = began - self._last if isinstance(began, float) else None
            self._known.append(
                Step(seconds=end - self._last, samples=samples, tokens=tokens, outside_s=outside, is_watched=is_watched)
            )
        self._last = end

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""
        known, self._known = self._known, []
        yield from known


class CudaClock:
    """Times steps by events on the current stream, each read once the device has passed it."""

    def __init__(self) -> None:
        from torch import cuda

        self._is_capturing = cuda.is_current_stream_capturing
        self._new: Callable[[], torch.cuda.Event] = partial(cuda.Event, enable_timing=True)
        self._pending: deque[_Mark] = deque(maxlen=_MAX_PENDING)
        self._spare: list[torch.cuda.Event] = []

    def now(self) -> Moment:
        """Return an event on the current stream; ``None`` where it would become part of a captured graph."""
        if self._is_capturing():
            return None
        event = self._spare.pop() if self._spare else self._new()
        event.record()
        return event

    def tick(
        self,
        end: Moment,
        *,
        began: Moment = None,
        samples: float | None = None,
        tokens: float | None = None,
        is_watched: bool = True,
    ) -> None:
        """Note that a step ended at ``end``, that its first forward began at ``began``, and what it consumed."""
        if end is not None and not isinstance(end, float):
            first = None if isinstance(began, float) else began
            self._pending.append(_Mark(end=end, began=first, samples=samples, tokens=tokens, is_watched=is_watched))

    def steps(self) -> Iterator[Step]:
        """Yield each step whose duration is known by now, once."""
        while len(self._pending) > 1 and self._pending[1].end.query():  # type: ignore[no-untyped-call]  # of torch
            before, mark = self._pending.popleft(), self._pending[0]
            seconds = before.end.elapsed_time(mark.end) / 1000
            outside = before.end.elapsed_time(mark.began) / 1000 if mark.began is not None else None
            self._spare += [event for event in (before.end, before.began) if event is not None]
            if seconds > 0:
                yield Step(
                    seconds=seconds,
                    samples=mark.samples,
                    tokens=mark.tokens,
                    outside_s=outside,
                    is_watched=mark.is_watched,
                )


def make_clock() -> Clock:
    """Return the clock for where this process trains."""
    torch = sys.modules.get("torch")
    return CudaClock() if torch is not None and torch.cuda.is_initialized() else HostClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The events of one step on a device, and what the step consumed."""

    end: torch.cuda.Event
    began: torch.cuda.Event | None
    samples: float | None
    tokens: float | None
    is_watched: bool
