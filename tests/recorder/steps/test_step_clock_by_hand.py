"""Both clocks with moments that the test itself sets."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

import pytest
import torch

from torchx_cubicml.recorder.steps.blocks import Block
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, NO_GRAD, Pause
from torchx_cubicml.recorder.steps.step_clock import CudaClock, HostClock, StepEnd, make_clock


class Event:
    """A CUDA event at a moment in seconds; ``made`` counts all of them."""

    made = 0

    def __init__(self, *, enable_timing: bool = False) -> None:
        assert enable_timing
        Event.made += 1
        self.at_s: float | None = None
        self.is_reached = True
        self.records = 0

    def record(self) -> None:
        self.records += 1

    def query(self) -> bool:
        return self.is_reached

    def elapsed_time(self, other: Event) -> float:
        return 1000.0 * (other.at_s - self.at_s)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    state = {"is_capturing": False}
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["is_capturing"])
    monkeypatch.setattr(Event, "made", 0)
    return state


def at(clock: CudaClock, seconds: float) -> Any:
    event: Any = clock.now()
    event.at_s = seconds
    return event


PAUSED = {"eval_mode_s": 0.5, "eval_mode_steps": True, "no_grad_s": 0.25, "no_grad_steps": True, "checkpoint_s": 0.125}
EXPECTED = [
    Block(seconds=4.0, samples=3, tokens=7, outside_s=1.0, compiled=True, **PAUSED),
    Block(seconds=2.0, watched=False),
    Block(seconds=1.0, watched=False, **{**PAUSED, "eval_mode_steps": False, "no_grad_steps": False}),
]


def pauses_from(moments: list[Any]) -> tuple[Pause, ...]:
    begin, middle, end, last = moments
    return Pause(EVAL_MODE, begin, middle), Pause(NO_GRAD, middle, end), Pause(CHECKPOINT, end, last)


def test_the_host_clock_makes_blocks() -> None:
    clock = HostClock()
    assert clock.now is perf_counter
    pauses = pauses_from([10.0, 10.5, 10.75, 10.875])
    clock.tick(StepEnd(10.0, began=9.0, samples=99, tokens=99, pauses=pauses))
    clock.tick(StepEnd(14.0, began=11.0, samples=3, tokens=7, pauses=pauses, is_compiled=True))
    clock.tick(StepEnd(16.0, is_watched=False))
    clock.tick(StepEnd(17.0, is_watched=False, pauses=pauses))
    assert list(clock.steps()) == EXPECTED
    clock.tick(StepEnd(None))
    clock.tick(StepEnd(17.0))  # no time has passed
    clock.tick(StepEnd(16.5))
    clock.tick(StepEnd(18.0, samples=1))
    assert list(clock.steps()) == [Block(seconds=1.5, samples=1)]


def test_the_device_clock_makes_the_same_blocks(device: dict[str, bool]) -> None:
    clock = CudaClock()
    pauses = pauses_from([at(clock, seconds) for seconds in (10.0, 10.5, 10.75, 10.875)])
    clock.tick(StepEnd(at(clock, 10.0), began=at(clock, 9.0)))
    began = at(clock, 11.0)
    clock.tick(StepEnd(at(clock, 14.0), began=began, samples=3, tokens=7, pauses=pauses, is_compiled=True))
    clock.tick(StepEnd(at(clock, 16.0), is_watched=False))
    clock.tick(StepEnd(at(clock, 17.0), is_watched=False, pauses=pauses))
    assert list(clock.steps()) == EXPECTED
    clock.tick(StepEnd(at(clock, 17.0)))  # no time has passed
    clock.tick(StepEnd(at(clock, 18.5), samples=1))
    assert list(clock.steps()) == [Block(seconds=1.5, samples=1)]


def test_moments_that_are_unknown_are_no_pause(device: dict[str, bool]) -> None:
    clock, host = CudaClock(), HostClock()
    for made, moment in ((clock, at(clock, 1.0)), (host, 1.0)):
        last = at(clock, 3.0) if made is clock else 3.0
        made.tick(StepEnd(moment))
        made.tick(StepEnd(last, pauses=(Pause(EVAL_MODE, None, last), Pause(CHECKPOINT, moment, None))))
        (block,) = made.steps()
        assert (block.seconds, block.eval_mode_s, block.checkpoint_s, block.eval_mode_steps) == (2.0, 0.0, 0.0, True)


def test_steps_without_an_event_are_passed_over(device: dict[str, bool]) -> None:
    clock = CudaClock()
    for end in (at(clock, 1.0), None, 2.0, at(clock, 3.0)):
        clock.tick(StepEnd(end))
    assert [block.seconds for block in clock.steps()] == [2.0]
    device["is_capturing"] = True
    assert clock.now() is None


def test_a_step_is_known_once_its_end_is_reached(device: dict[str, bool]) -> None:
    clock = CudaClock()
    ends = [at(clock, float(second)) for second in range(4)]
    for end in ends:
        clock.tick(StepEnd(end))
    ends[2].is_reached = False
    assert len(list(clock.steps())) == 1
    assert list(clock.steps()) == []
    ends[2].is_reached = True
    assert len(list(clock.steps())) == 2


def test_events_are_recorded_and_used_again(device: dict[str, bool]) -> None:
    clock = CudaClock()
    pause = Pause(EVAL_MODE, at(clock, 0.1), at(clock, 0.2))
    clock.tick(StepEnd(at(clock, 1.0), began=at(clock, 0.5), pauses=(pause,)))
    clock.tick(StepEnd(at(clock, 2.0), pauses=(Pause(EVAL_MODE, None, None),)))
    clock.tick(StepEnd(at(clock, 3.0)))
    assert Event.made == 6
    list(clock.steps())
    again: list[Any] = [clock.now() for _ in range(5)]  # all but that of the last step
    assert Event.made == 6
    assert len({*map(id, again)}) == 5
    assert all(event.records == 2 for event in again)
    clock.now()
    assert Event.made == 7


@pytest.mark.parametrize(("is_initialized", "kind"), [(True, CudaClock), (False, HostClock)])
def test_the_clock_is_that_of_the_device(is_initialized: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    assert type(make_clock()) is kind
    monkeypatch.delitem(sys.modules, "torch")
    assert type(make_clock()) is HostClock


def test_a_step_end_is_watched_and_empty_by_default() -> None:
    assert StepEnd(1.0) == (1.0, None, None, None, True, (), False)
