"""The covariance function against a slow plain version of itself, one pair of configs at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.gaussian_process.kernel import Kernel, Prior, Sample, fit_map
from torchx_cubicml.predictors.gaussian_process.outliers import LOG_CHANCE, find_outliers
from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder, EncodedConfigs
from torchx_cubicml.records.trial import Trial

LAYERS = 4


def trial(number: int, *, layered: bool) -> Trial:
    rng = np.random.default_rng(number)
    config: dict[str, object] = {
        "batch": int(rng.integers(1, 17)),
        "rate": float(rng.uniform(0.1, 0.9)),
        "backend": str(rng.choice(["a", "b", "c"])),
    }
    if layered:
        config["kernel"] = tuple(rng.choice(["F", "S", "N"], LAYERS).tolist())
    speed = float(np.exp(rng.normal(0, 0.2)))
    return Trial.completed(
        workload={"layer_n_params": (1, 2, 3, 6)} if layered else {}, config=config, tokens_per_second=speed
    )


def history_of(*, layered: bool) -> TrainingTable:
    return TrainingTable.from_trials(
        [trial(each, layered=layered) for each in range(12)], objective="tokens_per_second"
    )


def points_of(*, layered: bool, pressure: bool = False) -> tuple[ConfigEncoder, EncodedConfigs]:
    history = history_of(layered=layered)
    places = ConfigEncoder.of(history.features, history.columns, tuned={})
    points = places.points(history.features)
    if pressure:
        points = replace(points, memory_pressure=np.linspace(0.0, 1.2, len(points))[:, None])
    return places, points


def matern(square: float) -> float:
    distance = math.sqrt(5 * square)
    return (1 + distance + distance**2 / 3) * math.exp(-distance)


def plain_covariance(kernel: Kernel, points: EncodedConfigs, i: int, j: int) -> float:
    smooth, linear, matching, additive, pressure, stepwise = kernel.variances
    row = np.hstack([points.numbers, points.categories])
    differences = ((row[i] - row[j]) * kernel.plain) ** 2
    shares = np.hstack(points.shares) if kernel.layered else np.zeros((len(points), 0))
    of_shares = (((shares[i] - shares[j]) * kernel.shares) ** 2).sum() if kernel.layered else 0.0
    total = smooth * matern(differences.sum() + of_shares)
    if points.memory_pressure.shape[1]:
        total += pressure * matern((points.memory_pressure[i, 0] - points.memory_pressure[j, 0]) ** 2 / 0.5**2)
    for column, at in enumerate(kernel.stepwise):
        equal = float(points.numbers[i, at] == points.numbers[j, at])
        alike = matern((points.power_of_two[i, column] - points.power_of_two[j, column]) ** 2)
        total += stepwise * 0.5 * (equal + alike) / len(kernel.stepwise)
    if not kernel.layered:
        facts = sorted(set(kernel.fact_of.tolist()))
        return total + sum(additive * matern(differences[kernel.fact_of == fact].sum()) / len(facts) for fact in facts)
    for layered, members in zip(kernel.layered, points.members, strict=True):
        weights, n = layered.weights, len(layered.weights)
        match = sum(weights[at] * (members[i, :, at] @ members[j, :, at]) for at in range(n))
        total += matching * math.exp(-(1 - match) / kernel.match_length) * matern(differences.sum())
        product = 0.0
        for code in range(members.shape[1]):
            centred = [members[each, code] - weights @ members[each, code] for each in (i, j)]
            for a in range(n):
                for b in range(n):
                    alike = kernel.correlation * math.exp(-layered.distance[a, b] / kernel.layer_length)
                    alike += (1 - kernel.correlation) * (a == b)
                    product += weights[a] * n * centred[0][a] * alike * centred[1][b] * weights[b] * n
        total += linear / n * product * matern(0.25 * differences.sum())
    return total


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pressure", [False, True])
@pytest.mark.parametrize("layered", [False, True])
def test_each_pair_has_the_covariance_of_the_sum_of_the_terms(layered: bool, pressure: bool, seed: int) -> None:
    places, points = points_of(layered=layered, pressure=pressure)
    prior = Prior.of(places, noise=0.1)
    shifts = np.random.default_rng(seed).normal(0, 1, len(prior.medians))
    kernel = prior.kernel(shifts)
    found = kernel.between(points, points)
    expected = [[plain_covariance(kernel, points, i, j) for j in range(len(points))] for i in range(len(points))]
    assert found == pytest.approx(np.array(expected), rel=1e-6)
    assert kernel.alone(points) == pytest.approx(np.diag(found), rel=1e-6)


def test_hyper_parameters_are_shifted_medians() -> None:
    places, _ = points_of(layered=True)
    prior = Prior.of(places, noise=0.1)
    middle = prior.kernel(np.zeros(len(prior.medians)))
    above = prior.kernel(np.ones(len(prior.medians)))
    assert middle.noise == pytest.approx(0.1)
    assert above.noise == pytest.approx(0.1 * math.exp(0.8))
    assert above.variances / middle.variances == pytest.approx([math.e] * 6)
    assert middle.correlation == pytest.approx(0.5)
    assert above.layer_length / middle.layer_length == pytest.approx(math.exp(0.5))
    assert middle.plain / above.plain == pytest.approx([math.exp(0.5)] * len(middle.plain))
    assert middle.shares / above.shares == pytest.approx([math.exp(0.5)] * len(middle.shares))


@pytest.mark.parametrize(("n_repeats", "deviation"), [(0, 0.8), (6, 0.25), (16, 1 / 6)])
def test_repeats_make_the_noise_surer(n_repeats: int, deviation: float) -> None:
    """One over the root of twice the repeats and two more."""
    places, _ = points_of(layered=False)
    assert Prior.of(places, noise=0.1, n_repeats=n_repeats).deviations[6] == pytest.approx(deviation)


def log_density(prior: Prior, kernel: Kernel, sample: Sample) -> float:
    gram = (
        kernel.between(sample.points, sample.points)
        + np.diag(np.full(len(sample.rest), kernel.noise**2 + 1e-9))
        + sample.errors
    )
    _, determinant = np.linalg.slogdet(gram)
    return float(-0.5 * sample.rest @ np.linalg.solve(gram, sample.rest) - 0.5 * determinant)


@pytest.mark.parametrize("layered", [False, True])
def test_the_fit_is_likelier_than_its_prior(layered: bool) -> None:
    places, points = points_of(layered=layered)
    prior = Prior.of(places, noise=0.1)
    rest = np.log(history_of(layered=layered).throughput)
    sample = Sample(points, rest / rest.std(), 0.01 * np.eye(len(points)))
    kernel, density = fit_map(prior, sample, np.random.default_rng(0))
    shifts = np.zeros(len(prior.medians))
    medians = prior.kernel(shifts)
    assert density > log_density(prior, medians, sample)
    found = {
        "variances": np.log(kernel.variances / medians.variances) / prior.deviations[:6],
        "noise": np.log([kernel.noise / medians.noise]) / prior.deviations[6:7],
        "lengths": np.log(
            [
                kernel.match_length / medians.match_length,
                kernel.layer_length / medians.layer_length,
                kernel.correlation / (1 - kernel.correlation),
            ]
        )
        / prior.deviations[7:10],
    }
    n_numbers = len(places.numbers)
    per_fact = [np.flatnonzero(places.category_of == fact)[0] + n_numbers for fact in range(len(places.category_names))]
    lengths = [*range(n_numbers), *per_fact]
    squares = sum(float(each @ each) for each in found.values())
    squares += float((((np.log(medians.plain / kernel.plain) / 0.5)[lengths]) ** 2).sum())
    squares += float(((np.log(medians.shares / kernel.shares) / 0.5) ** 2).sum())
    assert density == pytest.approx(log_density(prior, kernel, sample) - 0.5 * squares)


def test_of_two_measurements_nothing_is_fitted() -> None:
    places, points = points_of(layered=False)
    prior = Prior.of(places, noise=0.1)
    two = places.points(history_of(layered=False).features[:2])
    kernel, density = fit_map(prior, Sample(two, np.array([1.0, -1.0]), np.zeros((2, 2))), np.random.default_rng(0))
    assert kernel.noise == prior.kernel(np.zeros(len(prior.medians))).noise
    assert density == pytest.approx(log_density(prior, kernel, Sample(two, np.array([1.0, -1.0]), np.zeros((2, 2)))))
    assert len(points) == 12


class TestOutliers:
    """Many configs of one number, close together, so that each is known from the others."""

    def sample(self, slow: dict[int, float], *, scale: float, noise: float = 0.02) -> tuple[Kernel, Sample]:
        trials = [
            Trial.completed(workload={}, config={"batch": 100 + each}, tokens_per_second=1.0) for each in range(20)
        ]
        history = TrainingTable.from_trials(trials, objective="tokens_per_second")
        places = ConfigEncoder.of(history.features, history.columns, tuned={})
        prior = Prior.of(places, noise=noise / scale)
        logs = np.random.default_rng(0).normal(0, noise, 20)
        for place, slowdown in slow.items():
            logs[place] -= slowdown
        points = places.points(history.features)
        return prior.kernel(np.zeros(len(prior.medians))), Sample(points, logs / scale, np.zeros((20, 20)))

    def found(self, slow: dict[int, float], *, scale: float = 0.2) -> list[int]:
        kernel, sample = self.sample(slow, scale=scale)
        return np.flatnonzero(find_outliers(kernel, sample, scale=scale)).tolist()

    def test_slow_ones_are_found(self) -> None:
        assert self.found({}) == []
        assert self.found({3: 0.5, 11: 0.4}) == [3, 11]

    def test_a_slowdown_of_less_than_a_tenth_is_noise(self) -> None:
        assert self.found({5: 0.05}) == []

    def test_no_more_than_a_fifth_are_left_out(self) -> None:
        slow = self.found(dict.fromkeys((1, 4, 7, 10, 13, 16), 0.5))
        assert len(slow) <= 4

    def test_the_first_to_go_gains_most_by_leaving_one_out_at_a_time(self) -> None:
        scale = 0.2
        kernel, sample = self.sample({3: 0.5}, scale=scale)
        gram = kernel.between(sample.points, sample.points) + kernel.noise_of(sample.errors)
        gains = []
        for place in range(20):
            others = [each for each in range(20) if each != place]
            across = np.linalg.solve(gram[np.ix_(others, others)], gram[others, place])
            mean, variance = across @ sample.rest[others], gram[place, place] - across @ gram[others, place]
            density = -0.5 * (sample.rest[place] - mean) ** 2 / variance - math.log(scale * math.sqrt(variance))
            far_below = scale * (sample.rest[place] - mean) < -0.1 and variance < 0.25 * gram[place, place]
            gains.append(LOG_CHANCE - density if far_below else -math.inf)
        expected = [int(np.argmax(gains))] if max(gains) > 0 else []
        assert expected == [3] == np.flatnonzero(find_outliers(kernel, sample, scale=scale)).tolist()
