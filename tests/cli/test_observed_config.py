from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.cli.observed_config import config_texts, differing_values
from torchx_cubicml.records.trial import Trial

RAN = Trial.completed(
    workload={}, config={"micro_batch_size": 4, "sharding_strategy": ("FULL_SHARD",) * 2}, tokens_per_second=9.0
)


def test_what_was_observed_otherwise_stands_beside_what_was_requested() -> None:
    trial = replace(RAN, observed={"micro_batch_size": 8, "sharding_strategy": "NO_SHARD"})
    assert config_texts(trial) == ["batch 4 (observed 8)", "sharding FULL_SHARD (observed NO_SHARD)"]


@pytest.mark.parametrize(
    "observed",
    [{}, {"micro_batch_size": 4, "sharding_strategy": "FULL_SHARD"}, {"global_batch_size": 8}],
    ids=["nothing", "the same", "of nothing requested"],
)
def test_other_configs_are_shown_as_requested(observed: dict[str, str | int]) -> None:
    trial = replace(RAN, observed=observed)
    assert differing_values(trial) == {}
    assert config_texts(trial) == ["batch 4", "sharding 2xFULL_SHARD"]


def test_without_a_request_the_observed_config_is_shown() -> None:
    assert config_texts(replace(RAN, config={}, observed={"micro_batch_size": 8})) == ["batch 8"]
