"""Values of the steady state, worked out by hand or by a slow plain version of the same sums."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from torchx_cubicml.recorder.steps.blocks import Block
from torchx_cubicml.recorder.steps.rate_error import relative_error
from torchx_cubicml.recorder.steps.steady_state import (
    EvaluationKinds,
    count_warmup,
    fill_unwatched,
    quantile,
    steady_state,
)

DURATIONS = st.sampled_from([0.5, 1.0, 2.0, 5.0, 6.0, 10.0])


def plain_warmup(seconds: list[float], compiled: list[bool]) -> tuple[int, bool]:
    n = len(seconds)
    most = (n + 1) // 5 - 1 if n >= 29 else min(5, n // 2)
    if most < 2:
        return min(n, 2), True
    level, upper = np.quantile(seconds[n // 2 :], [0.5, 0.75])
    for start in range(2, most + 1):
        is_past = not any(compiled[start:most])
        if is_past and seconds[start] <= 2 * level and np.median(seconds[start : start + 5]) <= max(1.2 * level, upper):
            return start, True
    return most, False


@given(st.lists(st.tuples(DURATIONS, st.integers(0, 9)), max_size=45))
def test_warmup_is_that_of_a_plain_search(steps: list[tuple[float, int]]) -> None:
    seconds, compiled = [each for each, _ in steps], [number == 0 for _, number in steps]
    assert count_warmup(seconds, compiled=compiled) == plain_warmup(seconds, compiled)


@pytest.mark.parametrize(("late", "warmup"), [(3, 4), (10, 11), (11, 2), (12, 2)])
def test_a_compilation_after_the_bound_is_ignored(late: int, warmup: int) -> None:
    """Of sixty steps, twelve may be warm-up: eleven durations, as the first step has none."""
    compiled = [index == late for index in range(59)]
    assert count_warmup([1.0] * 59, compiled=compiled) == (warmup, True)


@pytest.mark.parametrize("n", range(60))
def test_an_endless_warmup_is_bounded(n: int) -> None:
    seconds = [2.0**-index for index in range(n)]
    assert count_warmup(seconds) == plain_warmup(seconds, [False] * n)


@given(st.lists(DURATIONS, min_size=1, max_size=9), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]))
def test_quantiles_are_interpolated(numbers: list[float], q: float) -> None:
    assert quantile(sorted(numbers), q) == pytest.approx(np.quantile(numbers, q))


PAUSED = st.builds(
    Block,
    seconds=st.sampled_from([4.0, 5.0, 8.0]),
    samples=st.sampled_from([0.0, 3.0, 8.0]),
    tokens=st.sampled_from([10.0, 40.0]),
    outside_s=st.sampled_from([3.0, 3.5]),
    eval_mode_s=st.sampled_from([0.0, 1.0]),
    eval_mode_steps=st.integers(0, 1),
    no_grad_s=st.sampled_from([0.0, 0.5]),
    no_grad_steps=st.integers(0, 1),
    checkpoint_s=st.sampled_from([0.0, 0.25]),
)


def evaluation_s(run: list[Block]) -> list[float]:
    """Return the seconds of each step in pauses of a kind that does not precede most steps."""
    kinds = [
        kind for kind in ("eval_mode", "no_grad") if 2 * sum(getattr(each, f"{kind}_steps") for each in run) <= len(run)
    ]
    return [sum(getattr(each, f"{kind}_s") for kind in kinds) for each in run]


@given(st.lists(PAUSED, min_size=5, max_size=40))
def test_a_steady_state_sums_its_steps(run: list[Block]) -> None:
    found, evaluation = steady_state(run), evaluation_s(run)
    training = [each.seconds - paused - each.checkpoint_s for each, paused in zip(run, evaluation, strict=True)]
    warmup, has_settled = plain_warmup(training, [False] * len(run))
    steady, evaluation, training = run[warmup:], evaluation[warmup:], training[warmup:]
    saving = sum(each.checkpoint_s for each in steady)
    assert (found.warmup, found.counted, found.seconds) == (warmup, len(steady), pytest.approx(sum(training)))
    assert (found.evaluation_s, found.checkpoint_s) == pytest.approx((sum(evaluation), saving))
    assert found.steps_per_second == pytest.approx(len(steady) / sum(training))
    assert found.steps_per_second_overall == pytest.approx(len(steady) / sum(each.seconds for each in steady))
    assert found.step_time_s == pytest.approx(tuple(np.quantile(training, [0.1, 0.5, 0.9])))
    outside = sum(each.outside_s for each in steady) - sum(evaluation) - saving
    assert found.share_outside == pytest.approx(outside / sum(training))
    samples = sum(each.samples for each in steady)
    assert found.samples_per_step == (pytest.approx(samples / len(steady)) if samples else None)
    assert found.samples_per_second == (pytest.approx(samples / sum(training)) if samples else None)
    assert found.tokens_per_second == pytest.approx(sum(each.tokens for each in steady) / sum(training))
    quarter = len(steady) // 4
    slowdown = np.median(training[-quarter:]) / np.median(training[:quarter]) - 1 if len(steady) >= 16 else None
    assert found.drift == (None if slowdown is None else pytest.approx(slowdown))
    error = relative_error([each.tokens for each in steady], training)
    if slowdown is None or (found.is_steady and has_settled):
        assert found.is_steady is has_settled
        assert found.relative_error == pytest.approx(error)


@pytest.mark.parametrize(("passes", "is_evaluation"), [(10, True), (11, False)])
@pytest.mark.parametrize("kind", ["eval_mode", "no_grad"])
def test_a_pause_before_most_steps_is_training(kind: str, passes: int, is_evaluation: bool) -> None:
    paused = Block(seconds=2.0, **{f"{kind}_s": 0.5, f"{kind}_steps": 1})
    found = EvaluationKinds.of([paused] * passes + [Block(seconds=1.0)] * (20 - passes))
    assert getattr(found, kind) is is_evaluation
    assert found.seconds(paused) == (0.5 if is_evaluation else 0.0)
    assert found.seconds(Block(seconds=9.0, eval_mode_s=2.0, no_grad_s=3.0)) == 5.0 - (not is_evaluation) * (
        2.0 if kind == "eval_mode" else 3.0
    )


def trend(order: list[int], *, gap: float = 0.1, first: int = 2) -> list[Block]:
    """Return a run of eight levels of six steps each, after steps that are left out."""
    return [Block(seconds=1.0 + gap * level) for level in [0] * first + [level for level in order for _ in range(6)]]


@pytest.mark.parametrize(
    "order",
    [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [1, 0, 3, 2, 6, 4, 7, 5],
        [2, 0, 3, 1, 6, 4, 7, 5],
        [7, 6, 4, 5, 2, 3, 0, 1],
        [7, 5, 6, 3, 4, 1, 2, 0],
        [6, 4, 7, 5, 2, 0, 3, 1],
        [3, 4, 5, 6, 7, 0, 1, 2],
    ],
)
def test_a_trend_is_an_order_of_the_eighths(order: list[int]) -> None:
    run = trend(order, gap=0.015)  # no split of them is wide enough for a shift
    found = steady_state(run)
    assert found is not None
    assert found.warmup == 2
    drift = np.median([0.015 * each for each in order[-2:]]) - np.median([0.015 * each for each in order[:2]])
    has_trend = abs(kendalltau(range(8), order).statistic) >= 0.7 and abs(found.drift) > 0.05
    assert found.drift == pytest.approx(drift / (1 + np.median([0.015 * each for each in order[:2]])), abs=1e-9)
    assert found.is_steady is not has_trend
    seconds = [each.seconds for each in run[2:]]
    error = relative_error([1.0] * len(seconds), seconds)
    widened = math.hypot(error, math.log(1 + found.drift) / 2)
    assert found.relative_error == pytest.approx(widened if has_trend else error)


@pytest.mark.parametrize(
    ("levels", "is_shift"),
    [
        ([1.0, 1.0, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3], True),
        ([1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.0, 1.0], True),
        ([1.0, 1.0, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2], False),  # a fifth slower is as steady
        ([1.0, 1.2, 1.3, 1.3, 1.4, 1.4, 1.4, 1.3], False),  # one of the faster is too near
        ([1.0, 1.15, 1.3, 1.3, 1.4, 1.4, 1.4, 1.3], True),
        ([1.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3, 1.3], False),
        ([1.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], False),  # one eighth is no level
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3], False),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3, 1.3], True),
    ],
)
def test_a_shift_is_one_split_of_the_eighths(levels: list[float], is_shift: bool) -> None:
    run = [Block(seconds=1.3)] * 2 + [Block(seconds=level) for level in levels for _ in range(10)]
    assert steady_state(run).is_steady is not is_shift


def test_a_small_drift_is_steady() -> None:
    for slowdown, is_steady in ((0.0499, True), (0.0501, False)):
        seconds = [1.0] * 30 + [1.0 + slowdown / 2] * 10 + [1.0 + slowdown] * 30
        even = steady_state([Block(seconds=each + 1e-6 * index) for index, each in enumerate(seconds)])
        assert even.drift == pytest.approx(slowdown, abs=2e-4)
        assert even.is_steady is is_steady


@pytest.mark.parametrize(("n", "has_drift"), [(17, False), (18, True)])
def test_drift_needs_sixteen_steady_steps(n: int, has_drift: bool) -> None:
    assert (steady_state([Block(seconds=1.0)] * n).drift is not None) is has_drift


def seen(samples: float = 8, *, outside_s: float | None = 0.25, steps: int = 1, **more: float | None) -> Block:
    return Block(**{"seconds": float(steps), "samples": samples, "outside_s": outside_s, "steps": steps, **more})


def unseen(seconds: float = 1.0, *, steps: int = 1) -> Block:
    return Block(seconds=seconds, steps=steps, watched=0)


def test_a_partly_watched_block_is_scaled_up() -> None:
    (filled,) = fill_unwatched([seen(6.0, tokens=9.0, steps=12, watched=4, outside_s=1.0)])
    assert (filled.samples, filled.tokens, filled.outside_s) == (18.0, 27.0, 3.0)
    assert (filled.variance, filled.outside_variance) == (0.0, 0.0)


def test_at_most_eight_watched_steps_on_a_side_count() -> None:
    run = [seen(100), *[seen(8)] * 8, unseen(), *[seen(12)] * 8, seen(100)]
    assert fill_unwatched(run)[9].samples == 10.0
    nearer = [seen(100), unseen(), *[seen(8)] * 3, unseen(), seen(16), unseen(), seen(100)]
    assert fill_unwatched(nearer)[5].samples == 10.0


def test_unwatched_steps_get_the_mean_of_both_sides() -> None:
    before = [seen(4, tokens=40.0, outside_s=0.25), seen(6, tokens=60.0, outside_s=0.5)]
    after = [seen(10, tokens=100.0, outside_s=0.75)]
    run = [*before, unseen(3.0, steps=2), unseen(5.0, steps=3), *after]
    short, long = fill_unwatched(run)[2:4]
    assert (short.samples, long.samples) == pytest.approx((2 * 20 / 3, 3 * 20 / 3))
    assert (short.tokens, long.tokens) == pytest.approx((2 * 200 / 3, 3 * 200 / 3))
    inside_s = 1.0 - 1.5 / 3
    assert (short.outside_s, long.outside_s) == pytest.approx((3.0 - 2 * inside_s, 5.0 - 3 * inside_s))
    # The known means are 4, 6 and 10 tokens, in tens, and those of the sides 5 and 10.
    within, between = np.var([4, 6, 10]) / 3, (5 - 10) ** 2 / 12
    variance = (within + between) / (20 / 3) ** 2
    assert (short.variance, long.variance) == pytest.approx((variance * 5 * 2, variance * 5 * 3))
    # Inside are 0.75, 0.5 and 0.25 s, and 0.625 and 0.25 s on the sides.
    of_time = (np.var([0.75, 0.5, 0.25]) / 3 + (0.625 - 0.25) ** 2 / 12) / 0.5**2 * inside_s**2
    assert (short.outside_variance, long.outside_variance) == pytest.approx((of_time * 5 * 2, of_time * 5 * 3))


def test_samples_give_the_variance_without_tokens() -> None:
    filled = fill_unwatched([seen(4), seen(6), unseen(), seen(10)])[2]
    assert filled.tokens is None
    assert filled.variance == pytest.approx((np.var([4, 6, 10]) / 3 + 25 / 12) / (20 / 3) ** 2)


def test_what_no_neighbour_shows_stays_unknown() -> None:
    filled = fill_unwatched([seen(None, outside_s=None, tokens=None), unseen(2.0)])[1]
    assert (filled.samples, filled.tokens, filled.outside_s, filled.variance) == (None, None, None, 0.0)
    partly = fill_unwatched([seen(8), unseen(2.0), seen(None, outside_s=None)])[1]
    assert (partly.samples, partly.outside_s) == (None, None)


def test_the_error_of_imputed_work_adds_to_that_of_the_steps() -> None:
    run = [seen(8)] * 2 + [seen(size) for size in (4, 6, 8, 10, 9)] + [unseen()] * 4 + [seen(size) for size in (5, 7)]
    work = fill_unwatched(run)[2:]
    of_steps = relative_error([each.samples for each in work], [1.0] * 11)
    imputed = math.sqrt(sum(each.variance for each in work)) / 11
    assert steady_state(run).relative_error == pytest.approx(math.hypot(of_steps, imputed))
    assert 0 < imputed < of_steps


@pytest.mark.parametrize(("spread", "is_known"), [(0.20, True), (0.40, False)])
def test_a_share_is_known_to_a_twentieth(spread: float, is_known: bool) -> None:
    """The watched steps on the two sides differ, so what the unwatched ones did is not sure."""
    sides = [seen(outside_s=0.5 - spread / 2)] * 8, [seen(outside_s=0.5 + spread / 2)] * 8
    run = [*sides[0], *[unseen()] * 16, *sides[1]]
    found = steady_state(run)
    work = fill_unwatched(run)[2:]
    error = math.sqrt(sum(each.outside_variance for each in work)) / 30
    assert (error <= 0.05) is is_known
    assert (found.share_outside is not None) is is_known


def test_a_share_of_time_is_between_none_and_all() -> None:
    for outside_s, share in ((-0.5, 0.0), (0.0, 0.0), (1.0, 1.0), (1.5, 1.0)):
        assert steady_state([seen(outside_s=outside_s)] * 8).share_outside == share


def test_a_step_of_nothing_but_pauses_lasts_a_moment() -> None:
    run = [seen(), seen(), *[Block(seconds=1.0, samples=1.0, checkpoint_s=1.0 + each) for each in (0.0, 0.5, 0.0)]]
    found = steady_state(run)
    assert found.seconds == pytest.approx(3e-9)
    assert found.share_outside is None


def test_blocks_of_several_steps_are_weighed_by_them() -> None:
    blocks = [Block(seconds=4.0 * n, steps=n, watched=n, samples=8.0 * n) for n in (4, 4, 2, 2, 4, 1, 3)]
    found = steady_state(blocks, singly=[Block(seconds=each) for each in (3.0, 1.0, 2.0)])
    assert (found.warmup, found.counted) == (8, 12)
    assert found.step_time_s == pytest.approx((1.2, 2.0, 2.8))
    assert (found.samples_per_step, found.steps_per_second) == (8.0, 0.25)
    assert found.relative_error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("tokens", "samples"), list(product(["known", "nothing", "unknown"], repeat=2)))
def test_the_error_is_of_tokens_else_samples_else_steps(tokens: str, samples: str) -> None:
    sizes, seconds = [3.0, 5.0, 8.0, 2.0, 9.0, 4.0, 7.0, 6.0], [1.0, 1.5, 0.7, 1.1, 1.3, 0.9, 1.2, 0.8]
    amounts = {"tokens": [10 * size**2 for size in sizes], "samples": sizes}
    factors = {"known": 1.0, "nothing": 0.0}
    known = {
        unit: [factors[kind] * each for each in amounts[unit]] if kind in factors else [None] * 8
        for unit, kind in (("tokens", tokens), ("samples", samples))
    }
    run = [
        Block(seconds=time_s, tokens=of_tokens, samples=of_samples)
        for time_s, of_tokens, of_samples in zip(seconds, known["tokens"], known["samples"], strict=True)
    ]
    work = next((known[unit] for unit in known if {"tokens": tokens, "samples": samples}[unit] == "known"), [1.0] * 8)
    assert steady_state(run).relative_error == pytest.approx(relative_error(work[2:], seconds[2:]))


def test_blocks_of_different_sizes_are_one_run() -> None:
    """Steps of one second each, first one in a block, then three."""
    found = steady_state([Block(seconds=1.0)] * 20 + [Block(seconds=3.0, steps=3, watched=3)] * 20)
    assert found is not None
    assert found.drift == pytest.approx(0.0)
    assert found.is_steady
    assert (found.counted + found.warmup, found.steps_per_second) == (80, pytest.approx(1.0))
