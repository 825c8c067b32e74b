"""Start-up of a process: its parts add up to the time before the steady pace, each second once."""

from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace

import pytest

from torchx_cubicml.recorder.steps import start_up
from torchx_cubicml.recorder.steps.start_up import StartUp
from torchx_cubicml.recorder.steps.step_clock import HostClock, StepEnd
from torchx_cubicml.recorder.steps.step_times import StepTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the time that the start-up reads."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(start_up, "perf_counter", lambda: clock.now)
    return clock


def compile_for(times: StartUp, clock: SimpleNamespace, *, begin: float, end: float) -> None:
    clock.now = begin
    times.compiling()
    times.compiling()  # of a part of the same model, within
    clock.now = end
    times.compiled()
    times.compiled()


def steady(*, warmup: int, warmup_s: float) -> SimpleNamespace:
    return SimpleNamespace(steps_per_second=2.0, warmup=warmup, warmup_s=warmup_s)


def test_the_parts_are_those_of_a_launch_of_known_times(clock: SimpleNamespace) -> None:
    times = StartUp(10.0)
    compile_for(times, clock, begin=17.0, end=97.0)  # in the first step, which ends at 100
    compile_for(times, clock, begin=101.0, end=116.0)  # in the second step, which ends at 120
    compile_for(times, clock, begin=200.0, end=230.0)  # in the steady state: part of the throughput
    found = times.seconds(100.0, steady(warmup=3, warmup_s=20.0 + 0.5 + 1.5))
    # 90 s to the end of the first step, 80 of them compilation and half a second the step itself.
    assert (found.startup_s, found.compile_s, found.warmup_s) == pytest.approx((9.5, 95.0, 20.5 - 15.0))
    whole = sum(astuple(found)) + 4 * 0.5
    assert whole == pytest.approx(90.0 + 22.0)


def test_no_part_is_negative(clock: SimpleNamespace) -> None:
    times = StartUp(0.0)
    compile_for(times, clock, begin=0.2, end=0.9)
    assert astuple(times.seconds(0.1, steady(warmup=2, warmup_s=0.7))) == (0.0, 0.0, 0.0)


def test_steps_measure_the_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.recorder.steps.step_times.make_clock", HostClock)
    monkeypatch.setattr("torchx_cubicml.recorder.steps.step_times.perf_counter", lambda: 8.0)
    times = StepTimes(StartUp(2.0))
    for end in (8.0, 9.5, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5):
        times.clock().tick(StepEnd(end, samples=4.0))
    measured = times.measurement({})
    assert (measured.startup_s, measured.compile_s, measured.warmup_s) == pytest.approx((5.5, 0.0, 1.0))
    assert StepTimes().measurement({}) is None
    unknown = StepTimes()
    for end in range(9):
        unknown.clock().tick(StepEnd(float(end + 1)))
    assert unknown.measurement({}).startup_s is None
