"""Durations of the optimizer steps of this process, and the measurement that they make."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.host.memory import allocator_retries, peak_memory_gib, peak_reserved_gib
from torchx_cubicml.recorder.steps.blocks import Blocks
from torchx_cubicml.recorder.steps.steady_state import EvaluationKinds, steady_state
from torchx_cubicml.recorder.steps.step_clock import make_clock
from torchx_cubicml.records.measurement import MEAN, Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.ranks.peers import RankWork
    from torchx_cubicml.recorder.steps.start_up import StartUp
    from torchx_cubicml.recorder.steps.steady_state import SteadyState
    from torchx_cubicml.recorder.steps.step_clock import StepClock
    from torchx_cubicml.records.values import Value


class StepTimes:
    """Number (``steps``) and durations of the steps of this process.

    Args:
        start_up: of the process; ``None`` where its start is unknown.
    """

    def __init__(self, start_up: StartUp | None = None) -> None:
        self.steps = 0
        self._start_up = start_up
        self._first_end = 0.0
        self._blocks = Blocks()
        self._clock: StepClock | None = None

    @property
    def is_running(self) -> bool:
        """True once a step was counted."""
        return self._clock is not None

    def clock(self) -> StepClock:
        """Return the clock, made at the first step, when the device is known."""
        if self._clock is None:
            self._clock = make_clock()
            self._first_end = perf_counter()
        return self._clock

    def begin_anew(self) -> None:
        """Drop all steps."""
        self.steps = 0
        self._blocks = Blocks()
        self._clock = None

    def read(self) -> None:
        """Read the durations that are known by now."""
        if self._clock is not None:
            for step in self._clock.steps():
                self._blocks.add(step)

    def recent_s(self) -> float | None:
        """Return the median of the latest durations in seconds; ``None`` while too few are known."""
        return self._blocks.recent_s()

    def typical_s(self) -> float:
        """Return the seconds of all steps at their median duration, which no stall or compilation lengthens."""
        self.read()
        return self._blocks.median_s() * self.steps

    def evaluation(self) -> EvaluationKinds:
        """Return the kinds of pauses that count as evaluation."""
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
            facts: observed facts of the training.
            is_of_whole_job: whether samples and tokens of steps are those of the whole job, not of this process.
            others: values reported by the other ranks; ``None`` if there are none.
            may_include_evaluation: whether evaluation may have been missed.
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
            tokens = None  # of a sequence shared by several ranks, this rank may see all or a part
        start_up = self._start_up.seconds(self._first_end, steady) if self._start_up is not None else None
        return Measurement(
            samples_per_second=_rate(samples, scale, steady.steps_per_second),
            tokens_per_second=_rate(tokens, scale, steady.steps_per_second),
            samples_per_second_overall=_rate(samples, scale, steady.steps_per_second_overall),
            tokens_per_second_overall=_rate(tokens, scale, steady.steps_per_second_overall),
            steps_counted=steady.counted,
            warmup_steps=steady.warmup + 1,  # the start of the first step is unknown
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
            **(asdict(start_up) if start_up is not None else {}),
        )


def _rate(per_step: float | None, scale: float | None, steps_per_second: float) -> float | None:
    return per_step * scale * steps_per_second if per_step is not None and scale is not None else None
