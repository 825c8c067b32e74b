"""Of which steps the forwards are watched: of all, until watching would be felt; then of some, again and again.

A hook on a module costs a forward 20 to 40 microseconds between the kernels of a training (``benchmarks/recorder.py``),
most of it for what is in no cache then. Where steps are so short that this counts, and long stretches of them were
alike, the hook is taken off the model for a while. The ends of all steps are noted all the same.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.recorder.steps.forwards import Work

STEPS_ALIKE = 512  # watched one after the other before any is not; likewise after a change
STEPS_OF_A_LOOK = 8  # watched between two rests
_USUAL_AT_MOST = 504  # steps of a rest
_COST_S = 30e-6  # of watching one forward
_SHARE = 0.4e-3  # of the time of steps that watching may take
_SHORTEST, _LONGEST = 0.6, 1.4  # of the usual rest, drawn: looks fall in step with no rhythm of the training's own


class StepSampling:
    """Decides how long forwards are watched and how long they are not, by what watched steps have consumed."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._alike = 0
        self._looked = 0  # steps since the last rest
        self._rested = 0  # steps since the last look
        self._random = Random(0)  # noqa: S311 - it only says how long a rest is
        self._length = 1.0

    def saw(self, work: Work | None) -> None:
        """Note a step that was watched, with what it consumed; ``None`` for one without a forward."""
        if self._rested:
            self._rested = self._looked = 0
            self._length = self._random.uniform(_SHORTEST, _LONGEST)
        self._looked += 1
        self._alike = self._alike + 1 if work is not None and work == self._work else 0
        self._work = work

    def rested(self) -> None:
        """Note a step that was not watched."""
        self._rested += 1

    def plan(self, step_s: float | None) -> tuple[bool, int]:
        """Return whether the next steps are watched, and after how many to ask again at the latest.

        Args:
            step_s: seconds that a step takes at present; ``None`` where unknown.
        """
        rest = self._rest(step_s)
        if not rest:
            return True, STEPS_ALIKE
        if self._rested:
            return (False, rest - self._rested) if self._rested < rest else (True, STEPS_OF_A_LOOK)
        if self._looked < STEPS_OF_A_LOOK:
            return True, STEPS_OF_A_LOOK - self._looked
        return False, rest

    def _rest(self, step_s: float | None) -> int:
        """Return the steps between two looks; 0 where all are watched."""
        if step_s is None or self._work is None or self._alike < STEPS_ALIKE:
            return 0
        allowed = _SHARE * step_s / (_COST_S * (self._work.forwards or 1))  # of the steps
        usual = min(STEPS_OF_A_LOOK * (1 / allowed - 1), _USUAL_AT_MOST)
        return round(usual * self._length) if usual >= STEPS_OF_A_LOOK else 0
