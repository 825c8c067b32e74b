"""The formula of the memory that a config takes, against sums made by hand and slopes by small differences."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder
from torchx_cubicml.predictors.memory.dominance import KNOWN_TO_FIT
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
from torchx_cubicml.predictors.memory.usage_model import MemoryUsage
from torchx_cubicml.predictors.memory.usage_posterior import most_probable
from torchx_cubicml.records.trial import State, Trial

NAMES = {"F": "FULL_SHARD", "S": "SHARD_GRAD_OP", "N": "NO_SHARD"}
TUNED = {
    "micro_batch_size": (1, 2, 4, 8),
    "sharding_strategy": tuple(NAMES.values()),
    "activation_checkpointing": ("full", "selective", "none"),
    "kind": ("a", "b"),
    "cache": (0.0, 0.5),
}
CONFIGS = [
    ("FFFF", 1, "full", "a", 0.0),
    ("SSFN", 8, "none", "b", 0.5),
    ("NNNN", 2, "selective", "a", 0.25),
    ("SNSF", 4, "none", "a", 0.5),
    ("FSNS", 4, "full", "b", 0.0),
]


def config(word: str, batch: int, checkpointing: str, kind: str, cache: float) -> dict[str, object]:
    return {
        "sharding_strategy": tuple(NAMES[letter] for letter in word),
        "micro_batch_size": batch,
        "activation_checkpointing": checkpointing,
        "kind": kind,
        "cache": cache,
    }


def trial(number: int, *, fits: bool = True, peak: float | None = None, state: State | None = None) -> Trial:
    given = {"workload": {}, "config": config(*CONFIGS[number])}
    if state is not None:
        return Trial(trial_id=f"failed-{number}", state=state, **given)
    if not fits:
        return Trial.infeasible(**given)
    return Trial.completed(**given, tokens_per_second=1.0, peak_memory_gib=peak)


@pytest.fixture(scope="module")
def history() -> TrainingTable:
    trials = [
        trial(0, peak=10.0),
        trial(1, fits=False),
        trial(2, peak=30.0),
        trial(3, fits=False),
        trial(4, state=State.UNKNOWN),
    ]
    return TrainingTable.from_trials(trials, objective="tokens_per_second", choices=TUNED)


@pytest.fixture(scope="module")
def usage(history: TrainingTable) -> MemoryUsage:
    return MemoryUsage.of(ConfigEncoder.of(history.features, history.columns, tuned=TUNED), history.columns)


def encoded(history: TrainingTable) -> np.ndarray:
    return history.columns.encode([config(*each) for each in CONFIGS])


def test_prior_usage_adds_up_by_the_ranks_of_choices(usage: MemoryUsage, history: TrainingTable) -> None:
    """A tenth for all, half for the largest batch, and four fifths for states of which a rank less keeps 0.3."""
    taken, _, _ = usage.taken(usage.terms(encoded(history)), np.zeros(usage.n_theta))
    keeps = {"F": 0.0, "S": 0.3, "N": 1.0}
    rank = {"full": 0, "selective": 1, "none": 2}
    for (word, batch, checkpointing, _, _), found in zip(CONFIGS, taken, strict=True):
        states = 0.8 * sum(keeps[letter] for letter in word) / 4
        expected = 0.1 + 0.5 * batch / 8 * math.exp(0.7 * rank[checkpointing]) + states
        assert math.exp(found) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_the_slope_of_usage_is_that_of_small_differences(usage: MemoryUsage, history: TrainingTable, seed: int) -> None:
    terms = usage.terms(encoded(history))
    theta = np.random.default_rng(seed).normal(0, 1, usage.n_theta)
    _, jacobian, capacity = usage.taken(terms, theta)
    assert jacobian.shape == capacity.shape == (len(CONFIGS), usage.n_theta)
    for at in range(usage.n_theta):
        step = np.zeros(usage.n_theta)
        step[at] = 1e-5
        slope = (usage.taken(terms, theta + step)[0] - usage.taken(terms, theta - step)[0]) / 2e-5
        assert jacobian[:, at] == pytest.approx(slope, abs=1e-7)


def test_what_is_learned_of_each_part_scales_it_alone(usage: MemoryUsage, history: TrainingTable) -> None:
    terms = usage.terms(encoded(history))
    zero = np.zeros(usage.n_theta)
    start = np.exp(usage.taken(terms, zero)[0])
    for at, (deviation, part) in enumerate(((0.6, 0.1), (0.9, None), (0.6, None))):
        theta = zero.copy()
        theta[at] = 1.0
        added = np.exp(usage.taken(terms, theta)[0]) - start
        of_part = added / (math.exp(deviation) - 1.0)
        if part is not None:
            assert of_part == pytest.approx([part] * len(CONFIGS))
        elif at == 1:
            assert of_part[0] == pytest.approx(0.5 / 8)
        else:
            assert of_part == pytest.approx([0.0, 0.8 * 1.6 / 4, 0.8, 0.8 * 1.6 / 4, 0.8 * 1.6 / 4])


def test_a_choice_without_a_rank_has_its_own_deviation(usage: MemoryUsage, history: TrainingTable) -> None:
    """Half a log for usage, 0.15 for capacity; 1.5 times as much from the lowest to the highest number."""
    groups = usage.unknown
    _, jacobian, capacity = usage.taken(usage.terms(encoded(history)), np.zeros(usage.n_theta))
    of_usage = [at for at in range(usage.n_theta) if groups[at] >= 0 and jacobian[:, at].any()]
    of_capacity = [at for at in range(usage.n_theta) if capacity[:, at].any()]
    cache = np.array([each[4] for each in CONFIGS]) / 0.5
    indicators = [(3, "a"), (3, "b"), (2, "full")]  # the least of the ranked choices counts as one without a rank
    expected = {tuple(np.round(1.5 * cache, 6))}
    expected |= {tuple(float(each[place] == value) for each in CONFIGS) for place, value in indicators}
    assert {tuple(np.round(jacobian[:, at] / 0.5, 6)) for at in of_usage} == expected
    assert {tuple(np.round(capacity[:, at] / 0.15, 6)) for at in of_capacity} == expected
    assert not set(of_usage) & set(of_capacity)
    # Both choices of the kind form a group, for usage and for capacity.
    assert sorted(np.bincount(groups[groups >= 0]).tolist()) == [1, 1, 1, 1, 2, 2]


def plain_log_posterior(wall: WorkloadFeasibility, theta: np.ndarray) -> float:
    """Sum over outcomes and peaks, one by one."""
    seen = wall.observations_
    taken, _, capacity = wall.usage_.taken(seen.terms, theta[:-1])
    total = 0.0
    for place in range(len(taken)):
        above = seen.steepness * (taken[place] - capacity[place] @ theta[:-1])  # of the limit, in logits
        chance_to_fit = 1.0 / (1.0 + math.exp(above))
        total += seen.trust[place] * math.log(chance_to_fit if seen.fitted[place] else 1.0 - chance_to_fit)
        if math.isfinite(seen.peaks[place]):
            log_capacity = seen.capacity.median + seen.capacity.deviation * theta[-1]
            total -= 0.5 * ((seen.peaks[place] - log_capacity - taken[place]) / seen.peak_sd) ** 2
    return total - 0.5 * float(seen.precision @ theta**2)


@pytest.fixture(scope="module")
def wall(history: TrainingTable) -> WorkloadFeasibility:
    return WorkloadFeasibility(tuned=TUNED).fit(history)


@pytest.mark.parametrize("seed", range(3))
def test_outcomes_are_censored_and_peaks_exact(wall: WorkloadFeasibility, seed: int) -> None:
    rng = np.random.default_rng(seed)
    here, there = (wall.theta_ + rng.normal(0, 0.05, len(wall.theta_)) for _ in range(2))
    expected = plain_log_posterior(wall, there) - plain_log_posterior(wall, here)
    found = wall.observations_.log_posterior(there) - wall.observations_.log_posterior(here)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_small_differences(wall: WorkloadFeasibility, seed: int) -> None:
    theta = wall.theta_ + np.random.default_rng(seed).normal(0, 0.05, len(wall.theta_))
    gradient, curvature = wall.observations_.slope(theta)
    for at in range(len(theta)):
        step = np.zeros(len(theta))
        step[at] = 1e-6
        slope = (wall.observations_.log_posterior(theta + step) - wall.observations_.log_posterior(theta - step)) / 2e-6
        assert gradient[at] == pytest.approx(slope, rel=1e-4, abs=1e-3)
    assert np.linalg.eigvalsh(curvature).min() > 0
    assert curvature == pytest.approx(curvature.T)


def test_the_mode_is_where_the_gradient_vanishes(wall: WorkloadFeasibility) -> None:
    mode, covariance = most_probable(wall.observations_)
    gradient, curvature = wall.observations_.slope(mode)
    assert np.abs(np.linalg.solve(curvature, gradient)).max() < 0.01
    assert covariance == pytest.approx(np.linalg.inv(curvature))


def test_a_failure_of_unknown_cause_counts_three_fifths(wall: WorkloadFeasibility) -> None:
    assert wall.observations_.trust.tolist() == [1.0, 1.0, 1.0, 1.0, 0.6]
    assert wall.observations_.fitted[-1] == 0.0
    fitted = wall.observations_.fitted == 1.0
    assert sorted(wall.observations_.peaks[fitted]) == pytest.approx([math.log(10.0), math.log(30.0)])
    assert np.isnan(wall.observations_.peaks[~fitted]).tolist() == [True] * 3


@pytest.mark.parametrize(
    ("devices", "median", "deviation"),
    [
        ([], math.log(30.0) + 0.4, 0.7),
        ([80.0, 40.0, None], math.log(40.0) - 0.1, 0.15),
        ([True, "80", 1e-4, 1e7], math.log(30.0) + 0.4, 0.7),
        ([1e-3], math.log(1e-3) - 0.1, 0.15),
    ],
    ids=["only peaks", "the smallest device", "no device", "a tiny device"],
)
def test_the_capacity_is_of_the_device_or_the_largest_peak(
    history: TrainingTable, devices: list[object], median: float, deviation: float
) -> None:
    rows = [dict(row) for row in history.rows]
    for row, device in zip(rows, devices, strict=False):
        row["device_memory_gib"] = device
    capacity = WorkloadFeasibility(tuned=TUNED).fit(replace(history, rows=rows)).observations_.capacity
    assert (capacity.median, capacity.deviation) == pytest.approx((median, deviation))


def test_the_probability_is_moderated_by_uncertainty(wall: WorkloadFeasibility, history: TrainingTable) -> None:
    features = encoded(history)
    taken, jacobian, capacity = wall.usage_.taken(wall.usage_.terms(features), wall.theta_[:-1])
    rows = [config(*each) for each in CONFIGS]
    found = wall.probability(features, rows)
    for place in range(len(CONFIGS)):
        slope = capacity[place] - jacobian[place]
        variance = slope @ wall.covariance_[:-1, :-1] @ slope
        margin = capacity[place] @ wall.theta_[:-1] - taken[place]
        logit = 40.0 * margin / math.sqrt(1.0 + math.pi * 40.0**2 * variance / 8.0)
        expected = 1.0 / (1.0 + math.exp(-max(-8.0, min(8.0, logit))))
        assert found[place] == pytest.approx(min(expected, KNOWN_TO_FIT))
