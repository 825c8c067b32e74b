"""Start-up of a process: its seconds before the training runs at its steady pace, compilation apart."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.recorder.steps.steady_state import SteadyState

_MOST_COMPILATIONS = 4096  # the first ones count; a steady training compiles no more


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUpSeconds:
    """Seconds that a launch takes beyond its steps at their steady pace; see ``Measurement``."""

    startup_s: float
    compile_s: float
    warmup_s: float


class StartUp:
    """Clock of the start-up of this process, and of the compilations in it.

    Args:
        began: ``perf_counter`` at the start of the process; by default now.
    """

    def __init__(self, began: float | None = None) -> None:
        self._began = perf_counter() if began is None else began
        self._compiling_since: float | None = None
        self._compilations: deque[tuple[float, float]] = deque()  # end, seconds

    def compiling(self) -> None:
        """Note that a compilation begins."""
        if self._compiling_since is None:
            self._compiling_since = perf_counter()

    def compiled(self) -> None:
        """Note that a compilation has ended."""
        since, self._compiling_since = self._compiling_since, None
        if since is not None and len(self._compilations) < _MOST_COMPILATIONS:
            now = perf_counter()
            self._compilations.append((now, now - since))

    def seconds(self, first_end: float, steady: SteadyState) -> StartUpSeconds:
        """Return the seconds of a training's start-up.

        Args:
            first_end: ``perf_counter`` at the end of its first step.
            steady: its steady state.
        """
        step_s = 1 / steady.steps_per_second
        in_first = self._compile_s(0.0, first_end)
        excess_s = max(0.0, steady.warmup_s - steady.warmup * step_s)
        in_warmup = min(excess_s, self._compile_s(first_end, first_end + steady.warmup_s))
        return StartUpSeconds(
            startup_s=max(0.0, first_end - self._began - in_first - step_s),
            compile_s=in_first + in_warmup,
            warmup_s=excess_s - in_warmup,
        )

    def _compile_s(self, begin: float, end: float) -> float:
        return sum((seconds for ended, seconds in self._compilations if begin < ended <= end), 0.0)
