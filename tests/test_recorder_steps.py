from __future__ import annotations

import pytest

from torchx_cubicml.recorder.steps import LEAST_STEADY, LEAST_WARMUP, Step, count_warmup, quantile, steady_state


def steps(*seconds: float, samples: float | None = 8, tokens: float | None = None) -> list[Step]:
    return [Step(seconds=each, samples=samples, tokens=tokens) for each in seconds]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], 0),
        ([1.0], 1),
        ([1.0] * 5, LEAST_WARMUP),
        ([1.0] * 50, LEAST_WARMUP),
        ([60.0, 30.0, 5.0, 1.9] + [1.0] * 20, 3),
        ([9.0, 1.0, 1.0, 8.0, 1.0, 1.0] + [1.0] * 10, LEAST_WARMUP),
        ([9.0, 1.0, 1.0] + [1.0, 1.0, 1.0, 7.0] * 6, LEAST_WARMUP),
        ([3.0, 2.8, 2.6, 2.4, 2.2, 2.0, 1.8, 1.6, 1.4] + [1.0] * 20, 7),
        ([9.0, 1.0, 1.4, 0.8, 1.6, 1.0, 1.3, 0.7, 1.5, 0.9, 1.2, 1.4], LEAST_WARMUP),
    ],
    ids=["none", "one", "few", "even", "compile", "spike", "checkpoints", "creeping", "noise"],
)
def test_warmup_ends_where_the_steps_settle(seconds: list[float], expected: int) -> None:
    assert count_warmup(seconds) == expected


def test_too_few_steps_say_nothing() -> None:
    assert steady_state(steps(*[1.0] * (LEAST_WARMUP + LEAST_STEADY - 1))) is None
    assert steady_state(steps(*[1.0] * (LEAST_WARMUP + LEAST_STEADY))) is not None


def test_the_median_step_is_what_counts() -> None:
    found = steady_state(steps(20.0, 5.0, *[0.5] * 7, 6.0, *[0.5] * 6, tokens=800))
    assert found is not None
    assert found.samples_per_second == 16.0
    assert found.tokens_per_second == 1600.0
    assert found.step_time_s[1] == 0.5
    assert (found.warmup, found.counted) == (2, 14)


def test_a_rate_needs_the_work_of_every_step() -> None:
    mixed = steps(*[1.0] * 6) + steps(1.0, samples=None)
    found = steady_state(mixed)
    assert found is not None
    assert found.samples_per_second is None
    assert found.tokens_per_second is None


def test_work_that_varies_is_weighed_step_by_step() -> None:
    varied = [Step(seconds=seconds, samples=8 * seconds) for seconds in (1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0)]
    found = steady_state(varied)
    assert found is not None
    assert found.samples_per_second == 8.0


@pytest.mark.parametrize(("q", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)])
def test_quantile(q: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], q) == pytest.approx(expected)


def test_drift_compares_the_ends_of_the_steady_state() -> None:
    steps = [Step(seconds=1.0 + 0.01 * index, outside_s=0.25) for index in range(42)]
    found = steady_state(steps)
    assert found.drift == pytest.approx(0.286, abs=0.02)
    assert found.mean_step_time_s == pytest.approx(sum(step.seconds for step in steps[2:]) / 40)
    assert 0.1 < found.share_outside < 0.25
    assert steady_state(steps[:12]).drift is None


def test_a_share_of_time_is_told_only_where_every_step_tells() -> None:
    steps = [Step(seconds=1.0, outside_s=0.5)] * 8
    assert steady_state(steps).share_outside == 0.5
    assert steady_state([*steps, Step(seconds=1.0)]).share_outside is None
    assert steady_state([Step(seconds=1.0, outside_s=3.0)] * 8).share_outside == 1.0
