"""The durations of a training's steps as they become known, and the measurement that they make."""

from __future__ import annotations

from collections import deque
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.clocks import make_clock
from torchx_cubicml.recorder.memory import allocator_retries, peak_memory_gib, peak_reserved_gib
from torchx_cubicml.recorder.steps import Step, steady_state
from torchx_cubicml.trial import Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.clocks import Clock
    from torchx_cubicml.trial import Value

_MAX_STEPS_KEPT = 4096
_RECENT = 16


class StepTimes:
    """Steps of this process: ``steps`` that were counted, and the durations of the latest."""

    def __init__(self) -> None:
        self.steps = 0
        self.kept: deque[Step] = deque(maxlen=_MAX_STEPS_KEPT)
        self._timed = 0
        self._clock: Clock | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step was counted."""
        return self._clock is not None

    def clock(self) -> Clock:
        """Return the clock, which begins with the first step: where the process trains is known then."""
        if self._clock is None:
            self._clock = make_clock()
        return self._clock

    def begin_anew(self) -> None:
        """Forget every step."""
        self.steps = self._timed = 0
        self.kept.clear()
        self._clock = None

    def read(self) -> None:
        """Take in the durations that have become known."""
        if self._clock is not None:
            for step in self._clock.steps():
                self.kept.append(step)
                self._timed += 1

    def recent_s(self) -> float | None:
        """Return the median of the latest durations, seconds; ``None`` where fewer are known."""
        if len(self.kept) < _RECENT:
            return None
        return median(step.seconds for step in islice(reversed(self.kept), _RECENT))

    def measurement(
        self, facts: Mapping[str, Value], *, is_of_whole_job: bool = False, peak_memory: float = 0.0
    ) -> Measurement | None:
        """Return the throughput of the whole job up to now; ``None`` before a steady state.

        Args:
            facts: of the training.
            is_of_whole_job: whether the steps tell what the whole job consumed, not this process.
            peak_memory: largest of the other processes, GiB.
        """
        self.read()
        steady = steady_state(list(self.kept))
        if steady is None:
            return None
        degree = facts.get("dp_degree")
        scale = 1 if is_of_whole_job else degree if isinstance(degree, int) else None
        # Of a sequence that several ranks share, this rank may see all or its part.
        tokens = steady.tokens_per_second if is_of_whole_job or facts.get("cp_degree", 1) == 1 else None
        return Measurement(
            samples_per_second=_scaled(steady.samples_per_second, scale),
            tokens_per_second=_scaled(tokens, scale),
            steps_counted=steady.counted,
            warmup_steps=self._timed - steady.counted + 1,  # the first step has a beginning that nobody saw
            step_time_s=steady.step_time_s,
            mean_step_time_s=steady.mean_step_time_s,
            drift=steady.drift,
            share_outside_steps=steady.share_outside,
            peak_memory_gib=max(peak_memory, peak_memory_gib()) or None,
            peak_reserved_gib=peak_reserved_gib(),
            allocator_retries=allocator_retries(),
        )


def _scaled(rate: float | None, scale: float | None) -> float | None:
    return rate * scale if rate is not None and scale is not None else None
