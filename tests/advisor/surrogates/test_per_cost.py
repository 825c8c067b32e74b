"""A study of an objective per cost learns throughput alone, and knows what each config costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import Study
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace

SPACE = """
objective = "{objective}"
[prices]
partition = {{ fast = 8.0, slow = 1.0 }}
[parameters.partition]
choices = ["fast", "slow"]
scheduler = "partition"
[parameters.nproc_per_node]
choices = [1, 2, 4]
torchrun = "--nproc_per_node"
changes_training = true
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch_size"
changes_training = true
"""
CURRENT = {"partition": "slow", "nproc_per_node": 1, "micro_batch_size": 1, "world_size": 1}
WORKLOAD = {"program": "train.py", "nnodes": 1}


def rate(partition: str, processes: int, batch: int) -> float:
    return 100.0 * (3.0 if partition == "fast" else 1.0) * processes**0.6 * batch**0.2


def trials() -> list[Trial]:
    rows = [
        (kind, processes, batch)
        for kind in ("fast", "slow")
        for processes in (1, 2, 4)
        for batch in (1, 2)
        for _ in range(2)
    ]
    return [
        replace(
            Trial.completed(
                workload=WORKLOAD,
                config={
                    "partition": kind,
                    "nproc_per_node": processes,
                    "micro_batch_size": batch,
                    "world_size": processes,
                },
                tokens_per_second=rate(kind, processes, batch) * (1 + 0.002 * (number % 3)),
            ),
            trial_id=f"t{number}",
            observed={"world_size": processes, "device": "H100" if kind == "fast" else "A100", "partition": kind},
            ended_at=f"2026-01-01T00:{number:02d}:00+00:00",
        )
        for number, (kind, processes, batch) in enumerate(rows)
    ]


def study(objective: str) -> Study:
    space: SearchSpace = parse_space(SPACE.format(objective=objective), where="x.toml")
    return Study.of(space, workload=WORKLOAD, current=CURRENT, trials=trials())


@pytest.mark.parametrize(
    ("objective", "partition", "processes"),
    [
        ("tokens_per_second", "fast", 4),
        ("tokens_per_device_hour", "fast", 1),
        ("tokens_per_currency", "slow", 1),
    ],
)
def test_the_best_machine_follows_the_objective(objective: str, partition: str, processes: int) -> None:
    best = study(objective).best_known()
    assert best is not None
    assert (best.config["partition"], best.config["nproc_per_node"]) == (partition, processes)
    per = {"tokens_per_second": 1.0, "tokens_per_device_hour": 3600 / processes, "tokens_per_currency": 3600.0}
    unit = "" if objective == "tokens_per_second" else f" in {objective.replace('_', ' ')}"
    assert best.reason.endswith(f"x){unit}")
    assert best.throughput == pytest.approx(rate(partition, processes, 2) * per[objective], rel=0.05)


@pytest.mark.parametrize("objective", ["tokens_per_device_hour", "tokens_per_currency"])
def test_the_cost_is_known_and_shifts_the_forecast(objective: str) -> None:
    plain, divided = (study(name).posterior for name in ("tokens_per_second", objective))
    config = {"partition": "fast", "nproc_per_node": 4, "micro_batch_size": 4, "world_size": 4}
    (before,), (after,) = (each.forecast([config]).logarithm for each in (plain, divided))
    price = 8.0 if objective == "tokens_per_currency" else 1.0
    assert before - after == pytest.approx(math.log(4 * price / 3600))
    (before,), (after,) = (each.gains([config], CURRENT).logarithm for each in (plain, divided))
    assert before - after == pytest.approx(math.log(4 * price))
    assert plain.forecast([config]).spread == pytest.approx(divided.forecast([config]).spread)


@pytest.mark.parametrize("objective", ["tokens_per_device_hour", "tokens_per_currency"])
def test_the_cost_shifts_the_forecast_of_one_predictor_too(objective: str) -> None:
    plain, divided = (
        study(name).posterior.by_predictor("boosting", rng=np.random.default_rng(0))
        for name in ("tokens_per_second", objective)
    )
    config = {"partition": "fast", "nproc_per_node": 4, "micro_batch_size": 4, "world_size": 4}
    (before,), (after,) = (each.forecast([config]).logarithm for each in (plain, divided))
    price = 8.0 if objective == "tokens_per_currency" else 1.0
    assert before - after == pytest.approx(math.log(4 * price / 3600))
