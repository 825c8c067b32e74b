from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.ranks.peers import RankWork
from torchx_cubicml.recorder.steps import step_times
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, Pause
from torchx_cubicml.recorder.steps.step_clock import StepEnd
from torchx_cubicml.recorder.steps.step_times import StepTimes
from torchx_cubicml.records.measurement import MEAN

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value


def made(count: int = 8, *, samples: float | None = 4.0, tokens: float | None = 64.0) -> StepTimes:
    """Return steps of half a second, a fifth of it before their first forward, and pauses in two of them."""
    times, now = StepTimes(), 10.0
    for index in range(count):
        pauses = {
            5: (Pause(EVAL_MODE, now, now + 2.0),),
            6: (Pause(CHECKPOINT, now, now + 1.0),),
        }.get(index, ())
        began = now + 0.1 + sum(pause.end - pause.begin for pause in pauses)
        now = began + 0.4
        times.clock().tick(StepEnd(now, began=began, samples=samples, tokens=tokens, pauses=pauses))
    return times


def test_steps_make_the_throughput_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("peak_memory_gib", 3.0), ("peak_reserved_gib", 5.0), ("allocator_retries", 2)):
        monkeypatch.setattr(step_times, name, lambda value=value: value)
    found = made().measurement({"dp_degree": 3}, may_include_evaluation=True)
    assert found is not None
    assert (found.samples_per_second, found.tokens_per_second) == pytest.approx((24.0, 384.0))
    overall_s = 5 * 0.5 + 3.0
    assert found.samples_per_second_overall == pytest.approx(5 * 4 * 3 / overall_s)
    assert found.tokens_per_second_overall == pytest.approx(5 * 64 * 3 / overall_s)
    assert (found.steps_counted, found.warmup_steps) == (5, 3)  # the first of eight has no beginning
    assert found.mean_step_time_s == pytest.approx(0.5)
    assert found.step_time_s == pytest.approx((0.5, 0.5, 0.5))
    assert found.share_outside_steps == pytest.approx(0.2)
    assert (found.evaluation_s, found.checkpoint_s) == pytest.approx((2.0, 1.0))
    assert found.relative_error == pytest.approx(0.0, abs=1e-6)
    assert (found.peak_memory_gib, found.peak_reserved_gib, found.allocator_retries) == (3.0, 5.0, 2)
    assert (found.statistic, found.is_steady, found.drift) == (MEAN, True, None)
    assert found.may_include_evaluation
    assert made().measurement({}).may_include_evaluation is False
    assert made(30).measurement({}).drift == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("facts", "is_of_whole_job", "rates"),
    [
        ({}, False, (None, None)),
        ({"dp_degree": 1}, False, (8.0, 128.0)),
        ({"dp_degree": "many"}, False, (None, None)),
        ({}, True, (8.0, 128.0)),
        ({"dp_degree": 3}, True, (8.0, 128.0)),
        ({"dp_degree": 2, "cp_degree": 1}, False, (16.0, 256.0)),
        ({"dp_degree": 2, "cp_degree": 2}, False, (16.0, None)),
        ({"dp_degree": 2, "cp_degree": 2}, True, (8.0, 128.0)),
    ],
)
def test_the_job_consumes_what_its_ranks_do(
    facts: dict[str, Value], is_of_whole_job: bool, rates: tuple[float | None, float | None]
) -> None:
    found = made().measurement(facts, is_of_whole_job=is_of_whole_job)
    assert (found.samples_per_second, found.tokens_per_second) == pytest.approx(rates)


def test_other_ranks_count_but_not_for_a_whole_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "peak_memory_gib", lambda: 3.0)
    others = RankWork(peak_memory_gib=4.0, samples=(8.0,), tokens=(128.0,))
    found = made().measurement({"dp_degree": 2}, others=others)
    assert (found.samples_per_second, found.tokens_per_second) == pytest.approx((2 * 6 / 0.5, 2 * 96 / 0.5))
    assert found.peak_memory_gib == 4.0
    whole = made().measurement({}, is_of_whole_job=True, others=others)
    assert (whole.samples_per_second, whole.tokens_per_second) == pytest.approx((8.0, 128.0))
    smaller = RankWork(peak_memory_gib=2.0)
    assert made().measurement({}, others=smaller).peak_memory_gib == 3.0


def test_no_memory_is_unknown_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "peak_memory_gib", lambda: 0.0)
    assert made().measurement({}).peak_memory_gib is None


def test_steps_of_unknown_work_are_timed() -> None:
    found = made(samples=None, tokens=None).measurement({"dp_degree": 2})
    assert (found.samples_per_second, found.samples_per_second_overall, found.tokens_per_second) == (None, None, None)
    assert found.steps_counted == 5


def test_too_few_steps_have_no_measurement() -> None:
    assert made(5).measurement({}) is None
    assert made(6).measurement({}) is not None


def test_steps_begin_anew() -> None:
    times = StepTimes()
    assert (times.steps, times.is_running, times.recent_s()) == (0, False, None)
    times.read()
    times = made(20)
    times.steps = 20
    assert times.is_running
    times.read()
    assert times.recent_s() == pytest.approx(0.5)
    assert times.evaluation().eval_mode
    times.begin_anew()
    assert (times.steps, times.is_running, times.recent_s(), times.steady()) == (0, False, None, None)
