"""Clocks of optimizer steps: on the host, and by CUDA events."""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torchx_cubicml.recorder.steps.blocks import Block
from torchx_cubicml.recorder.steps.pauses import paused_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from torchx_cubicml.recorder.steps.pauses import Moment, Pause


_MAX_PENDING = 1024  # steps whose events the device has not reached


class StepEnd(NamedTuple):
    """The end of a step and the observations made in it.

    Args:
        end: moment at which the step ended; ``None`` where unknown.
        began: moment at which its first forward began, likewise.
        samples: samples consumed; ``None`` where unknown.
        tokens: likewise.
        is_watched: whether its forwards were watched.
        pauses: since the preceding step.
        is_compiled: whether a compiler ran since the preceding step.
    """

    end: Moment
    began: Moment = None
    samples: float | None = None
    tokens: float | None = None
    is_watched: bool = True
    pauses: tuple[Pause, ...] = ()
    is_compiled: bool = False


class StepClock(Protocol):
    """Clock read at the start and end of steps; it may keep moments and must never wait for a device."""

    def now(self) -> Moment:
        """Return the current moment; ``None`` where none can be taken."""

    def tick(self, step: StepEnd) -> None:
        """Note that a step has ended."""

    def steps(self) -> Iterator[Block]:
        """Yield each step whose duration is known by now, once."""


class HostClock:
    """Step clock for trainings whose host waits for the work, as on CPU."""

    def __init__(self) -> None:
        self.now: Callable[[], Moment] = perf_counter  # not wrapped: a method would double the cost
        self._last: float | None = None
        self._steps: list[Block] = []

    def tick(self, step: StepEnd) -> None:
        """Note that a step has ended."""
        end, began = step.end, step.began
        if not isinstance(end, float):
            return
        if self._last is not None and end > self._last:
            outside = began - self._last if isinstance(began, float) else None
            self._steps.append(
                Block(
                    seconds=end - self._last,
                    watched=step.is_watched,
                    samples=step.samples,
                    tokens=step.tokens,
                    outside_s=outside,
                    compiled=step.is_compiled,
                    **paused_s(step.pauses, _on_host, is_watched=step.is_watched),  # type: ignore[arg-type]  # counts among them
                )
            )
        self._last = end

    def steps(self) -> Iterator[Block]:
        """Yield each step whose duration is known by now, once."""
        known, self._steps = self._steps, []
        yield from known


class CudaClock:
    """Step clock by CUDA events on the current stream, each read once the device has passed it."""

    def __init__(self) -> None:
        from torch import cuda

        self._is_capturing = cuda.is_current_stream_capturing
        self._new: Callable[[], torch.cuda.Event] = partial(cuda.Event, enable_timing=True)
        self._pending: deque[StepEnd] = deque(maxlen=_MAX_PENDING)
        self._free_events: list[torch.cuda.Event] = []

    def now(self) -> Moment:
        """Return an event on the current stream; ``None`` where it would become part of a captured graph."""
        if self._is_capturing():
            return None
        event = self._free_events.pop() if self._free_events else self._new()
        event.record()
        return event

    def tick(self, step: StepEnd) -> None:
        """Note that a step has ended."""
        if step.end is not None and not isinstance(step.end, float):
            self._pending.append(step)

    def steps(self) -> Iterator[Block]:
        """Yield each step whose duration is known by now, once."""
        while len(self._pending) > 1 and self._has_passed(self._pending[1]):
            before, step = self._pending.popleft(), self._pending[0]
            seconds = _on_device(before.end, step.end)
            outside = _on_device(before.end, step.began) if step.began is not None else None
            paused = paused_s(step.pauses, _on_device, is_watched=step.is_watched)
            moments = [before.end, before.began, *(each for pause in before.pauses for each in pause[1:3])]
            self._free_events += [event for event in moments if event is not None and not isinstance(event, float)]
            if seconds > 0:
                yield Block(
                    seconds=seconds,
                    watched=step.is_watched,
                    samples=step.samples,
                    tokens=step.tokens,
                    outside_s=outside,
                    compiled=step.is_compiled,
                    **paused,  # type: ignore[arg-type]  # counts among them
                )

    def _has_passed(self, step: StepEnd) -> bool:
        return not isinstance(step.end, float) and step.end is not None and bool(step.end.query())  # type: ignore[no-untyped-call]  # of torch


def make_clock() -> StepClock:
    """Return the clock for the device on which this process trains."""
    torch = sys.modules.get("torch")
    return CudaClock() if torch is not None and torch.cuda.is_initialized() else HostClock()


def _on_host(begin: Moment, end: Moment) -> float:
    return end - begin if isinstance(begin, float) and isinstance(end, float) else 0.0


def _on_device(begin: Moment, end: Moment) -> float:
    if begin is None or end is None or isinstance(begin, float) or isinstance(end, float):
        return 0.0
    return float(begin.elapsed_time(end)) / 1000
