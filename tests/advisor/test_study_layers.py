"""Suggestions for a transformer with a sharding strategy per layer, whose shape the formulas know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor import Study, suggest
from torchx_cubicml.advisor.surrogates.transfer_prior import roofline_covers
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

N_LAYERS = 8
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
JOB = {"program": "train.py", "world_size": 64, "nproc_per_node": 8, "device": "NVIDIA A100-SXM4-80GB"}
# States of a layer take 12 GiB where nothing is sharded, and a device has 80.
MODEL = {"n_layers": N_LAYERS, "d_model": 8192, "d_ff": 32768, "seq_len": 2048, "vocab_size": 0, "precision": "bf16"}
WORKLOAD: dict[str, Value] = {**JOB, **MODEL, "attention_kernel": "flash"}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=N_LAYERS),
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
    )
)
OWN: Config = {"sharding_strategy": ("FULL_SHARD",) * N_LAYERS, "micro_batch_size": 1}
WHOLE = ("NO_SHARD",) * N_LAYERS
GIB = 2.0**30


def peak_gib(config: Config) -> float:
    return sum(float(part[0]) for part in Roofline().memory([{**WORKLOAD, **config}]).values()) / GIB


def tokens_per_second(config: Config) -> float:
    return float(Roofline().tokens_per_second([{**WORKLOAD, **config}])[0])


def launch(config: Config, number: int, workload: dict[str, Value]) -> Trial:
    """A launch on devices that are slower than the formulas assume, and on which less fits."""
    if peak_gib(config) > 70.0:
        return Trial.infeasible(workload=workload, config=config)
    return Trial.completed(workload=workload, config=config, tokens_per_second=0.6 * tokens_per_second(config))


def test_the_second_launch_of_a_plan_is_among_the_fastest_that_fit() -> None:
    own, second, *others = suggest(SPACE, workload=WORKLOAD, current=OWN, trials=[], count=4)
    assert own.config == OWN
    assert second.reason == "initial design: among the fastest by the step-time formulas"
    assert len(set(second.config["sharding_strategy"])) == 1
    assert peak_gib(second.config) < 60.0
    sizes = SPACE.parameters[1].choices
    alike = [
        {"sharding_strategy": (name,) * N_LAYERS, "micro_batch_size": size} for name in STRATEGIES for size in sizes
    ]
    assert tokens_per_second(second.config) > 0.98 * max(tokens_per_second(config) for config in alike)
    assert all("formulas" not in each.reason for each in others)


@pytest.mark.parametrize("is_known", [True, False], ids=["shape known", "shape unknown"])
def test_from_the_first_launch_on_formulas_exclude_what_cannot_fit(is_known: bool) -> None:
    workload = WORKLOAD if is_known else dict(JOB)
    trials = [launch(OWN, 0, workload)]
    found = []
    for number in range(1, 5):
        (next_one,) = suggest(SPACE, workload=workload, current=OWN, trials=trials, seed=number)
        found.append(next_one.config)
        trials.append(launch(next_one.config, number, workload))
    assert peak_gib({"sharding_strategy": WHOLE, "micro_batch_size": 1}) > 80.0
    assert any(config["sharding_strategy"] == WHOLE for config in found) is not is_known
    if is_known:
        assert tokens_per_second(found[0]) > 1.5 * tokens_per_second(OWN)


@pytest.mark.parametrize("workload", [WORKLOAD, JOB], ids=["shape known", "shape unknown"])
def test_formulas_cover_a_value_per_layer(workload: dict[str, Value]) -> None:
    trials = [launch(OWN, 0, dict(workload))]
    is_known = workload is WORKLOAD
    assert roofline_covers(trials) is is_known
    assert Study.of(SPACE, workload=workload, current=OWN, trials=trials).posterior.has_transfer_prior is is_known
