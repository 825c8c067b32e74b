"""Which trials a hold-out split knows and which it predicts, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors.splits import SplitRequest, make_splits
from torchx_cubicml.records.trial import State, Trial


def trial(x: int, *, started_at: str = "", state: State = State.COMPLETED, **workload: object) -> Trial:
    done = Trial.completed(workload=workload, config={"x": x}, tokens_per_second=10.0 + x)
    measurement = done.measurement if state is State.COMPLETED else None
    return replace(done, trial_id=str(x), started_at=started_at, state=state, measurement=measurement)


def split(trials: list[Trial], name: str, **given: object) -> tuple[list[tuple[list[int], list[int]]], str]:
    """Return the numbers of the known and the held-out trials of each split, and its description."""
    splits, description = make_splits(trials, SplitRequest(split=name, **given))
    return [tuple(sorted(int(each.trial_id) for each in side) for side in pair) for pair in splits], description


@pytest.mark.parametrize(("count", "n_known"), [(1, 1), (4, 4), (5, 4), (6, 5), (10, 8), (11, 9)])
def test_a_random_split_knows_four_fifths(count: int, n_known: int) -> None:
    trials = [trial(x) for x in range(count)]
    ((known, held_out),), description = split(trials, "random", seed=3)
    assert sorted([*known, *held_out]) == list(range(count))
    assert (len(known), description) == (n_known, "a random fifth held out")
    assert split(trials[::-1], "random", seed=3)[0] == [(known, held_out)]


def test_seeds_draw_other_trials() -> None:
    trials = [trial(x) for x in range(30)]
    assert len({str(split(trials, "random", seed=seed)) for seed in range(5)}) == 5


def test_trials_in_flight_are_in_no_split() -> None:
    trials = [*(trial(x) for x in range(5)), trial(5, state=State.RUNNING), trial(6, state=State.USER_ERROR)]
    ((known, held_out),), _ = split(trials, "random")
    assert sorted([*known, *held_out]) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("days", "known"),
    [
        ((1, 2, 3, 4, 5), [0, 1, 2, 3]),
        ((1, 2, 3, 4, 5, 6), [0, 1, 2, 3]),
        ((1, 2, 3, 5, 5), [0, 1, 2]),  # equal times are never split
        ((1, 1, 1, 1, 2), [0, 1, 2, 3]),
        ((1, 2, 2, 2, 2), [0]),
        ((1, 1, 2), [0, 1]),
        ((1, 1, 1), []),
        ((1,), []),
    ],
)
def test_a_split_by_time_knows_the_earlier_trials(days: tuple[int, ...], known: list[int]) -> None:
    trials = [trial(x, started_at=f"2026-01-0{day}") for x, day in enumerate(days)]
    rest = [x for x in range(len(days)) if x not in known]
    assert split(trials, "time") == ([(known, rest)], "the latest fifth held out")


def test_trials_without_a_time_are_left_out() -> None:
    trials = [*(trial(x, started_at=f"2026-01-0{x + 1}") for x in range(5)), trial(5), trial(6)]
    description = "the latest fifth held out (2 without a start time ignored)"
    assert split(trials, "time") == ([([0, 1, 2, 3], [4])], description)
    with pytest.raises(RecordError, match="split time needs trials with a start time; none of the 2 trials has one"):
        split(trials[5:], "time")


@pytest.mark.parametrize(
    ("sizes", "given", "known", "words"),
    [
        ((1, 2, 4, 8), {}, [0, 1], "above 2 processes"),
        ((1, 2, 4, 8, 16), {}, [0, 1, 2], "above 4 processes"),
        ((8, 8, 8), {}, [0, 1, 2], "above 8 processes"),
        ((1, 2, 4, 8), {"max_world_size": 4}, [0, 1, 2], "above 4 processes"),
        ((1, 2, 4, 8), {"max_world_size": 3}, [0, 1], "above 3 processes"),
        ((1, 2, 4, 8), {"large": 2}, [0, 1, 2, 3], "above 2 processes except 2"),
        ((1, 2, 4, 8), {"large": 9}, [0, 1, 2, 3], "above 2 processes except 2"),
    ],
)
def test_a_split_by_scale_knows_the_smaller_jobs(
    sizes: tuple[int, ...], given: dict[str, int], known: list[int], words: str
) -> None:
    trials = [trial(x, world_size=size) for x, size in enumerate(sizes)]
    rest = [x for x in range(len(sizes)) if x not in known]
    assert split(trials, "scale", **given) == ([(known, rest)], f"jobs {words} held out")


def test_some_of_the_larger_jobs_are_known() -> None:
    trials = [
        trial(x, world_size=4 if x < 3 else 8, state=State.TIMEOUT if x == 9 else State.COMPLETED) for x in range(10)
    ]
    drawn = set()
    for seed in range(20):
        ((known, held_out),), _ = split(trials, "scale", max_world_size=4, large=2, seed=seed)
        assert known[:3] == [0, 1, 2]
        assert len(known) == 5
        assert 9 in held_out  # it was not measured
        drawn.update(known[3:])
    assert drawn == {3, 4, 5, 6, 7, 8}


def test_trials_of_unknown_scale_are_left_out() -> None:
    trials = [trial(0, world_size=1), trial(1, world_size=2), trial(2), trial(3, world_size="many")]
    description = "jobs above 1 processes held out (2 without a world_size ignored)"
    assert split(trials, "scale") == ([([0], [1])], description)
    with pytest.raises(RecordError, match="split scale needs trials with a world_size; none of the 2 trials has one"):
        split(trials[2:], "scale")


def test_each_workload_with_three_measurements_is_held_out() -> None:
    trials = [
        *(trial(x, program="a.py") for x in range(3)),
        *(trial(x, program="b.py") for x in range(3, 7)),
        *(trial(x, program="c.py", state=State.COMPLETED if x < 9 else State.TIMEOUT) for x in range(7, 12)),
    ]
    splits, description = split(trials, "workload")
    assert description == "2 workloads held out in turn"
    assert splits == [([0, 1, 2, *range(7, 12)], [3, 4, 5, 6]), (list(range(3, 12)), [0, 1, 2])]


def test_the_thirty_largest_workloads_are_held_out() -> None:
    trials = [trial(100 * w + x, program=f"{w:02}.py") for w in range(32) for x in range(4 if w == 31 else 3)]
    splits, description = split(trials, "workload")
    assert description == "30 workloads held out in turn"
    assert [held_out[0] // 100 for _, held_out in splits] == [31, *range(29)]


@pytest.mark.parametrize(("counts", "words"), [((3,), "got 1 workloads, 1"), ((2, 2), "got 2 workloads, 0")])
def test_a_split_by_workload_needs_two(counts: tuple[int, ...], words: str) -> None:
    trials = [trial(10 * w + x, program=str(w)) for w, count in enumerate(counts) for x in range(count)]
    with pytest.raises(RecordError, match=f"two workloads, one of them with 3 measured trials; {words} with that many"):
        split(trials, "workload")


def test_an_unknown_split_lists_the_known_ones() -> None:
    with pytest.raises(RecordError, match="unknown split 'half'; choose from random, time, scale, workload"):
        split([], "half")
