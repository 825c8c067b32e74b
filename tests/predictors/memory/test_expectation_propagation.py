from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.memory.dominance import KNOWN_TO_FIT
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
from torchx_cubicml.records.trial import State, Trial

WORKLOAD = {"program": "a.py", "world_size": 8}
TUNED = {
    "micro_batch_size": (1, 2, 4, 8, 16, 32),
    "sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
    "backend": ("a", "b", "c"),
}
NO_WALL = {"backend": ("a", "b", "c"), "bucket_mb": (1, 5, 25, 50, 100, 200), "workers": (1, 2, 4, 8)}


def config(size: int, strategy: int = 0, backend: str = "a") -> dict[str, object]:
    return {"micro_batch_size": size, "sharding_strategy": TUNED["sharding_strategy"][strategy], "backend": backend}


def trial(of: dict[str, object], *, fits: bool = True, peak_gib: float | None = None) -> Trial:
    if not fits:
        return Trial.infeasible(workload=WORKLOAD, config=of)
    return Trial.completed(workload=WORKLOAD, config=of, tokens_per_second=1.0, peak_memory_gib=peak_gib)


def model_of(trials: list[Trial], tuned: dict[str, tuple[object, ...]]) -> tuple[WorkloadFeasibility, TrainingTable]:
    history = TrainingTable.from_trials(trials, objective="tokens_per_second", choices=tuned)
    order = MemoryOrder.of_names([*WORKLOAD, *tuned])
    return WorkloadFeasibility(order=order, tuned=tuned).fit(history), history


def chances(
    trials: list[Trial], configs: list[dict[str, object]], tuned: dict[str, tuple[object, ...]] = TUNED
) -> list[float]:
    model, history = model_of(trials, tuned)
    rows = [{**WORKLOAD, **each} for each in configs]
    return model.probability(history.columns.encode(rows), rows).tolist()


@pytest.mark.parametrize(
    "trials",
    [
        [trial(config(4))],
        [trial(config(4)), trial(config(8, 2))],
        [trial(config(4)), trial(config(16, 1), fits=False)],
        [trial(config(4)), trial(config(8, 1, "b"), fits=False), trial(config(16, 0, "b"))],
    ],
    ids=["one ran", "two ran", "one failed", "three"],
)
def test_moments_are_those_of_weighted_draws_from_the_prior(trials: list[Trial]) -> None:
    """Within three standard errors of some hundred effective draws, and what a normal distribution leaves out."""
    model, _ = model_of(trials, TUNED)
    seen = model.observations_
    draws = np.random.default_rng(0).standard_normal((4000, len(seen.precision))) / np.sqrt(seen.precision)
    signs = np.where(seen.fitted > 0.5, 1.0, -1.0)
    margins = np.array([seen.margins(draw)[0] for draw in draws])
    least = np.where(signs > 0, 0.001, 0.02)
    likelihood = least + (1.0 - least) / (1.0 + np.exp(-np.clip(seen.steepness * signs * margins, -40.0, 40.0)))
    weights = likelihood.prod(axis=1)
    expected = weights @ margins / weights.sum()
    deviation = np.sqrt(weights @ (margins - expected) ** 2 / weights.sum())
    found, design = seen.margins(model.theta_)
    found_deviation = np.sqrt(np.einsum("ij,jk,ik->i", design, model.covariance_, design))
    assert found == pytest.approx(expected, abs=0.35 * float(deviation.max()))
    assert found_deviation == pytest.approx(deviation, rel=0.35)


def test_a_space_without_a_limit_is_known_to_have_none() -> None:
    rng = np.random.default_rng(0)
    drawn = [{name: choices[int(rng.integers(len(choices)))] for name, choices in NO_WALL.items()} for _ in range(60)]
    found = [min(chances([trial(each) for each in drawn[:count]], drawn[48:], NO_WALL)) for count in (1, 8, 48)]
    assert found == sorted(found)
    assert found[-1] > 0.95


def test_one_recorded_peak_says_that_twice_the_batch_fits() -> None:
    def on_device(peak_gib: float) -> list[float]:
        ran = replace(trial(config(2), peak_gib=peak_gib), observed={"device_memory_gib": 80.0})
        return chances([ran], [config(4), config(8), config(32, 2)])

    (twice, four_times, most), (full, *_) = on_device(10.0), on_device(70.0)
    assert min(twice, four_times) > 0.97 > 0.8 > most
    assert full < 0.6


LAWS = st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 20.0), st.floats(10.0, 60.0))
CONFIGS = [config(size, strategy, name) for size in TUNED["micro_batch_size"] for strategy in range(3) for name in "ab"]


@settings(max_examples=25)
@given(law=LAWS, tried=st.lists(st.sampled_from(CONFIGS), min_size=1, max_size=6), more=st.sampled_from(CONFIGS))
def test_a_success_never_lowers_what_needs_no_more(
    law: tuple[float, float, float], tried: list[dict[str, object]], more: dict[str, object]
) -> None:
    def fits(each: dict[str, object]) -> bool:
        states = law[1] * TUNED["sharding_strategy"].index(each["sharding_strategy"])
        return law[0] * each["micro_batch_size"] + states <= law[2]

    if not fits(more):
        return
    strategies = TUNED["sharding_strategy"]
    rank = strategies.index(more["sharding_strategy"])
    below = [
        config(size, strategy, more["backend"])
        for size in TUNED["micro_batch_size"]
        if size <= more["micro_batch_size"]
        for strategy in range(rank + 1)
    ]
    known = [trial(each, fits=fits(each)) for each in tried]
    before, after = chances(known, below), chances([*known, trial(more)], below)
    assert all(new >= old for old, new in zip(before, after, strict=True))
    assert set(after) == {KNOWN_TO_FIT}


def test_a_failure_of_unknown_cause_counts_less_than_one_of_memory() -> None:
    ran = [trial(config(4)), trial(config(8))]
    unknown = Trial(trial_id="f", workload=WORKLOAD, config=config(16), state=State.UNKNOWN)
    asked = [config(32, 1)]
    without, with_unknown, with_memory = (
        chances(trials, asked)[0] for trials in (ran, [*ran, unknown], [*ran, trial(config(16, 0, "b"), fits=False)])
    )
    assert with_memory < with_unknown < without
