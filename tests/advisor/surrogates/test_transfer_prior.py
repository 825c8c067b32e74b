from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import suggest
from torchx_cubicml.advisor.surrogates.transfer_prior import roofline_covers
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

WORKLOAD = {
    "program": "train.py",
    "world_size": 64,
    "device": "NVIDIA H100 80GB HBM3",
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "vocab_size": 50_000,
    "seq_len": 4096,
    "attention_kernel": "sdpa_flash",
    "global_batch_size": 256,
}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="tp_degree", choices=(1, 2, 4, 8, 16, 32)),
        Parameter(name="micro_batch_size", choices=(1, 2, 4)),
        Parameter(name="zero_stage", choices=(0, 1)),
        Parameter(
            name="gradient_accumulation_steps",
            derive=parse_expression("global_batch_size / (micro_batch_size * dp_degree)", where="derive"),
        ),
    )
)
OWN = {"tp_degree": 32, "micro_batch_size": 1, "zero_stage": 1, "gradient_accumulation_steps": 128}


def ran(config: Config) -> Trial:
    seconds = sum(Roofline().explain({**WORKLOAD, **config, "dp_degree": 64 // config["tp_degree"]}).values())
    tokens = WORKLOAD["global_batch_size"] * WORKLOAD["seq_len"]
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=0.7 * tokens / seconds)


@pytest.mark.parametrize(
    ("trials", "covered"),
    [
        ([ran(OWN)], True),
        ([], False),
        ([Trial.infeasible(workload=WORKLOAD, config=OWN)], False),
        ([ran(OWN), replace(ran(OWN), workload={"program": "train.py", "world_size": 64})], False),
        ([replace(ran(OWN), config={**OWN, "sharding_strategy": ("FULL_SHARD",) * 32})], True),
    ],
    ids=["a transformer", "nothing measured", "none fitted", "facts are missing", "a value per layer"],
)
def test_formulas_cover_what_names_all_that_they_need(trials: list[Trial], covered: bool) -> None:
    assert roofline_covers(trials) is covered


@pytest.mark.parametrize("n_known", [1, 4])
def test_formulas_choose_launches_without_other_workloads(n_known: int) -> None:
    slow = [{**OWN, "zero_stage": zero, "micro_batch_size": batch} for batch in (1, 2) for zero in (1, 0)]
    trials = [ran({**each, "gradient_accumulation_steps": 128 // each["micro_batch_size"]}) for each in slow[:n_known]]
    (found,) = suggest(SPACE, workload=WORKLOAD, current=OWN, trials=trials, seed=1)
    assert found.config["tp_degree"] <= 8
    assert found.gain > 1.2


def test_the_first_launches_include_what_formulas_favour() -> None:
    found = suggest(SPACE, workload=WORKLOAD, current=OWN, trials=[], count=4)
    assert found[0].config == OWN
    seconds = {
        config_key(config): sum(
            Roofline().explain({**WORKLOAD, **config, "dp_degree": 64 // config["tp_degree"]}).values()
        )
        for config in SPACE.bind(workload=WORKLOAD, current=OWN).configs()
    }
    fast = np.quantile(list(seconds.values()), 0.3)
    for suggestion in found[1:]:
        assert "formulas" in suggestion.reason
        assert suggestion.throughput is None  # nothing was measured, so nothing is promised
        assert seconds[config_key(suggestion.config)] < fast
        assert suggestion.probability_to_fit > 0.5


def test_a_workload_outside_the_formulas_has_no_favourites() -> None:
    workload = {"program": "train.py", "world_size": 64, "global_batch_size": 256}
    for suggestion in suggest(SPACE, workload=workload, current=OWN, trials=[], count=4):
        assert "formulas" not in suggestion.reason


def test_a_favoured_user_config_is_still_named_the_users() -> None:
    pair = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 2)), SPACE.parameters[-1]))
    workload = {**WORKLOAD, "tp_degree": 2, "zero_stage": 1}
    own, other = ({"micro_batch_size": size, "gradient_accumulation_steps": 8 // size} for size in (1, 2))
    found = suggest(pair, workload=workload, current=own, trials=[], count=8)
    assert [each.config for each in found] == [own, other]
    assert found[0].reason == "baseline: your config, not measured yet"
    assert "formulas" in found[1].reason
