from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.stats import chisquare

from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.random import Random
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Config

FALSE_ALARM = 1e-4  # of each statistical test


def space_of(*constraints: str) -> SearchSpace:
    """Layers, a conditional parameter and a derived one: illegal vectors are many, and of different kinds."""
    return SearchSpace(
        parameters=(
            Parameter(name="layers", choices=("a", "b", "c"), per_layer=2),
            Parameter(name="micro_batch_size", choices=(1, 2, 3, 4)),
            Parameter(name="tp_degree", choices=(1, 2, 4)),
            Parameter(
                name="overlap", choices=(False, True), when=parse_expression("tp_degree > 1", where="w"), default=False
            ),
            Parameter(name="accumulation", derive=parse_expression("16 / (micro_batch_size * tp_degree)", where="d")),
        ),
        constraints=tuple(parse_expression(text, where="constraints") for text in constraints),
    ).bind(workload={"world_size": 4}, current={})


@pytest.mark.parametrize(
    "space", [space_of(), space_of("micro_batch_size * tp_degree <= 8")], ids=["divides", "divides and is bounded"]
)
def test_draws_are_uniform_over_the_legal_configs(space: SearchSpace) -> None:
    legal = {identity(config) for config in space.configs()}
    assert len(legal) == space.size()
    counts = Counter(map(identity, space.sample(100 * len(legal), rng=np.random.default_rng(0))))
    assert counts.keys() == legal
    assert chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_every_config_has_the_same_chance_to_be_scored() -> None:
    space, asked = space_of(), Counter()

    def score(configs: Sequence[Config]) -> np.ndarray:
        asked.update(map(identity, configs))
        return np.zeros(len(configs))

    for seed in range(200):
        Random(draws=20).search(space, score, count=1, rng=np.random.default_rng(seed))
    assert len(asked) == space.size()
    # Without repeats within a search the counts vary less than chi-square allows for.
    assert chisquare(list(asked.values())).pvalue > FALSE_ALARM


def sizes_and_found(searcher: Random, places: int, *, count: int, seed: int = 0) -> tuple[list[int], int]:
    """Numbers of configs scored at once, and the number proposed, in a space of some places."""
    space, sizes = SearchSpace(parameters=(Parameter(name="place", choices=tuple(range(places))),)), list[int]()

    def score(configs: Sequence[Config]) -> np.ndarray:
        sizes.append(len(configs))
        return np.zeros(len(configs))

    bound = space.bind(workload={"world_size": 1}, current={})
    return sizes, len(searcher.search(bound, score, count=count, rng=np.random.default_rng(seed)))


def test_draws_go_on_until_there_are_enough() -> None:
    # 20 draws of 21 places repeat some: in a few of these searches less than ten are left.
    assert all(sizes_and_found(Random(draws=2), 21, count=10, seed=seed)[1] == 10 for seed in range(300))


def test_all_draws_are_scored_at_once() -> None:
    ((size,), found) = sizes_and_found(Random(), 100_000, count=5)
    assert 980 < size <= 1000
    assert found == 5
    # Half of the draws is enough, rounded down: of three draws, one.
    assert all(len(sizes_and_found(Random(draws=3), 4, count=1, seed=seed)[0]) == 1 for seed in range(100))
