from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.searchers.climb import Climb
from torchx_cubicml.searchers.scored_rows import rows_of
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config

SPACE = SearchSpace(
    parameters=(
        Parameter(name="layers", choices=("a", "b", "c"), per_layer=20),
        Parameter(name="batch", choices=tuple(range(1, 30))),
    )
).bind(workload={"world_size": 1}, current={})
GOOD = {"layers": ("b",) * 20, "batch": 12}


def near(configs: Sequence[Config]) -> NDArray[np.float64]:
    """Score: nothing counts but to be almost like the good config, with one layer otherwise."""
    return np.array(
        [-abs(sum(layer != "b" for layer in config["layers"]) - 1) - abs(config["batch"] - 14) for config in configs],
        dtype=np.float64,
    )


def test_it_finds_the_summit_near_its_start() -> None:
    (best,) = Climb(start=(GOOD,)).search(SPACE, near, count=1, rng=np.random.default_rng(0))
    assert best["batch"] == 14
    assert sum(layer != "b" for layer in best["layers"]) == 1


def test_a_start_outside_the_space_is_passed_over() -> None:
    outside = {"layers": ("z",) * 20, "batch": 12}
    assert rows_of(SPACE, [outside, GOOD]).tolist() == [list(SPACE.encode(GOOD))]
    assert len(Climb(start=(outside,)).search(SPACE, near, count=3, rng=np.random.default_rng(0))) == 3
