from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.advisor import best_known, suggest
from torchx_cubicml.advisor.ineffective import _most_by_chance, ineffective_parameters
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

FREE = ("sharding_strategy", "micro_batch_size")
SEEN = {"sharding_strategy": "sharding_strategy"}


def trial_of(
    strategy: Value, speed: float, *, batch: int = 1, seen: Value | None = "NO_SHARD", error: float = 0.0, **more: Value
) -> Trial:
    config = {"sharding_strategy": strategy, "micro_batch_size": batch, **more}
    trial = Trial.completed(workload={}, config=config, tokens_per_second=speed)
    assert trial.measurement is not None
    observed = {} if seen is None else {"sharding_strategy": seen}
    return replace(trial, observed=observed, measurement=replace(trial.measurement, relative_error=error))


def found(*trials: Trial, noise: float = 0.02, objective: str = "tokens_per_second") -> tuple[str, ...]:
    return ineffective_parameters(trials, observed_as=SEEN, free=FREE, objective=objective, noise=lambda: noise)


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 102.0)], True),
        ([trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 140.0)], False),
        ([trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 108.0, error=0.2)], False),
        ([trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 100.0, seen="FULL_SHARD")], False),
        ([trial_of("FULL_SHARD", 100.0), trial_of("FULL_SHARD", 100.0)], False),
        ([trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 100.0, batch=2)], False),
        ([trial_of("FULL_SHARD", 100.0, seen=None), trial_of("NO_SHARD", 100.0, seen=None)], False),
        ([trial_of("NO_SHARD", 100.0), trial_of(("NO_SHARD", "NO_SHARD"), 100.0)], False),
        ([trial_of("FULL_SHARD", 100.0), trial_of(("NO_SHARD", "FULL_SHARD"), 101.0, seen=("NO_SHARD",) * 2)], True),
        ([trial_of("FULL_SHARD", 100.0, accum=4), trial_of("NO_SHARD", 101.0, accum=8)], True),
    ],
    ids=[
        "alike",
        "1.4-fold",
        "too uncertain",
        "observed to differ",
        "requested once",
        "nothing to compare",
        "not observed",
        "one request per layer",
        "one observation per layer",
        "derived values differ",
    ],
)
def test_observed_and_measured_must_agree(trials: list[Trial], expected: bool) -> None:
    assert found(*trials) == (("sharding_strategy",) if expected else ())


def test_a_difference_beyond_the_noise_is_an_effect() -> None:
    trials = [trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 102.0)]
    assert found(*trials, noise=0.02)
    assert not found(*trials, noise=0.002)


def test_pairs_of_launches_are_pooled() -> None:
    pairs = [(strategy, speed, batch) for batch in (1, 2, 4) for strategy, speed in (("A", 100.0), ("B", 106.0))]
    assert not found(*(trial_of(strategy, speed, batch=batch) for strategy, speed, batch in pairs), noise=0.03)
    balanced = [(strategy, 100.0 if strategy == "A" else 99.0 + batch, batch) for strategy, _, batch in pairs]
    assert found(*(trial_of(strategy, speed, batch=batch) for strategy, speed, batch in balanced), noise=0.03)


def test_only_the_objective_counts() -> None:
    assert not found(trial_of("FULL_SHARD", 100.0), trial_of("NO_SHARD", 100.0), objective="samples_per_second")


def test_noise_is_asked_for_only_if_needed() -> None:
    def never() -> float:
        raise AssertionError

    trials = [trial_of("FULL_SHARD", 100.0, seen="FULL_SHARD"), trial_of("NO_SHARD", 100.0)]
    assert ineffective_parameters(trials, observed_as=SEEN, free=FREE, objective="tokens_per_second", noise=never) == ()


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 3.84), (2, 5.99), (5, 11.07), (20, 31.41)])
def test_the_most_by_chance_is_chi_square(freedom: int, quantile: float) -> None:
    assert _most_by_chance(freedom) == pytest.approx(quantile, rel=0.03)


@given(st.floats(1.1, 5.0), st.integers(1, 4), st.floats(0.001, 0.1))
def test_an_effect_of_ten_per_cent_is_never_set_aside(effect: float, n_batches: int, noise: float) -> None:
    speeds = {"FULL_SHARD": 100.0, "NO_SHARD": 100.0 * effect}
    trials = [
        trial_of(each, batch * speed, batch=batch) for each, speed in speeds.items() for batch in range(n_batches)[1:]
    ]
    assert found(*trials, noise=noise) == ()


SPACE = """
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
per_layer = 4
flag = "--sharding"

[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch"
"""
SPEED = {"FULL_SHARD": 1.0, "SHARD_GRAD_OP": 1.25, "NO_SHARD": 1.5}


def measured(config: Config, rng: np.random.Generator) -> Trial:
    """Return a launch of a script that shards by itself: its strategy has an effect that the recorder cannot see."""
    factors = [SPEED[entry] for entry in config["sharding_strategy"]]
    speed = 100.0 * np.mean(factors) * math.sqrt(config["micro_batch_size"]) * math.exp(rng.normal(0.0, 0.01))
    trial = Trial.completed(workload={}, config=config, tokens_per_second=speed)
    return replace(trial, observed={"sharding_strategy": "NO_SHARD"})


def test_a_script_that_shards_by_itself_is_tuned() -> None:
    rng, space = np.random.default_rng(0), parse_space(SPACE, where="space.toml")
    own = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 1}
    trials: list[Trial] = []
    while len(trials) < 12:
        (suggestion,) = suggest(space, workload={}, current=own, trials=trials)
        trials.append(measured(suggestion.config, rng))
    best = best_known(space, workload={}, current=own, trials=trials)
    assert best is not None
    assert best.gain == pytest.approx(3.0, rel=0.05)
    assert "no effect" not in best.reason


def test_an_empty_observe_switches_it_off() -> None:
    own = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 1}
    trials = [
        replace(
            Trial.completed(workload={}, config={**own, "sharding_strategy": (each,) * 4}, tokens_per_second=speed),
            observed={"sharding_strategy": "NO_SHARD"},
        )
        for each, speed in [("FULL_SHARD", 100.0), ("NO_SHARD", 100.5)]
    ]
    for observe, aside in [("", True), ('observe = ""', False)]:
        space = parse_space(SPACE.replace("per_layer = 4", f"per_layer = 4\n{observe}"), where="space.toml")
        (suggestion,) = suggest(space, workload={}, current=own, trials=trials)
        assert ("no effect observed or measured" in suggestion.reason) == aside
