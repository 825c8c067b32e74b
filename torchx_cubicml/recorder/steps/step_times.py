"""The durations of a training's steps as they become known, and the measurement that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.host.memory import allocator_retries, peak_memory_gib, peak_reserved_gib
from torchx_cubicml.recorder.steps.blocks import Blocks
from torchx_cubicml.recorder.steps.clocks import make_clock
from torchx_cubicml.recorder.steps.steady_state import EvaluationKinds, steady_state
from torchx_cubicml.records.trial import MEAN, Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.ranks.peers import RankWork
    from torchx_cubicml.recorder.steps.clocks import Clock
    from torchx_cubicml.recorder.steps.steady_state import SteadyState
    from torchx_cubicml.records.trial import Value


class StepTimes:
    """Steps of this process: ``steps`` that were counted, and the durations of those."""

    def __init__(self) -> None:
        self.steps = 0
        self._blocks = Blocks()
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
