from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.reinforce import Reinforce, advantages
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import legal_rows, vectors_of
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config


def space_of(*constraints: str, n_layers: int = 100) -> SearchSpace:
    return SearchSpace(
        parameters=(
            Parameter(name="layers", choices=("a", "b", "c"), per_layer=n_layers),
            Parameter(name="batch", choices=tuple(range(1, 26))),
        ),
        constraints=tuple(parse_expression(text, where="constraints") for text in constraints),
    ).bind(workload={"world_size": 8}, current={})


class Likeness:
    """A score that takes rows: how many layers are as they should be; counts the rows and checks each."""

    def __init__(self, space: SearchSpace) -> None:
        self.space, self.asked = space, 0
        self.wanted = np.array([index % 3 for index in range(len(space.dimensions))])

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        return self.of_vectors(vectors_of(self.space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        assert legal_rows(self.space, vectors).all()
        self.asked += len(vectors)
        return (vectors == self.wanted).sum(axis=1).astype(np.float64)


def test_a_hundred_layers_are_searched() -> None:
    space = space_of()
    assert space.size() > 1e48
    score = Likeness(space)
    found = Reinforce().search(space, score, count=10, rng=np.random.default_rng(0))
    assert score(found)[0] >= 90  # of 101; the best of as many uniform draws has about 55


def test_rows_and_configs_lead_to_the_same() -> None:
    space = space_of("batch != 3", n_layers=12)
    rows = Likeness(space)
    by_rows = Reinforce(steps=10).search(space, rows, count=5, rng=np.random.default_rng(1))
    by_configs = Reinforce(steps=10).search(space, rows.__call__, count=5, rng=np.random.default_rng(1))
    assert by_rows == by_configs


def test_no_row_is_scored_twice() -> None:
    space = space_of(n_layers=9)
    seen: set[object] = set()

    def once(configs: Sequence[Config]) -> NDArray[np.float64]:
        keys = {identity(config) for config in configs}
        assert len(keys) == len(configs)
        assert not keys & seen
        seen.update(keys)
        return np.zeros(len(configs))

    assert len(Reinforce(steps=20).search(space, once, count=3, rng=np.random.default_rng(0))) == 3


def test_forbidden_configs_are_avoided() -> None:
    space = space_of(n_layers=30)
    score = Likeness(space)

    def walled(configs: Sequence[Config]) -> NDArray[np.float64]:
        rows = vectors_of(space, configs)
        return np.where((rows == 2).sum(axis=1) > 8, -np.inf, score.of_vectors(rows))

    found = Reinforce().search(space, walled, count=20, rng=np.random.default_rng(0))
    assert len(found) == 20
    assert np.isfinite(walled(found)).all()
    assert score(found)[0] >= 26  # of 31; 29 is the best behind the wall


def test_every_search_has_a_part_in_the_round() -> None:
    space = space_of(n_layers=40)

    def two_summits(configs: Sequence[Config]) -> NDArray[np.float64]:
        rows = vectors_of(space, configs)
        return np.maximum((rows == 0).sum(axis=1), (rows == 2).sum(axis=1)).astype(np.float64)

    found = Reinforce(searches=6).search(space, two_summits, count=30, rng=np.random.default_rng(0))
    leaning = {max("abc", key=config["layers"].count) for config in found}
    assert leaning == {"a", "c"}


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [([0.0, 0.0], [0.0, 0.0]), ([-np.inf, np.nan], [0.0, 0.0]), ([1.0, -np.inf], [1.0, -1.0])],
    ids=["alike", "nothing legal", "one of two"],
)
def test_advantages_are_centred_and_finite(scores: list[float], wanted: list[float]) -> None:
    assert advantages(np.array([scores])).tolist() == [wanted]


def test_a_wall_is_worse_than_the_worst_beside_it() -> None:
    found = advantages(np.array([[3.0, 1.0, -np.inf, np.nan]]))[0]
    assert found[0] > found[1] > found[2] == found[3]
    assert found.mean() == pytest.approx(0.0)
