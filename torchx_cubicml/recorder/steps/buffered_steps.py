"""Count of the steps that deferred hooks have buffered, once they are processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchx_cubicml.recorder.steps.step_clock import StepEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx_cubicml.recorder.steps.deferred_hooks import BufferedStep
    from torchx_cubicml.recorder.steps.forwards import Work
    from torchx_cubicml.recorder.steps.pauses import Pause
    from torchx_cubicml.recorder.steps.sampling import StepSampling
    from torchx_cubicml.recorder.steps.step_clock import StepClock

    Shapes = Sequence[Sequence[int] | None]


class CountedSteps(NamedTuple):
    """Outcome of one reading of the buffer.

    Args:
        steps: number of steps that count.
        has_unwatched: whether the forwards of one were not watched.
        is_compiled: whether a compiler ran since the last step that counts.
        pauses: since that step.
    """

    steps: int
    has_unwatched: bool
    is_compiled: bool
    pauses: tuple[Pause, ...]


def count_buffered_steps(
    buffered: Iterable[BufferedStep],
    *,
    clock: StepClock,
    sampling: StepSampling,
    work_of: Callable[[Shapes], Work | None],
    is_compiled: bool,
) -> CountedSteps:
    """Give each step to the clock and the sampling, and return their count.

    A step counts if its forwards were not watched, or if they did some work. The pauses of one that does not count
    belong to the next one.

    Args:
        buffered: steps in their order.
        clock: clock of the training.
        sampling: sampling of its steps.
        work_of: returns the work of forwards with the given shapes; ``None`` for a step without one.
        is_compiled: whether a compiler ran before the first of these steps.
    """
    steps, has_unwatched = 0, False
    shapes: Shapes | None = None
    work: Work | None = None
    waiting: tuple[Pause, ...] = ()  # pauses for the next step
    for step in buffered:
        pauses = waiting + step.pauses
        if step.shapes is None:
            clock.tick(StepEnd(step.end, is_watched=False, pauses=pauses))
            sampling.rested()
            has_unwatched, waiting = True, ()
            steps += 1
            continue
        if step.shapes != shapes:
            shapes, work = step.shapes, work_of(step.shapes)
        sampling.saw(work)
        waiting = pauses if work is None else ()
        if work is None:
            continue
        clock.tick(
            StepEnd(
                step.end,
                began=step.began,
                samples=work.samples,
                tokens=work.tokens,
                pauses=pauses,
                is_compiled=is_compiled,
            )
        )
        is_compiled = False
        steps += 1
    return CountedSteps(steps=steps, has_unwatched=has_unwatched, is_compiled=is_compiled, pauses=waiting)
