from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Config

SPACE = SearchSpace(
    parameters=(
        Parameter(name="layers", choices=("a", "b", "c"), per_layer=64),
        Parameter(name="batch", choices=(1, 2)),
    )
).bind(workload={"world_size": 1}, current={})
NEEDLE = {"layers": tuple("abcc" * 16), "batch": 2}


def likeness(configs: Sequence[Config]) -> np.ndarray:
    return np.array(
        [sum(a == b for a, b in zip(config["layers"], NEEDLE["layers"], strict=True)) for config in configs],
        dtype=float,
    )


def needle_in_hay(configs: Sequence[Config]) -> np.ndarray:
    return np.array([float(config == NEEDLE) for config in configs])


def test_a_config_known_to_be_good_is_a_start() -> None:
    found = Evolution(start=(NEEDLE,)).search(SPACE, needle_in_hay, count=1, rng=np.random.default_rng(0))
    assert found == [NEEDLE]


def test_a_start_outside_the_space_is_passed_over() -> None:
    strange = {"layers": ("z",) * 64, "batch": 2}
    found = Evolution(start=(strange, {})).search(SPACE, likeness, count=1, rng=np.random.default_rng(0))
    assert found[0] in SPACE


def test_a_hundred_layers_are_searched_in_seconds() -> None:
    started = time.process_time()
    found = Evolution().search(SPACE, likeness, count=5, rng=np.random.default_rng(0))
    assert time.process_time() - started < 60.0  # about 2 s of one core
    assert likeness(found)[0] >= 40  # uniform draws of the same number reach about 35
