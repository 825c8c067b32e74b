"""Clocks of optimizer steps, on the host and on CUDA, and the step times they give."""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from torchx_cubicml.recorder.host.memory import allocator_retries, peak_memory_gib, peak_reserved_gib
from torchx_cubicml.recorder.steps.blocks import Block, Blocks
from torchx_cubicml.recorder.steps.pauses import paused_s
from torchx_cubicml.recorder.steps.steady_state import EvaluationKinds, steady_state
from torchx_cubicml.records.trial import MEAN, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from torchx_cubicml.recorder.ranks.peers import RankWork
    from torchx_cubicml.recorder.steps.pauses import Pause
    from torchx_cubicml.recorder.steps.steady_state import SteadyState
    from torchx_cubicml.records.trial import Value

    Snapshot: TypeAlias = float | torch.cuda.Event | None  # seconds on the host, or a place in the device's work


_MAX_PENDING = 1024  # steps whose events the device has not reached yet


class StepEnd(NamedTuple):
    """The end of a step, and what came with it.

    Args:
        end: of the step; ``None`` where it is unknown.
        began: its first forward, likewise.
        samples: that it consumed; ``None`` where unknown.
        tokens: likewise.
        is_watched: whether anybody looked at what it consumed.
        pauses: since the step before.
        is_compiled: whether a compiler was at work since then.
    """

    end: Snapshot
    began: Snapshot = None
    samples: float | None = None
    tokens: float | None = None
    is_watched: bool = True
    pauses: tuple[Pause, ...] = ()
    is_compiled: bool = False


class StepClock(Protocol):
    """Says what moment it is, wherever a step begins or ends; it may keep moments, and must never wait for a device."""

    def now(self) -> Snapshot:
        """Return this moment; ``None`` where none can be taken."""

    def tick(self, step: StepEnd) -> None:
        """Note that a step has ended."""

    def steps(self) -> Iterator[Block]:
        """Yield each step whose duration is known by now, once."""


class HostClock:
    """Times steps where the host waits for the work, as on CPU."""

    def __init__(self) -> None:
        self.now: Callable[[], Snapshot] = perf_counter  # itself: a method around it would cost as much again
        self._last: float | None = None
        self._known: list[Block] = []

    def tick(self, step: StepEnd) -> None:
        """Note that a step has ended."""
        end, began = step.end, step.began
        if not isinstance(end, float):
            return
        if self._last is not None and end > self._last:
            outside = began - self._last if isinstance(began, float) else None
            self._known.append(
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
        known, self._known = self._known, []
        yield from known


class CudaClock:
    """Times steps by events on the current stream, each read once the device has passed it."""

    def __init__(self) -> None:
        from torch import cuda

        self._is_capturing = cuda.is_current_stream_capturing
        self._new: Callable[[], torch.cuda.Event] = partial(cuda.Event, enable_timing=True)
        self._pending: deque[StepEnd] = deque(maxlen=_MAX_PENDING)
        self._spare: list[torch.cuda.Event] = []

    def now(self) -> Snapshot:
        """Return an event on the current stream; ``None`` where it would become part of a captured graph."""
        if self._is_capturing():
            return None
        event = self._spare.pop() if self._spare else self._new()
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
            self._spare += [event for event in moments if event is not None and not isinstance(event, float)]
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
    """Return the clock for where this process trains."""
    torch = sys.modules.get("torch")
    return CudaClock() if torch is not None and torch.cuda.is_initialized() else HostClock()


def _on_host(begin: Snapshot, end: Snapshot) -> float:
    return end - begin if isinstance(begin, float) and isinstance(end, float) else 0.0


def _on_device(begin: Snapshot, end: Snapshot) -> float:
    if begin is None or end is None or isinstance(begin, float) or isinstance(end, float):
        return 0.0
    return float(begin.elapsed_time(end)) / 1000


class StepTimes:
    """Steps of this process: ``steps`` that were counted, and the durations of those."""

    def __init__(self) -> None:
        self.steps = 0
        self._blocks = Blocks()
        self._clock: StepClock | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step was counted."""
        return self._clock is not None

    def clock(self) -> StepClock:
        """Return the clock, which begins with the first step: where the process trains is known then."""
        if self._clock is None:
            self._clock = make_clock()
        return self._clock

    def begin_anew(self) -> None:
        """Forget every step."""
        self.steps = 0
        self._blocks = Blocks()
        self._clock = None

    def read(self) -> None:
        """Take in the durations that have become known."""
        if self._clock is not None:
            for step in self._clock.steps():
                self._blocks.add(step)

    def recent_s(self) -> float | None:
        """Return the median of the latest durations, seconds; ``None`` where fewer are known."""
        return self._blocks.recent_s()

    def evaluation(self) -> EvaluationKinds:
        """Return which passages of the model were evaluation."""
        return EvaluationKinds.of(self._blocks.all())

    def steady(self) -> SteadyState | None:
        """Return the steady state of this process up to now; ``None`` before there is one."""
        self.read()
        return steady_state(self._blocks.all(), singly=self._blocks.sampled_steps())

    def measurement(
        self,
        facts: Mapping[str, Value],
        *,
        is_of_whole_job: bool = False,
        others: RankWork | None = None,
        may_include_evaluation: bool = False,
    ) -> Measurement | None:
        """Return the throughput of the whole job up to now; ``None`` before a steady state.

        Args:
            facts: of the training.
            is_of_whole_job: whether the steps tell what the whole job consumed, not this process.
            others: what the other processes have told; ``None`` where nothing.
            may_include_evaluation: whether evaluation may have gone unseen.
        """
        steady = self.steady()
        if steady is None:
            return None
        degree = facts.get("dp_degree")
        scale = 1 if is_of_whole_job else degree if isinstance(degree, int) else None
        samples, tokens = steady.samples_per_step, steady.tokens_per_step
        if others is not None and not is_of_whole_job:
            samples, tokens = others.mean_with(samples, tokens)
        if not is_of_whole_job and facts.get("cp_degree", 1) != 1:
            tokens = None  # of a sequence that several ranks share, this rank may see all or its part
        return Measurement(
            samples_per_second=_rate(samples, scale, steady.steps_per_second),
            tokens_per_second=_rate(tokens, scale, steady.steps_per_second),
            samples_per_second_overall=_rate(samples, scale, steady.steps_per_second_overall),
            tokens_per_second_overall=_rate(tokens, scale, steady.steps_per_second_overall),
            steps_counted=steady.counted,
            warmup_steps=steady.warmup + 1,  # the first step has a beginning that nobody saw
            step_time_s=steady.step_time_s,
            mean_step_time_s=1 / steady.steps_per_second,
            drift=steady.drift,
            share_outside_steps=steady.share_outside,
            peak_memory_gib=max(others.peak_memory_gib if others is not None else 0.0, peak_memory_gib()) or None,
            peak_reserved_gib=peak_reserved_gib(),
            allocator_retries=allocator_retries(),
            statistic=MEAN,
            relative_error=steady.relative_error,
            evaluation_s=steady.evaluation_s,
            checkpoint_s=steady.checkpoint_s,
            is_steady=steady.is_steady,
            may_include_evaluation=may_include_evaluation,
        )


def _rate(per_step: float | None, scale: float | None, steps_per_second: float) -> float | None:
    return per_step * scale * steps_per_second if per_step is not None and scale is not None else None
