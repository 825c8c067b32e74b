from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.recorder.steps.blocks import MOST_BLOCKS, Block, Blocks
from torchx_cubicml.recorder.steps.steady_state import (
    LEAST_STEADY,
    LEAST_WARMUP,
    count_warmup,
    fill_unwatched,
    quantile,
    steady_state,
)


def steps(*seconds: float, samples: float | None = 8, tokens: float | None = None) -> list[Block]:
    return [Block(seconds=each, samples=samples, tokens=tokens) for each in seconds]


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
        ([9.0, 1.0, 1.4, 0.8, 1.6, 1.0, 1.3, 0.7, 1.5, 0.9, 1.2, 1.4], LEAST_WARMUP),
    ],
    ids=["none", "one", "few", "even", "compile", "spike", "checkpoints", "noise"],
)
def test_warmup_ends_where_the_steps_settle(seconds: list[float], expected: int) -> None:
    assert count_warmup(seconds) == (expected, True)


@pytest.mark.parametrize("n", [30, 41, 100, 1000])
def test_a_fifth_of_the_steps_at_most_is_warmup(n: int) -> None:
    durations = [1.0 + (n - index) / 10 for index in range(n - 1)]  # n steps, of which the first has no beginning
    warmup, has_settled = count_warmup(durations)
    assert warmup + 1 == n // 5
    assert not has_settled
    assert not steady_state(steps(*durations)).is_steady


def test_late_compilation_is_warmup() -> None:
    run = [Block(seconds=1.0, samples=8, compiled=index == 5) for index in range(60)]
    assert steady_state(run).warmup == 6


def test_too_few_steps_have_no_steady_state() -> None:
    assert steady_state(steps(*[1.0] * (LEAST_WARMUP + LEAST_STEADY - 1))) is None
    assert steady_state(steps(*[1.0] * (LEAST_WARMUP + LEAST_STEADY))) is not None


def test_throughput_is_what_was_processed_over_the_time_it_took() -> None:
    found = steady_state(steps(20.0, 5.0, *[0.5] * 7, 6.0, *[0.5] * 6, tokens=800))
    assert found is not None
    assert found.samples_per_second == pytest.approx(8 * 14 / (0.5 * 13 + 6.0))
    assert found.tokens_per_second == pytest.approx(800 * 14 / (0.5 * 13 + 6.0))
    assert found.step_time_s[1] == 0.5
    assert (found.warmup, found.counted) == (2, 14)


def test_work_that_varies_is_summed() -> None:
    varied = [Block(seconds=0.5 + size, samples=size, tokens=10 * size) for size in (9, 9, 1, 2, 3, 4, 5, 6)]
    found = steady_state(varied)
    assert found.samples_per_second == pytest.approx(21 / (0.5 * 6 + 21))
    assert found.tokens_per_second == pytest.approx(210 / (0.5 * 6 + 21))


def test_a_rate_needs_the_work_of_every_step_that_was_watched() -> None:
    found = steady_state(steps(*[1.0] * 6) + steps(1.0, samples=None))
    assert found is not None
    assert found.samples_per_second is None
    assert found.tokens_per_second is None
    assert found.relative_error == 0.0  # of the steps themselves


def test_evaluation_and_saving_are_left_out_and_counted() -> None:
    run = steps(*[1.0] * 20)
    run[7] = Block(seconds=6.0, samples=8, eval_mode_s=4.0, eval_mode_steps=1, checkpoint_s=1.0)
    run[12] = Block(seconds=3.0, samples=8, no_grad_s=2.0, no_grad_steps=1)
    found = steady_state(run)
    assert found.samples_per_second == pytest.approx(8.0)
    assert (found.evaluation_s, found.checkpoint_s) == (6.0, 1.0)
    assert found.steps_per_second_overall == pytest.approx(18 / 25)
    assert found.relative_error == pytest.approx(0.0)


def test_a_passage_of_every_step_is_training() -> None:
    teacher = [Block(seconds=1.5, samples=8, no_grad_s=0.5, no_grad_steps=1) for _ in range(20)]
    teacher[9] = Block(seconds=4.5, samples=8, no_grad_s=0.5, no_grad_steps=1, eval_mode_s=3.0, eval_mode_steps=1)
    found = steady_state(teacher)
    assert found.samples_per_second == pytest.approx(8 / 1.5)
    assert found.evaluation_s == 3.0


def test_passages_recur_by_the_steps_that_were_watched() -> None:
    teacher = Block(seconds=1.0, samples=8, no_grad_s=0.25, no_grad_steps=1)
    found = steady_state([*[teacher] * 20, *[Block(seconds=1.0, watched=0)] * 80])
    assert found.evaluation_s == 0.0
    assert found.samples_per_second == pytest.approx(8.0)


@pytest.mark.parametrize(("q", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)])
def test_quantile(q: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], q) == pytest.approx(expected)


def test_drift_widens_the_error() -> None:
    run = [Block(seconds=1.0 + 0.01 * index, samples=8, outside_s=0.25) for index in range(42)]
    found = steady_state(run)
    assert found.drift == pytest.approx(0.286, abs=0.02)
    assert not found.is_steady
    assert found.relative_error > 0.1
    assert found.seconds == pytest.approx(sum(step.seconds for step in run[2:]))
    assert 0.1 < found.share_outside < 0.25
    assert steady_state(run[:12]).drift is None


def test_a_share_of_time_needs_every_step() -> None:
    run = [Block(seconds=1.0, samples=8, outside_s=0.5)] * 8
    assert steady_state(run).share_outside == 0.5
    assert steady_state([*run, Block(seconds=1.0, samples=8)]).share_outside is None
    assert steady_state([Block(seconds=1.0, outside_s=3.0)] * 8).share_outside == 1.0


def test_evaluation_is_not_time_outside_of_steps() -> None:
    run = [Block(seconds=1.0, outside_s=0.25)] * 8
    run[5] = Block(seconds=5.0, outside_s=4.25, eval_mode_s=4.0, eval_mode_steps=1)
    assert steady_state(run).share_outside == pytest.approx(0.25)


def test_unwatched_steps_count_as_their_neighbours() -> None:
    seen, other = Block(seconds=1.0, samples=8, outside_s=0.5), Block(seconds=1.0, samples=10, outside_s=0.5)
    unseen = Block(seconds=1.0, watched=0)
    assert [each.samples for each in fill_unwatched([unseen, unseen])] == [None, None]
    assert [each.samples for each in fill_unwatched([unseen, seen, unseen, other, unseen])] == [8, 8, 9, 10, 10]
    even, uneven = (steady_state([*[seen] * 9, *[unseen] * 6, *[last] * 9]) for last in (seen, other))
    assert even.samples_per_second == 8.0
    assert even.relative_error == 0.0
    assert uneven.samples_per_second == pytest.approx((7 * 8 + 6 * 9 + 9 * 10) / 22)
    assert steady_state([unseen] * 9).samples_per_second is None


def test_a_hidden_stall_before_an_unwatched_step_is_time_outside() -> None:
    seen = Block(seconds=1.0, samples=8, outside_s=0.25)
    filled = fill_unwatched([seen, seen, Block(seconds=3.0, watched=0), seen, seen])
    assert filled[2].outside_s == pytest.approx(2.25)


def test_an_uncertain_share_of_time_is_left_out() -> None:
    """Most of the time goes to few steps, wherever in the step: looks at few steps miss or meet them."""
    rng = np.random.default_rng(0)
    inside_s = np.where(rng.random(4000) < 0.2, 0.02, 0.001)
    run = [Block(seconds=0.0004 + each, samples=8, outside_s=0.0004) for each in inside_s]
    sampled = [
        step if index < 512 or index % 500 < 8 else replace(step, watched=0, samples=None, outside_s=None)
        for index, step in enumerate(run)
    ]
    assert steady_state(run).share_outside == pytest.approx(
        0.0004 * len(run) / sum(step.seconds for step in run), rel=0.01
    )
    assert steady_state(sampled).share_outside is None


def test_interpolated_steps_widen_the_error() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 12, 400)
    run = [Block(seconds=1.0, samples=float(size), watched=1) for size in sizes]
    sampled = [step if index % 50 < 8 else Block(seconds=1.0, watched=0) for index, step in enumerate(run)]
    whole, guessed = steady_state(run), steady_state(sampled)
    assert guessed.relative_error > whole.relative_error
    assert abs(np.log(guessed.samples_per_second / whole.samples_per_second)) < 3 * guessed.relative_error


class TestBlocks:
    def test_sums_over_many_steps_are_kept_in_bounded_memory(self) -> None:
        blocks, n = Blocks(), 5 * MOST_BLOCKS + 3
        for index in range(n):
            blocks.add(Block(seconds=1.0 + index % 2, samples=index % 7, outside_s=0.5, eval_mode_s=0.25))
        found = blocks.all()
        assert len(found) <= MOST_BLOCKS
        assert sum(block.steps for block in found) == blocks.steps == n
        assert sum(block.seconds for block in found) == pytest.approx(n + n // 2)
        assert sum(block.samples for block in found) == sum(index % 7 for index in range(n))
        assert sum(block.eval_mode_s for block in found) == pytest.approx(n / 4)
        assert len({block.steps for block in found[:-1]}) == 1

    def test_single_steps_are_sampled_from_the_whole_run(self) -> None:
        blocks, n = Blocks(), 8 * MOST_BLOCKS
        for index in range(n):
            blocks.add(Block(seconds=float(index + 1)))
        durations = [step.seconds for step in blocks.sampled_steps()]
        assert len(durations) == MOST_BLOCKS
        assert np.mean(durations) == pytest.approx(n / 2, rel=0.05)
        assert blocks.recent_s() == pytest.approx(n - 7.5)

    def test_single_steps_exclude_the_warmup(self) -> None:
        blocks = Blocks()
        for seconds in [20.0, 12.0, 12.0, 8.0, 5.0, *[1.0] * 30]:
            blocks.add(Block(seconds=seconds, samples=8))
        found = steady_state(blocks.all(), singly=blocks.sampled_steps())
        assert found.step_time_s == (1.0, 1.0, 1.0)

    def test_partly_watched_blocks_show_the_time_outside(self) -> None:
        looks = Block(seconds=64.0, steps=64, watched=8, samples=64, outside_s=1.6)
        rests = Block(seconds=64.0, steps=64, watched=0)
        found = steady_state([looks, rests, rests] * 20)
        assert found.share_outside == pytest.approx(0.2)

    def test_unwatched_steps_stay_unwatched_in_larger_blocks(self) -> None:
        unseen, seen = Block(seconds=1.0, watched=0), Block(seconds=2.0, samples=4)
        both = unseen + seen
        assert (both.steps, both.watched, both.samples, both.seconds) == (2, 1, 4, 3.0)
        assert (seen + Block(seconds=1.0)).samples is None
        assert (unseen + unseen).samples is None


@pytest.mark.parametrize("moment", [60, 100, 140])
@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_a_run_that_changes_its_pace_for_good_is_not_steady(moment: int, factor: float) -> None:
    durations = [(factor if index > moment else 1.0) * (1.0 + 0.05 * (index % 3)) for index in range(200)]
    assert not steady_state(steps(*durations)).is_steady


def test_a_run_that_changes_its_pace_for_a_while_is_steady() -> None:
    durations = [1.4 if 80 < index < 120 else 1.0 for index in range(200)]
    assert steady_state(steps(*durations)).is_steady


def test_stalls_of_each_epoch_count_as_over_whole_epochs() -> None:
    epoch = [Block(seconds=11.0, samples=2), *[Block(seconds=1.0, samples=2)] * 9]
    state = steady_state((epoch * 4)[1:])
    assert state is not None
    assert state.samples_per_second == pytest.approx(1.0)
