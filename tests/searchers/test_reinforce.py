from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.reinforce import Reinforce, _Samples, advantages
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import legal_rows, vectors_of
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config


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
        self.space, self.asked = space, list[int]()
        self.wanted = np.array([index % 3 for index in range(len(space.dimensions))])

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        return self.of_vectors(vectors_of(self.space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        assert legal_rows(self.space, vectors).all()
        self.asked.append(len(vectors))
        return (vectors == self.wanted).sum(axis=1).astype(np.float64)


def test_a_hundred_layers_are_searched() -> None:
    space = space_of()
    assert space.size() > 1e48
    score = Likeness(space)
    found = Reinforce().search(space, score, count=10, rng=np.random.default_rng(0))
    assert len(score.asked) == 120
    assert score.asked[0] == 8 * 64
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


def plain_advantages(row: list[float]) -> list[float]:
    """The same by the definition, for one search."""
    known = [score for score in row if np.isfinite(score)]
    if not known:
        return [0.0] * len(row)
    worst, width = min(known), max(known) - min(known)
    filled = [score if np.isfinite(score) else worst - (width / 2 if width else 1.0) for score in row]
    spread = float(np.std(filled))
    return [(score - float(np.mean(filled))) / (spread or 1.0) for score in filled]


def test_advantages_of_each_search_are_its_own() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, 6)) * np.array([[10.0**power] for power in range(-4, 5)])
    table[rng.random(table.shape) < 0.3] = -np.inf
    table[rng.random(table.shape) < 0.1] = np.nan
    table = np.vstack([table, [[-np.inf] * 6, [7.0] * 6, [7.0] * 5 + [np.nan], [-3.0] * 6]])
    wanted = [plain_advantages(row) for row in table.tolist()]
    np.testing.assert_allclose(advantages(table), wanted, rtol=1e-9, atol=1e-12)


def test_policies_that_sampled_too_few_are_filled_up() -> None:
    space, score, sizes = space_of(), Likeness(space_of()), []

    def counted(configs: Sequence[Config]) -> NDArray[np.float64]:
        sizes.append(len(configs))
        return score(configs)

    short = Reinforce(searches=1, batch=1, steps=1)
    found = short.search(space, counted, count=40, rng=np.random.default_rng(0))
    assert len({identity(config) for config in found}) == 40
    assert sizes == [1, 80]
    assert len(short.search(space, counted, count=1, rng=np.random.default_rng(0))) == 1
    assert sizes == [1, 80, 1]


def samples_of_places() -> _Samples:
    """Samples of numbers, whose score is the number."""
    space = SearchSpace(parameters=(Parameter(name="place", choices=tuple(range(40))),))
    return _Samples(
        space.bind(workload={"world_size": 1}, current={}),
        lambda configs: np.array([float(config["place"]) for config in configs]),
    )


def test_shares_of_three_searches_are_rounded_up() -> None:
    samples = samples_of_places()
    samples.scores(np.array([[[10], [11], [12]], [[20], [21], [22]], [[30], [31], [32]]]))
    found = {count: samples.tops(count, searches=3).ravel().tolist() for count in (3, 4, 6)}
    assert found == {3: [32, 22, 12], 4: [32, 31, 22, 21], 6: [32, 31, 22, 21, 12, 11]}


def test_proposals_are_shared_by_the_searches() -> None:
    samples = samples_of_places()
    first = samples.scores(np.array([[[1], [2], [2]], [[19], [18], [2]]]))
    assert first.tolist() == [[1.0, 2.0, 2.0], [19.0, 18.0, 2.0]]
    assert samples.scores(np.array([[[0], [19], [3]], [[17], [16], [3]]])).tolist() == [[0.0, 19.0, 3.0], [17.0, 16, 3]]
    # The first search sampled 0, 1, 2, 3 first; the second 16 to 19.
    assert [samples.tops(count, searches=2).ravel().tolist() for count in (1, 2, 3, 4, 7)] == [
        [19],
        [19, 3],
        [19, 18, 3],
        [19, 18, 3, 2],
        [19, 18, 17, 16, 3, 2, 1],
    ]
