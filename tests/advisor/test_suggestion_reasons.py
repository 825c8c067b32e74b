from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.advisor.suggestion_reasons import (
    against_baseline,
    build_suggestions,
    differences,
    distance,
    without_effect,
)
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

CONFIG = {"micro_batch_size": 8, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "FULL_SHARD")}


def test_a_gain_says_whether_it_is_inside_the_noise() -> None:
    assert against_baseline(1.4, 1.2, 1.6) == "1.40x your config (1.20x to 1.60x)"
    assert "may be slower" in against_baseline(1.0, 0.9, 1.1)
    assert "may be slower" not in against_baseline(0.8, 0.7, 0.9)
    assert "may be slower" not in against_baseline(1.1, 1.0, 1.2)
    assert "may be slower" not in against_baseline(0.9, 0.8, 1.0)


def test_the_nearest_differs_in_the_fewest_entries() -> None:
    far = {**CONFIG, "micro_batch_size": 1}
    near = {**CONFIG, "sharding_strategy": ("NO_SHARD", "FULL_SHARD", "FULL_SHARD")}
    assert distance(CONFIG, near) == pytest.approx(1 / 3)
    assert distance(CONFIG, far) == 1.0
    assert distance(CONFIG, {**near, **far, "sharding_strategy": near["sharding_strategy"]}) == pytest.approx(4 / 3)
    assert differences(CONFIG, near) == "sharding_strategy differs in 1 of 3 layers"


def test_tables_are_named_so() -> None:
    parameter = Parameter(name="k", choices=(1, 2), per_table=3)
    space = SearchSpace(parameters=(parameter,))
    assert differences({"k": (1, 1, 2)}, {"k": (1, 2, 2)}, space) == "k differs in 1 of 3 tables"
    assert differences({"k": (1, 1, 2)}, {"k": (1, 2, 2)}) == "k differs in 1 of 3 layers"


def test_one_word_for_all_layers_differs_as_a_whole() -> None:
    other = {**CONFIG, "sharding_strategy": "FULL_SHARD"}
    assert distance(CONFIG, other) == 1.0
    assert differences(CONFIG, other).startswith("sharding_strategy FULL_SHARD instead of")


def test_parameters_with_effect_are_not_named() -> None:
    assert without_effect([]) == ""


def test_parameters_without_effect_are_named() -> None:
    assert (
        without_effect(["a", "b"])
        == 'a, b kept as typed: no effect observed or measured (observe = "" tunes it anyway)'
    )


WORKLOAD = {"program": "a.py", "world_size": 1}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
        Parameter(name="backend", choices=("a", "b")),
    )
).bind(workload=WORKLOAD, current={})


def of(batch: int, backend: str = "a") -> dict[str, object]:
    return {"micro_batch_size": batch, "backend": backend}


def posterior_of(*runs: tuple[dict[str, object], float, float | None]) -> Posterior:
    trials = [
        Trial(
            trial_id=f"{speed:.0f}",
            workload=WORKLOAD,
            config=config,
            state=State.COMPLETED,
            measurement=Measurement(tokens_per_second=speed, relative_error=error),
        )
        for config, speed, error in runs
    ]
    return Posterior.of(SPACE, workload=WORKLOAD, current=of(1), trials=trials, rng=np.random.default_rng(0))


RUNS = [
    (of(1), 100.0, 0.01),
    (of(1), 102.0, 0.02),
    (of(2), 150.0, 0.03),
    (of(2), 151.0, 0.05),
    (of(2, "b"), 140.0, 0.04),
]


def test_a_suggestion_states_medians_and_intervals() -> None:
    posterior = posterior_of(*RUNS)
    (found,) = build_suggestions(posterior, [(of(4), "a reason")], of(1))
    estimates = posterior.estimates([of(4), of(1)])
    gain = posterior.gains([of(4)], of(1))
    assert found.config == of(4)
    assert [found.throughput, found.baseline_throughput] == estimates.throughput.tolist()
    assert (found.low, found.high) == (estimates.quantile(0.1)[0], estimates.quantile(0.9)[0])
    expected = [gain.quantile(q)[0] for q in (0.1, 0.5, 0.9)]
    assert [found.gain_low, found.gain, found.gain_high] == pytest.approx(expected)
    assert found.low < found.throughput < found.high
    assert found.probability_to_fit == posterior.forecast([of(4)]).fits[0]
    assert found.n_trials == 5
    assert found.reason.startswith("a reason; expected ")


def test_where_nothing_is_known_a_suggestion_states_no_numbers() -> None:
    (found,) = build_suggestions(posterior_of(), [(of(4), "")], of(1))
    numbers = ("throughput", "low", "high", "baseline_throughput", "gain", "gain_low", "gain_high")
    assert {name: getattr(found, name) for name in numbers} == dict.fromkeys(numbers)
    assert found.reason == "explores untried values"
    assert build_suggestions(posterior_of(), [], of(1)) == []


def test_the_doubt_is_the_larger_of_the_lowest_of_both_configs() -> None:
    posterior = posterior_of(*RUNS)
    doubts = [each.doubt for each in build_suggestions(posterior, [(of(4), ""), (of(2), ""), (of(2, "b"), "")], of(1))]
    assert doubts == [0.01, 0.03, 0.04]


def test_the_nearest_trials_are_by_distance_then_speed() -> None:
    posterior = posterior_of(*RUNS, (of(1), 101.0, 0.06), (of(8), 90.0, 0.07))
    (found,) = build_suggestions(posterior, [(of(2, "b"), "")], of(1), n_nearest=3)
    assert [(near.throughput, near.trial_id, near.uncertainty) for near in found.nearest] == [
        (150.0, "150", 0.03),  # one parameter differs; of two runs the slower
        (101.0, "101", 0.06),  # both differ; of three runs the middle one; its best is 102
        (90.0, "90", 0.07),
    ]
    assert "most similar trial: backend a instead of b" in found.reason


def test_a_gain_over_itself_is_not_explained() -> None:
    (found,) = build_suggestions(posterior_of(*RUNS), [(of(1), "baseline")], of(1))
    assert found.gain == 1.0
    assert found.reason == "baseline"


def test_equally_near_and_fast_trials_keep_their_order() -> None:
    posterior = posterior_of(*RUNS, (of(8), 151.0, 0.01), (of(8, "b"), 300.0, 0.02))
    (found,) = build_suggestions(posterior, [(of(4), "")], of(1), n_nearest=5)
    assert [near.differs for near in found.nearest] == [
        "micro_batch_size 2 instead of 4",  # at best 151
        "micro_batch_size 8 instead of 4",  # 151, but launched later
        "micro_batch_size 1 instead of 4",
        "micro_batch_size 8 instead of 4, backend b instead of a",  # 300, but two differ
        "micro_batch_size 2 instead of 4, backend b instead of a",
    ]
    assert found.reason.startswith("expected ")
    assert found.reason.endswith("; most similar trial: micro_batch_size 2 instead of 4")


def test_near_trials_are_listed_only_if_asked_for() -> None:
    (found,) = build_suggestions(posterior_of(*RUNS), [(of(4), "")], of(1))
    assert found.nearest == ()
    assert found.reason.endswith("; explores untried values")


def test_a_user_config_out_of_memory_promises_no_gain() -> None:
    trials = [Trial.completed(workload=WORKLOAD, config=of(2), tokens_per_second=150.0), *(lost(of(8)) for _ in "ab")]
    trials.append(Trial.completed(workload=WORKLOAD, config=of(8), tokens_per_second=200.0))
    posterior = Posterior.of(SPACE, workload=WORKLOAD, current=of(8), trials=trials, rng=np.random.default_rng(0))
    (found,) = build_suggestions(posterior, [(of(2), "a reason")], of(8))
    assert found.throughput is not None
    assert (found.gain, found.baseline_throughput, found.reason) == (None, None, "a reason")


def lost(config: dict[str, object]) -> Trial:
    return Trial.infeasible(workload=WORKLOAD, config=config)


def test_a_config_never_measured_has_no_doubt() -> None:
    posterior = Posterior.of(
        SPACE, workload=WORKLOAD, current=of(1), trials=[lost(of(8))], rng=np.random.default_rng(0)
    )
    assert build_suggestions(posterior, [(of(8), "")], of(1))[0].doubt == 0.0
