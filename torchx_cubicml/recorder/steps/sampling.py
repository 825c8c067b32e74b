"""Sampling of the steps whose forwards are watched: all of them, until the overhead matters; then some at intervals.

A module hook costs a forward 20 to 40 microseconds between the kernels of a training (``benchmarks/recorder.py``),
mostly for cache misses. If steps are so short that this matters, and many in a row were alike, the hook is removed from
the model for a while. The ends of all steps are still noted.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.recorder.steps.forwards import Work

STEPS_BEFORE_SAMPLING = 512  # consecutive watched steps before the first rest; likewise after a change
STEPS_PER_SAMPLE = 8  # watched between two rests
_MAX_USUAL_REST = 504  # steps of a rest
_HOOK_COST_S = 30e-6  # of watching one forward
_MAX_OVERHEAD = 0.4e-3  # of the step time that watching may take
_MIN_FACTOR, _MAX_FACTOR = 0.6, 1.4  # of the usual rest, at random: looks must not align with a period


class StepSampling:
    """Schedule of watched and unwatched steps, by the work of the watched ones."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._alike_steps = 0
        self._watched_steps = 0  # steps since the last rest
        self._rested_steps = 0  # steps since the last look
        self._random = Random(0)  # noqa: S311 - it only draws the length of a rest
        self._rest_factor = 1.0

    def saw(self, work: Work | None) -> None:
        """Note a watched step and its work; ``None`` for a step without a forward."""
        if self._rested_steps:
            self._rested_steps = self._watched_steps = 0
            self._rest_factor = self._random.uniform(_MIN_FACTOR, _MAX_FACTOR)
        self._watched_steps += 1
        self._alike_steps = self._alike_steps + 1 if work is not None and work == self._work else 0
        self._work = work

    def rested(self) -> None:
        """Note a step that was not watched."""
        self._rested_steps += 1

    def plan(self, step_s: float | None) -> tuple[bool, int]:
        """Return whether to watch the next steps, and the most steps until the next call.

        Args:
            step_s: current seconds per step; ``None`` where unknown.
        """
        rest = self._rest_steps(step_s)
        if not rest:
            return True, STEPS_BEFORE_SAMPLING
        if self._rested_steps:
            return (False, rest - self._rested_steps) if self._rested_steps < rest else (True, STEPS_PER_SAMPLE)
        if self._watched_steps < STEPS_PER_SAMPLE:
            return True, STEPS_PER_SAMPLE - self._watched_steps
        return False, rest

    def _rest_steps(self, step_s: float | None) -> int:
        """Return the steps between two looks; 0 if all steps are watched."""
        if step_s is None or self._work is None or self._alike_steps < STEPS_BEFORE_SAMPLING:
            return 0
        allowed = _MAX_OVERHEAD * step_s / (_HOOK_COST_S * (self._work.forwards or 1))  # share of the steps
        usual = min(STEPS_PER_SAMPLE * (1 / allowed - 1), _MAX_USUAL_REST)
        return round(usual * self._rest_factor) if usual >= STEPS_PER_SAMPLE else 0
