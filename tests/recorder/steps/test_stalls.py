"""Mean step over whole periods of stalls that recur, as at each epoch."""

from __future__ import annotations

import pytest

from torchx_cubicml.recorder.steps.stalls import periodic_mean_s


def epochs(steps: int, count: int, stall: float = 9.0, *, left: int = 0) -> list[float]:
    """Return the durations of a run whose first step, behind a stall, is not among them; ``left`` steps follow."""
    return ([1.0 + stall, *[1.0] * (steps - 1)] * count)[1:] + [1.0 + stall, *[1.0] * left][: left and left + 1]


@pytest.mark.parametrize("left", [0, 1, 5, 9])
@pytest.mark.parametrize("count", [3, 5, 20])
def test_epochs_are_counted_whole(count: int, left: int) -> None:
    assert periodic_mean_s(epochs(10, count, left=left), warmup=2) == pytest.approx(1.9)


def test_epochs_may_differ_by_a_step() -> None:
    seconds = [*epochs(10, 2), 10.0, *[1.0] * 8, *epochs(10, 2)[9:]]
    assert periodic_mean_s(seconds, warmup=2) == pytest.approx(1 + 9 / 10, rel=0.03)


def test_short_stalls_between_long_ones_are_usual_steps() -> None:
    seconds = epochs(20, 4, 99.0)
    for place in (3, 31, 38, 55):
        seconds[place] = 5.0
    assert periodic_mean_s(seconds, warmup=2) == pytest.approx(1 + 99 / 20 + 16 / 76, rel=0.01)


@pytest.mark.parametrize(
    "seconds",
    [
        [1.0] * 40,
        [*[1.0] * 19, 10.0, *[1.0] * 19],  # one alone may be chance
        [*[1.0] * 9, 10.0, *[1.0] * 3, 10.0, *[1.0] * 20],
        [*[1.0] * 9, 10.0, *[1.0] * 9, 10.0, *[1.0] * 30],  # the third does not come
        [*[1.0] * 19, 10.0, *[1.0] * 9, 10.0, *[1.0] * 9],  # nor did the first
        [1.0, 4.0] * 20,
    ],
    ids=["none", "one", "irregular", "ended", "begun late", "every other"],
)
def test_others_are_left_as_they_are(seconds: list[float]) -> None:
    assert periodic_mean_s(seconds, warmup=2) is None


def test_one_behind_a_pause_recurs_as_the_pause_does() -> None:
    seconds = epochs(10, 2)
    paused = [time > 1 for time in seconds]
    assert periodic_mean_s(seconds, warmup=2, paused=paused) == pytest.approx(1.9)
    assert periodic_mean_s([*seconds, *[1.0] * 10], warmup=2, paused=[*paused, *[False] * 10]) is None


def test_a_slow_start_is_no_stall() -> None:
    assert periodic_mean_s([50.0, 20.0, *[1.0] * 60], warmup=3) is None
    assert periodic_mean_s([50.0, 20.0, *epochs(10, 5)[2:]], warmup=2) == pytest.approx(1.9)
