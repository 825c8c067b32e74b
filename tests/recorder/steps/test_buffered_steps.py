from __future__ import annotations

import pytest

from torchx_cubicml.recorder.steps.buffered_steps import CountedSteps, count_buffered_steps
from torchx_cubicml.recorder.steps.deferred_hooks import BufferedStep
from torchx_cubicml.recorder.steps.forwards import Work
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, Pause
from torchx_cubicml.recorder.steps.sampling import StepSampling
from torchx_cubicml.recorder.steps.step_clock import HostClock

PAUSE = Pause(CHECKPOINT, 1.0, 1.25)
WORK = Work(forwards=1, samples=4, tokens=None)


def step(end: float, *shapes: tuple[int, ...], watched: bool = True, pauses: tuple[Pause, ...] = ()) -> BufferedStep:
    return BufferedStep(end=end, began=end - 0.5, shapes=shapes if watched else None, pauses=pauses)


def counted(*steps: BufferedStep, is_compiled: bool = False) -> tuple[CountedSteps, list[tuple[object, ...]], int]:
    """Return the count, the durations with their samples, and how often the work of shapes was asked for."""
    clock, asked = HostClock(), []
    clock._last = 0.0

    def work_of(shapes: object) -> Work | None:
        asked.append(shapes)
        return WORK if shapes else None

    count = count_buffered_steps(steps, clock=clock, sampling=StepSampling(), work_of=work_of, is_compiled=is_compiled)
    return count, [(block.seconds, block.samples, block.compiled) for block in clock.steps()], len(asked)


def test_steps_of_like_shapes_are_looked_at_once() -> None:
    count, blocks, asked = counted(*(step(end, (4, 8)) for end in (1.0, 2.0, 4.0)), is_compiled=True)
    assert count == CountedSteps(steps=3, has_unwatched=False, is_compiled=False, pauses=())
    assert blocks == [(1.0, 4, True), (1.0, 4, False), (2.0, 4, False)]
    assert asked == 1


def test_a_step_without_a_forward_does_not_count_and_leaves_its_pauses_to_the_next() -> None:
    nothing = step(2.0, pauses=(PAUSE,))
    count, blocks, _ = counted(step(1.0, (4, 8)), nothing, step(3.0, (4, 8)))
    assert (count.steps, count.pauses, blocks) == (2, (), [(1.0, 4, False), (2.0, 4, False)])
    assert counted(nothing, is_compiled=True)[0] == CountedSteps(
        steps=0, has_unwatched=False, is_compiled=True, pauses=(PAUSE,)
    )


@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_unwatched_step_counts_without_work(is_compiled: bool) -> None:
    count, blocks, asked = counted(step(1.0, watched=False), is_compiled=is_compiled)
    assert count == CountedSteps(steps=1, has_unwatched=True, is_compiled=is_compiled, pauses=())
    assert (blocks, asked) == ([(1.0, None, False)], 0)
