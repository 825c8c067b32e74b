"""What each parameter of the best config is worth."""

from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.advisor import Study, sensitivity
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

WORKLOAD = {"program": "train.py", "world_size": 2}
STRATEGIES = ("FULL_SHARD", "NO_SHARD")
SPACE = SearchSpace(
    parameters=(
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=4),
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
        Parameter(name="backend", choices=("a", "b")),
    )
)
CURRENT = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 1, "backend": "a"}
GIVEN = {"workload": WORKLOAD, "current": CURRENT}


def launched(config: dict[str, object]) -> Trial:
    speed = 100.0 * config["micro_batch_size"] ** 0.5 * (1.0 + 0.05 * config["sharding_strategy"].count("NO_SHARD"))
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    drawn = SPACE.bind(**GIVEN).sample(25, rng=np.random.default_rng(3))
    best = {**CURRENT, "sharding_strategy": ("NO_SHARD",) * 4, "micro_batch_size": 8}
    return [launched(config) for config in [*drawn, best, {**best, "micro_batch_size": 4}]]


def test_parameters_are_sorted_by_their_worth(trials: list[Trial]) -> None:
    worths = sensitivity(Study.of(SPACE, **GIVEN, trials=trials))
    assert [worth.name for worth in worths] == ["micro_batch_size", "sharding_strategy", "backend"]
    batch, layers, backend = worths
    assert batch.own.value == 1
    assert batch.own.predicted == pytest.approx(8**-0.5, rel=0.1)
    assert batch.own.low < batch.own.predicted < batch.own.high
    assert layers.own.value == ("FULL_SHARD",) * 4
    assert layers.own.predicted == pytest.approx(1 / 1.2, rel=0.05)
    assert [each.predicted for each in backend.alternatives] == pytest.approx([1.0], abs=0.03)


def test_what_differs_in_one_parameter_alone_is_shown_as_measured(trials: list[Trial]) -> None:
    batch = sensitivity(Study.of(SPACE, **GIVEN, trials=trials))[0]
    halved = next(each for each in batch.alternatives if each.value == 4)
    assert halved.measured == pytest.approx(0.5**0.5)
    assert halved.n_measured == 1


def test_layers_are_compared_with_one_choice_for_all() -> None:
    mixed = {**CURRENT, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "NO_SHARD", "FULL_SHARD"), "micro_batch_size": 8}
    trials = [launched(config) for config in (CURRENT, mixed, {**CURRENT, "micro_batch_size": 4})]
    layers = next(
        each for each in sensitivity(Study.of(SPACE, **GIVEN, trials=trials)) if each.name == "sharding_strategy"
    )
    assert layers.value == mixed["sharding_strategy"]
    assert ("FULL_SHARD",) * 4 in [each.value for each in layers.alternatives]


def test_nothing_measured_nothing_reported() -> None:
    assert sensitivity(Study.of(SPACE, **GIVEN, trials=[])) == ()


def test_what_is_idle_at_the_winner_is_not_compared_with_itself() -> None:
    space = SearchSpace(
        parameters=(
            Parameter(name="micro_batch_size", choices=(1, 2, 4)),
            Parameter(
                name="overlap",
                choices=(False, True),
                when=parse_expression("micro_batch_size > 1", where="when"),
                default=False,
            ),
        )
    )
    speeds = {(1, False): 130.0, (2, True): 100.0, (2, False): 101.0, (4, True): 90.0}
    trials = [
        Trial.completed(
            workload=WORKLOAD, config={"micro_batch_size": batch, "overlap": overlap}, tokens_per_second=speed
        )
        for (batch, overlap), speed in speeds.items()
    ]
    current = {"micro_batch_size": 2, "overlap": True}
    worths = sensitivity(Study.of(space, workload=WORKLOAD, current=current, trials=trials))
    assert [len(worth.alternatives) for worth in sorted(worths, key=lambda worth: worth.name)] == [2, 0]
