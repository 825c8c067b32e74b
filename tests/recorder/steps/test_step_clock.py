from __future__ import annotations

import time

import pytest

from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, Pause
from torchx_cubicml.recorder.steps.step_clock import CudaClock, HostClock, StepEnd


def test_the_host_clock_times_what_lies_between_ticks() -> None:
    clock, before = HostClock(), time.perf_counter()
    clock.tick(StepEnd(clock.now(), samples=9, tokens=9))
    assert list(clock.steps()) == []
    time.sleep(0.02)
    clock.tick(StepEnd(clock.now(), samples=8))
    (step,) = clock.steps()
    assert 0.02 <= step.seconds <= time.perf_counter() - before
    assert (step.samples, step.tokens) == (8, None)
    assert list(clock.steps()) == []


class Event:
    """A CUDA event of a device that is as far as ``reached``."""

    reached = 0
    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        Event.made += 1
        assert enable_timing

    def record(self) -> None:
        Event.reached_by_host = getattr(Event, "reached_by_host", 0) + 1
        self.place = Event.reached_by_host

    def query(self) -> bool:
        return self.place <= Event.reached

    def elapsed_time(self, other: Event) -> float:
        assert other.query()
        return 10.0 * (other.place - self.place)


def test_cuda_events_are_read_once_the_device_has_passed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    capturing = False
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    clock = CudaClock()
    for samples in range(5):
        clock.tick(StepEnd(clock.now(), samples=samples))
    assert list(clock.steps()) == []
    Event.reached = 3
    assert [(step.seconds, step.samples) for step in clock.steps()] == [(0.01, 1), (0.01, 2)]
    capturing = True
    clock.tick(StepEnd(clock.now(), samples=99))
    capturing = False
    Event.reached = 99
    assert [step.samples for step in clock.steps()] == [3, 4]
    made = Event.made
    clock.tick(StepEnd(clock.now(), samples=5))
    assert Event.made == made
    assert [step.samples for step in clock.steps()] == [5]


def test_a_device_measures_how_long_pauses_were_and_gives_its_events_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    Event.reached = 10**6
    clock = CudaClock()
    clock.tick(StepEnd(clock.now()))
    begin, save, saved = clock.now(), clock.now(), clock.now()
    inner = Pause(CHECKPOINT, save, saved)
    pauses = (inner, Pause(EVAL_MODE, begin, clock.now(), (inner,)))
    clock.tick(StepEnd(clock.now(), samples=2, pauses=pauses))
    (step,) = clock.steps()
    assert (step.seconds, step.eval_mode_s, step.checkpoint_s) == pytest.approx((0.05, 0.02, 0.01))
    clock.tick(StepEnd(clock.now()))
    made = Event.made
    assert len(list(clock.steps())) == 1
    for _ in range(5):
        clock.now()
    assert Event.made <= made + 1


@pytest.mark.cuda
def test_the_cuda_clock_on_a_device() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an accelerator")
    clock = CudaClock()
    matrix = torch.randn(4096, 4096, device="cuda")
    for _ in range(6):
        for _ in range(10):
            matrix = matrix @ matrix / 64
        clock.tick(StepEnd(clock.now(), samples=1))
    torch.cuda.synchronize()
    steps = list(clock.steps())
    assert len(steps) == 5
    assert all(step.seconds > 0 for step in steps)


def test_what_comes_before_the_first_forward_is_outside_of_the_step() -> None:
    clock, before = HostClock(), time.perf_counter()
    for began in (False, True, True, False):
        time.sleep(0.004)
        first = clock.now() if began else None
        time.sleep(0.002)
        clock.tick(StepEnd(clock.now(), began=first, samples=1))
    outside = [step.outside_s for step in clock.steps()]
    assert outside[2] is None
    assert all(seconds >= 0.004 for seconds in outside[:2])
    assert sum(outside[:2]) <= time.perf_counter() - before - 0.004  # within the steps: 2 ms in each
