"""Record of a training with short steps, of which some are not watched: by a clock that the test itself moves."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import sampling, step_times
from torchx_cubicml.recorder.steps.deferred_hooks import make_step_hook
from torchx_cubicml.recorder.steps.forwards import Work
from torchx_cubicml.recorder.steps.sampling import STEPS_BEFORE_SAMPLING, STEPS_PER_SAMPLE, StepSampling
from torchx_cubicml.recorder.steps.steady_state import fill_unwatched
from torchx_cubicml.recorder.steps.step_clock import HostClock
from torchx_cubicml.recorder.steps.training import Training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from torchx_cubicml.recorder.steps.blocks import Block

OUTSIDE_S = 0.25e-3
INSIDE_S = 1.75e-3
ALIKE = 30


class Job:
    """A training loop whose hooks and clock are at hand. ``truth`` holds what each step has consumed."""

    def __init__(self, *, step_limit: int = 0) -> None:
        self.time = 0.0
        self.model: nn.Module = nn.Linear(8, 2)
        self.optimizer: Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.training = Training(bare, world_size=1, step_limit=step_limit)
        self.hook = make_step_hook(self.training.notes, lambda *args: self.training.step(args[0]), bare)
        self.truth: list[int] = []

    @property
    def is_watched(self) -> bool:
        return bool(self.model._forward_pre_hooks)

    def steps(self, count: int, *, forwards: int = 1, scale: float = 1.0) -> None:
        for _ in range(count):
            self.time += OUTSIDE_S * scale
            for _ in range(forwards):
                self.model(torch.randn(4, 8)).sum().backward()
                self.time += INSIDE_S * scale
            self.optimizer.step()
            self.hook(self.optimizer, (), {})
            self.truth.append(4 * forwards)

    def until_unwatched(self, **kind: Any) -> None:
        while self.is_watched:
            self.steps(1, **kind)

    def until_watched(self) -> None:
        while not self.is_watched:
            self.steps(1)

    def evaluate(self, seconds: float, *, reported: bool = False) -> None:
        self.model.eval()
        if reported:  # as the hook on switches of mode does
            self.training.switched(self.model, False)
        with torch.no_grad():
            for pause in (seconds, 0.0):
                self.model(torch.randn(9, 8))
                self.time += pause
        self.model.train()

    @property
    def counted(self) -> int:
        self.training.measurement()  # looks at what was noted
        return self.training.steps

    def kept(self) -> list[Block]:
        self.training.measurement()
        return self.training._times._blocks.all()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(sampling, "STEPS_BEFORE_SAMPLING", ALIKE)
    made = Job()
    clock = HostClock()
    clock.now = lambda: made.time
    monkeypatch.setattr(step_times, "make_clock", lambda: clock)
    yield made
    made.training.release()


def assert_true(job: Job) -> None:
    """The record of any step, watched or not, is what it has consumed."""
    filled = fill_unwatched(job.kept())
    truth = job.truth[-len(filled) :]
    assert all(step.samples in {None, samples} for step, samples in zip(filled, truth, strict=True))


def test_every_step_counts_and_few_are_watched(job: Job) -> None:
    job.steps(600)
    assert job.counted == 600
    kept = job.kept()
    assert 0.1 < sum(not step.watched for step in kept) / len(kept) < 0.95
    measured = job.training.measurement()
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 600
    assert measured.step_time_s == pytest.approx((0.002, 0.002, 0.002))
    assert measured.samples_per_second == pytest.approx(4 / 0.002)
    assert measured.share_outside_steps == pytest.approx(OUTSIDE_S / 0.002)
    assert_true(job)


def test_long_steps_are_all_watched(job: Job) -> None:
    job.steps(300, scale=50.0)
    assert all(step.watched for step in job.kept())


def test_steps_that_become_long_are_watched_again(job: Job) -> None:
    job.steps(100)
    job.until_unwatched()
    job.steps(70, scale=50.0)
    assert job.is_watched
    job.steps(200, scale=50.0)
    assert all(step.watched for step in job.kept()[-200:])
    assert_true(job)


def test_an_unseen_evaluation_is_time_outside_of_steps(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.steps(2)
    assert not job.is_watched
    job.evaluate(0.1)
    job.steps(220)
    job.until_watched()
    job.steps(1)
    assert job.counted == len(job.truth)
    measured = job.training.measurement()
    assert measured is not None
    seconds = sum(step.seconds for step in job.kept()[measured.warmup_steps - 1 :])
    assert measured.share_outside_steps == pytest.approx((0.1 + measured.steps_counted * OUTSIDE_S) / seconds)
    assert measured.samples_per_second == pytest.approx(4 * measured.steps_counted / seconds)
    assert measured.may_include_evaluation


def test_a_switch_of_mode_reveals_unwatched_evaluation(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.steps(2)
    assert not job.is_watched
    job.evaluate(0.1, reported=True)
    assert not job.model._forward_pre_hooks or job.is_watched
    job.steps(220)
    measured = job.training.measurement()
    assert measured.evaluation_s == pytest.approx(0.1)
    assert measured.samples_per_second == pytest.approx(4 / 0.002, rel=1e-3)
    assert measured.samples_per_second_overall < 0.9 * measured.samples_per_second


def test_accumulation_that_changes_unseen_is_noticed(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.steps(2)
    assert not job.is_watched
    job.steps(20, forwards=4)
    assert not job.is_watched
    job.steps(300, forwards=4)
    assert job.counted == len(job.truth)
    assert job.training.measurement().relative_error > 0.02  # of steps between looks that differ
    job.steps(600, forwards=4)
    measured = job.training.measurement()
    true = sum(job.truth[-measured.steps_counted :]) / (measured.steps_counted * measured.mean_step_time_s)
    assert measured.samples_per_second == pytest.approx(true, rel=measured.relative_error)


def test_varying_steps_are_all_watched(job: Job) -> None:
    for _ in range(60):
        job.steps(3)
        job.steps(1, forwards=2)
    assert job.counted == 240
    assert [step.samples for step in job.kept()] == job.truth[1:]


def test_a_loader_that_fills_the_state_takes_no_step_unseen(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.steps(2)
    job.optimizer.param_groups[0]["lr"] = 0.0
    job.optimizer.step()
    job.hook(job.optimizer, (), {})
    job.optimizer.param_groups[0]["lr"] = 0.1
    job.steps(100)
    assert job.counted == len(job.truth)
    assert_true(job)


def test_zero_learning_rates_keep_every_step_watched(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.optimizer.param_groups[0]["lr"] = 0.0
    job.steps(60)
    assert job.is_watched
    assert len(job.truth) - 1 <= job.counted <= len(job.truth)


def test_an_unseen_change_of_optimizer_is_followed(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.optimizer = torch.optim.Adam(job.model.parameters())
    job.steps(60)
    assert len(job.truth) - 30 < job.counted < len(job.truth)
    job.steps(20)
    job.until_watched()
    job.steps(1)
    assert job.kept()[-1].samples == 4
    assert_true(job)


def test_another_optimizer_costs_no_counted_step(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.steps(1)
    job.model(torch.randn(4, 8)).sum().backward()  # of a step whose end is seen in full
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1, requires_grad=True))], lr=0.1)
    for _ in range(7):
        job.hook(other, (), {})
    job.training.step(other)
    assert job.is_watched
    job.optimizer.step()
    job.hook(job.optimizer, (), {})
    job.truth.append(4)
    job.steps(20)
    assert job.counted == len(job.truth)
    assert_true(job)


def test_a_profiling_launch_is_watched_to_its_limit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = Job(step_limit=150)
    limited.steps(149)
    assert limited.training.steps < 150
    limited.steps(1)
    assert limited.training.steps == 150
    assert all(step.watched for step in limited.kept())
    limited.training.release()


def test_hooks_stay_once_something_was_compiled(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.training.compiled()
    job.steps(200)
    assert job.is_watched
    assert all(step.watched for step in job.kept()[-120:])


def test_the_end_of_a_training_leaves_no_hook(job: Job) -> None:
    job.steps(200)
    job.until_unwatched()
    job.training.conclude()
    assert not job.model._forward_pre_hooks
    assert not job.model._forward_hooks
    assert job.training.steps == len(job.truth)


def work(samples: int = 4) -> Work:
    return Work(forwards=1, samples=samples, tokens=None)


def looked(steps: int) -> StepSampling:
    made = StepSampling()
    for _ in range(steps):
        made.saw(work())
    return made


@pytest.mark.parametrize(
    ("steps", "step_s", "is_watched"),
    [
        (STEPS_BEFORE_SAMPLING, 0.005, True),
        (STEPS_BEFORE_SAMPLING + 1, 0.005, False),
        (10_000, 0.05, True),
        (10_000, None, True),
    ],
    ids=["too few", "enough", "long steps", "unknown time"],
)
def test_only_short_steps_go_unwatched(steps: int, step_s: float | None, is_watched: bool) -> None:
    assert looked(steps).plan(step_s)[0] is is_watched


def test_looks_come_again_and_take_their_share_of_the_time() -> None:
    found = looked(STEPS_BEFORE_SAMPLING + 1)
    counts = {True: 0, False: 0}
    lengths = set()
    for _ in range(50):
        is_watched, count = found.plan(0.005)
        counts[is_watched] += count
        lengths.add(count)
        for _ in range(count):
            found.saw(work()) if is_watched else found.rested()
    assert counts[True] == 25 * STEPS_PER_SAMPLE
    assert 0.04 < counts[True] / sum(counts.values()) < 0.12
    assert len(lengths) > 3  # no rhythm of the training's own stays unseen
    found.saw(work(samples=5))
    assert found.plan(0.005)[0]


def rested(found: StepSampling, count: int) -> StepSampling:
    for _ in range(count):
        found.rested()
    return found


def seen(found: StepSampling, count: int, forwards: int | None = 1) -> StepSampling:
    for _ in range(count):
        found.saw(Work(forwards=forwards, samples=4, tokens=None))
    return found


def test_a_look_follows_each_rest() -> None:
    """Watching one forward takes 30 us, so one of 15 steps of 5 ms may be watched: 8 of 120."""
    found = looked(STEPS_BEFORE_SAMPLING + 1)
    assert found.plan(0.005) == (False, 112)
    assert rested(found, 100).plan(0.005) == (False, 12)
    assert rested(found, 11).plan(0.005) == (False, 1)
    assert rested(found, 1).plan(0.005) == (True, 8)
    assert seen(found, 3).plan(0.005) == (True, 5)
    is_watched, rest = seen(found, 5).plan(0.005)
    assert not is_watched
    assert rest == round(112 * Random(0).uniform(0.6, 1.4))
    assert rested(found, 1).plan(0.005) == (False, rest - 1)


@pytest.mark.parametrize(
    ("step_s", "forwards", "rest"),
    [
        (0.005, 1, 112),
        (0.005, 2, 232),
        (0.005, None, 112),
        (0.0374, 1, 8),
        (0.0376, 1, 0),
        (0.0752, 2, 0),
        (0.0001, 1, 504),
        (1.0, 1, 0),
        (None, 1, 0),
    ],
)
def test_rests_are_as_long_as_the_overhead_needs(step_s: float | None, forwards: int | None, rest: int) -> None:
    found = seen(StepSampling(), STEPS_BEFORE_SAMPLING + 1, forwards)
    assert found.plan(step_s) == ((False, rest) if rest else (True, STEPS_BEFORE_SAMPLING))


def test_a_change_of_work_begins_the_count_again() -> None:
    for change in (None, work(samples=5)):
        found = looked(STEPS_BEFORE_SAMPLING)
        found.saw(change)
        assert seen(found, STEPS_BEFORE_SAMPLING).plan(0.005) == (True, STEPS_BEFORE_SAMPLING)
        assert seen(found, 1).plan(0.005) == (False, 112)
    found = looked(STEPS_BEFORE_SAMPLING + 1)
    found.saw(None)
    assert found.plan(0.005) == (True, STEPS_BEFORE_SAMPLING)


def test_steps_without_forwards_are_never_alike() -> None:
    found = StepSampling()
    for _ in range(2 * STEPS_BEFORE_SAMPLING):
        found.saw(None)
    assert found.plan(0.005) == (True, STEPS_BEFORE_SAMPLING)
