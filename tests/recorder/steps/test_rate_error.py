from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

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


def fitted(series: np.ndarray, order: int) -> tuple[float, list[float]] | None:
    """Return the innovation variance and coefficients by Burg's method at one order, straight from its definition."""
    variance, coefficients = float(np.mean(series**2)), np.zeros(0)
    for _ in range(order):
        done = len(coefficients)
        forward = [series[t] - coefficients @ series[t - 1 - np.arange(done)] for t in range(done + 1, len(series))]
        backward = [
            series[t - done - 1] - coefficients @ series[t - done + np.arange(done)]
            for t in range(done + 1, len(series))
        ]
        ahead, back = np.array(forward), np.array(backward)
        reflection = 2 * (ahead @ back) / (ahead @ ahead + back @ back)
        coefficients = np.append(coefficients - reflection * coefficients[::-1], reflection)
        variance *= 1 - reflection**2
    return variance, coefficients.tolist()


def plain_error(work: np.ndarray, seconds: np.ndarray) -> float:
    n, rate = len(work), work.sum() / seconds.sum()
    series = work - rate * seconds
    fits = [fitted(series, order) for order in range(min(math.floor(10 * math.log10(n)), n // 4) + 1)]

    def criterion(order: int) -> float:
        correction = 2 * order * n / (n - order - 2) if order else 0.0
        return n * math.log(fits[order][0]) + correction

    order = min(range(len(fits)), key=criterion)
    innovations, coefficients = fits[order]
    total = sum(coefficients)
    if order:
        missing = 1 + 3 * total if order == 1 else (order + 1) * (1 + total)
        total = min(total + min(max(missing, 0.0) / n, (1 - total) / 2), 1 - 0.5 / math.sqrt(n))
    long_run = innovations * n / (n - order - 1) / (1 - total) ** 2
    independent = min(n * np.mean(series**2) / long_run, n)
    freedom = max(independent - 1 - order, 1.0 if n < 6 else 2.0)
    known = [1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 60.0, 1e12]
    quantiles = np.round(student.ppf(0.95, known), 3)
    widening = np.interp(-1 / freedom, -1 / np.array(known), quantiles) / 1.645
    return widening * math.sqrt(n * long_run + max(abs(series)) ** 2 / 24) / work.sum()


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return work and seconds of a short run, independent or with memory of either sign."""
    rng = np.random.default_rng(seed)
    n, memory = int(rng.integers(3, 8 if seed % 3 else 60)), rng.choice([-0.8, 0.0, 0.5, 0.97])
    noise = [rng.normal(0, 0.2)]
    for _ in range(n - 1):
        noise.append(memory * noise[-1] + rng.normal(0, 0.2))
    return rng.integers(1, 9, n) * rng.choice([1.0, 1000.0]), np.exp(noise)


def test_the_error_is_that_of_a_plain_fit() -> None:
    for seed in range(240):
        work, seconds = drawn(seed)
        assert relative_error(work.tolist(), seconds.tolist()) == pytest.approx(plain_error(work, seconds), rel=1e-6)


def test_long_runs_are_summed_in_512_blocks_at_most() -> None:
    work, seconds = np.arange(1.0, 1026.0), np.random.default_rng(0).lognormal(0, 0.2, 1025)
    summed = [[part[start : start + 3].sum() for start in range(0, 1025, 3)] for part in (work, seconds)]
    assert relative_error(work.tolist(), seconds.tolist()) == pytest.approx(relative_error(*summed))
    assert relative_error(work[:512].tolist(), seconds[:512].tolist()) != pytest.approx(
        relative_error(*([part[start : start + 2].sum() for start in range(0, 512, 2)] for part in (work, seconds)))
    )


def test_a_long_period_is_fitted_up_to_its_bound() -> None:
    for n in (84, 100, 130):
        noise = np.random.default_rng(n).lognormal(0, 0.02, n)
        for period in (18, 19, 20, 21, 22):
            work, seconds = np.ones(n), noise * (1 + 2 * (np.arange(n) % period == 0))
            assert relative_error(work.tolist(), seconds.tolist()) == pytest.approx(
                plain_error(work, seconds), rel=1e-6
            )


@pytest.mark.parametrize("n", [5, 6, 7])
def test_slow_phases_of_short_runs_leave_few_degrees_of_freedom(n: int) -> None:
    work, seconds = np.ones(n), np.array([1.0] * (n // 2) + [2.0] * (n - n // 2))
    assert relative_error(work.tolist(), seconds.tolist()) == pytest.approx(plain_error(work, seconds))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e6])
def test_the_error_has_no_unit(scale: float) -> None:
    work, seconds = [5.0] * 20, np.exp(np.linspace(-0.5, 0.5, 20)).tolist()
    assert relative_error([scale * each for each in work], seconds) == pytest.approx(relative_error(work, seconds))
    assert relative_error(work, [scale * each for each in seconds]) == pytest.approx(relative_error(work, seconds))


@pytest.mark.parametrize("scale", [1.0, 128.0])
@pytest.mark.parametrize(("noise", "is_error"), [(1e-7, True), (3e-12, True), (3e-13, False)])
def test_rounding_is_no_error(scale: float, noise: float, is_error: bool) -> None:
    work = [scale * (1 + noise), scale * (1 - noise)] * 20
    assert (relative_error(work, [1.0] * 40) > 0) is is_error


@pytest.mark.parametrize("n", [8, 14, 20])
def test_a_trend_is_bounded_memory(n: int) -> None:
    work, seconds = np.ones(n), np.exp(np.linspace(-0.5, 0.5, n))
    assert relative_error(work.tolist(), seconds.tolist()) == pytest.approx(plain_error(work, seconds))
