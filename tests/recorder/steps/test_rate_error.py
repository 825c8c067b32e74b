from __future__ import annotations

import math

import numpy as np
import pytest

from torchx_cubicml.recorder.steps.rate_error import relative_error

RUNS = 400  # of each family: a coverage of 0.90 is seen as 0.90 +- 0.015


def independent(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    spread = rng.uniform(0.02, 0.3)
    return rng.lognormal(0, spread, n), math.exp(spread**2 / 2)


def stalls(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    chance, length = rng.uniform(0.05, 0.3), rng.uniform(1, 20)
    return 1.0 + (rng.random(n) < chance) * length, 1.0 + chance * length


def autocorrelated(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    memory, spread = rng.uniform(0.3, 0.9), rng.uniform(0.05, 0.2)
    series = [rng.normal(0, spread)]
    for _ in range(n - 1):
        series.append(memory * series[-1] + rng.normal(0, spread * math.sqrt(1 - memory**2)))
    return np.exp(series), math.exp(spread**2 / 2)


@pytest.mark.parametrize("family", [independent, stalls, autocorrelated], ids=lambda family: family.__name__)
def test_nine_intervals_in_ten_hold_the_long_run_rate(family: object) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(RUNS):
        n = int(rng.integers(40, 300))
        seconds, mean = family(rng, n)
        error = relative_error([1.0] * n, seconds.tolist())
        held += abs(math.log(n / seconds.sum() * mean)) <= 1.645 * error
    assert 0.84 <= held / RUNS <= 0.95


def test_only_irregular_stalls_widen_the_error() -> None:
    regular = ([0.015] * 4 + [0.25]) * 16
    drawn = np.random.default_rng(1).permutation(regular).tolist()
    work = [8.0] * 80
    assert relative_error(work, regular) < 0.05 < relative_error(work, drawn) < 0.4


def test_few_blocks_make_wide_intervals() -> None:
    seconds = [1.0, 1.1, 0.9]
    few, many = relative_error([1.0] * 3, seconds), relative_error([1.0] * 90, seconds * 30)
    assert few > 0.05 > 5 * many


def test_work_proportional_to_time_is_no_noise() -> None:
    sizes = np.random.default_rng(2).integers(1, 64, 100).tolist()
    assert relative_error([float(size) for size in sizes], [0.01 * size for size in sizes]) == pytest.approx(
        0, abs=1e-6
    )
    assert relative_error([float(size) for size in sizes], [0.3] * 100) > 0.02


def test_very_long_runs_are_taken_in_larger_blocks() -> None:
    seconds = np.random.default_rng(3).lognormal(0, 0.1, 4096)
    assert relative_error([1.0] * 4096, seconds.tolist()) == pytest.approx(0.1 / 64, rel=0.3)


@pytest.mark.parametrize(("work", "seconds"), [([], []), ([1.0, 1.0], [1.0, 2.0]), ([0.0] * 5, [1.0] * 5)])
def test_too_few_steps_have_no_error(work: list[float], seconds: list[float]) -> None:
    assert relative_error(work, seconds) is None
