"""What holds of every searcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers import SEARCHERS, searcher_named
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.random import Random
from torchx_cubicml.searchers.reinforce import Reinforce
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers import Searcher

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def space_of(*, n_layers: int) -> SearchSpace:
    space = SearchSpace(
        parameters=(
            Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers"),
            Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
            Parameter(name="tp_degree", choices=(1, 2, 4)),
        ),
        constraints=(parse_expression("micro_batch_size * tp_degree <= 16", where="constraints"),),
    )
    return space.bind(workload={"world_size": 4, "n_layers": n_layers}, current={})


SMALL, LARGE = space_of(n_layers=2), space_of(n_layers=12)


def toy(configs: Sequence[Config]) -> NDArray[np.float64]:
    """Score: every layer wants another strategy, and the batch wants to be eight."""
    scores = []
    for config in configs:
        layers = config["sharding_strategy"]
        right = sum(name == STRATEGIES[position % 3] for position, name in enumerate(layers))
        scores.append(right - abs(np.log2(config["micro_batch_size"]) - 3) - config["tp_degree"])
    return np.array(scores, dtype=np.float64)


def search(make: Callable[[], Searcher], space: SearchSpace, *, count: int, seed: int = 0) -> list[Config]:
    return make().search(space, toy, count=count, rng=np.random.default_rng(seed))


# More than any searcher lists unasked, and less than what may be asked for.
MEDIUM = SearchSpace(parameters=tuple(Parameter(name=name, choices=tuple(range(50))) for name in ("one", "two")))

# Few are legal, and where fewer entries may be read, too many to read through: how many is not known.
COUNTLESS = SearchSpace(
    parameters=tuple(Parameter(name=name, choices=tuple(range(1, 121))) for name in ("batch", "rounds")),
    constraints=(parse_expression("batch * rounds == 240", where="constraints"),),
)

EVERY = pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS.keys())
LARGE_SPACE_SEARCHERS = [name for name in SEARCHERS if name != "exhaustive"]
OF_LARGE_SPACES = pytest.mark.parametrize(
    "make", [SEARCHERS[name] for name in LARGE_SPACE_SEARCHERS], ids=LARGE_SPACE_SEARCHERS
)


@EVERY
class TestEverySearcher:
    def test_proposals_are_legal_and_distinct(self, make: Callable[[], Searcher]) -> None:
        found = search(make, SMALL, count=20)
        assert len({identity(config) for config in found}) == len(found) == 20
        assert all(config in SMALL for config in found)

    def test_best_come_first(self, make: Callable[[], Searcher]) -> None:
        scores = toy(search(make, SMALL, count=20)).tolist()
        assert scores == sorted(scores, reverse=True)

    def test_a_smaller_space_gives_all_that_it_holds(self, make: Callable[[], Searcher]) -> None:
        found = search(make, SMALL, count=1000)
        assert len(found) == SMALL.size() == len({identity(config) for config in found})

    def test_a_space_over_the_listing_limit_gives_all_its_configs(self, make: Callable[[], Searcher]) -> None:
        found = make().search(MEDIUM, lambda configs: np.zeros(len(configs)), count=3000, rng=np.random.default_rng(0))
        assert len(found) == MEDIUM.size() == len({identity(config) for config in found})

    def test_the_best_of_a_small_space_is_found(self, make: Callable[[], Searcher]) -> None:
        best = max(SMALL.configs(), key=lambda config: toy([config])[0])
        assert search(make, SMALL, count=1) == [best]

    def test_a_score_of_minus_infinity_is_never_proposed(self, make: Callable[[], Searcher]) -> None:
        def picky(configs: Sequence[Config]) -> NDArray[np.float64]:
            large = np.array([config["micro_batch_size"] > 2 for config in configs])
            return np.where(large, [(-np.inf, np.nan)[index % 2] for index in range(len(configs))], toy(configs))

        found = make().search(SMALL, picky, count=1000, rng=np.random.default_rng(0))
        assert len(found) == sum(config["micro_batch_size"] <= 2 for config in SMALL.configs())
        assert all(config["micro_batch_size"] <= 2 for config in found)

    def test_scores_of_minus_infinity_alone_give_no_proposal(self, make: Callable[[], Searcher]) -> None:
        found = make().search(
            SMALL, lambda configs: np.full(len(configs), -np.inf), count=3, rng=np.random.default_rng(0)
        )
        assert found == []


@OF_LARGE_SPACES
def test_a_search_ends_where_few_configs_are_legal(
    make: Callable[[], Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("decision_diagram", "enumeration"):
        monkeypatch.setattr(f"torchx_cubicml.space.{module}.MAX_READS", 20_000)
    space = COUNTLESS.bind(workload={"world_size": 1}, current={})
    assert space.size(limit=10_000) == 10_000
    found = make().search(space, lambda configs: np.zeros(len(configs)), count=40, rng=np.random.default_rng(0))
    assert 0 < len({identity(config) for config in found}) == len(found) <= 20
    assert all(config["batch"] * config["rounds"] == 240 for config in found)


@OF_LARGE_SPACES
class TestEverySearcherOfLargeSpaces:
    def test_proposals_are_legal_distinct_and_counted(self, make: Callable[[], Searcher]) -> None:
        found = search(make, LARGE, count=50)
        assert len({identity(config) for config in found}) == len(found) == 50
        assert all(config in LARGE for config in found)

    def test_same_seed_same_proposals(self, make: Callable[[], Searcher]) -> None:
        assert search(make, LARGE, count=5, seed=7) == search(make, LARGE, count=5, seed=7)

    def test_the_score_is_asked_about_legal_configs_only(self, make: Callable[[], Searcher]) -> None:
        def strict(configs: Sequence[Config]) -> NDArray[np.float64]:
            assert all(config in LARGE for config in configs)
            return toy(configs)

        assert make().search(LARGE, strict, count=3, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("searcher", "count", "most"),
    [
        (Exhaustive(limit=30), 1, 30),
        (Random(draws=20), 1, 20),
        (Random(draws=20), 15, 30),
        (Evolution(children=5, generations=4), 1, 20),
        (Evolution(children=5, generations=4), 15, 30),
        (Reinforce(searches=2, batch=3, steps=2), 1, 24),
        (Reinforce(searches=2, batch=3, steps=2), 15, 30),
    ],
    ids=str,
)
def test_a_space_up_to_the_budget_is_listed(searcher: Searcher, count: int, most: int) -> None:
    def was_listed(size: int) -> bool:
        space = SearchSpace(parameters=(Parameter(name="place", choices=tuple(range(size))),))
        asked: list[list[object]] = []

        def score(configs: Sequence[Config]) -> NDArray[np.float64]:
            asked.append([config["place"] for config in configs])
            return np.array([config["place"] for config in configs], dtype=np.float64)

        bound = space.bind(workload={"world_size": 1}, current={})
        searcher.search(bound, score, count=count, rng=np.random.default_rng(0))
        return asked == [list(range(size))]

    assert was_listed(most)
    if isinstance(searcher, Exhaustive):
        with pytest.raises(SpaceError, match="limited to 30 configs"):
            was_listed(most + 1)
    else:
        assert not was_listed(most + 1)


def test_searchers_have_names_and_take_a_start() -> None:
    start = ({"micro_batch_size": 1},)
    assert [searcher_named(name, start=start) for name in SEARCHERS] == [
        Random(),
        Exhaustive(),
        Reinforce(),
        Evolution(start=start),
    ]
    with pytest.raises(SpaceError, match=r"unknown searcher 'luck'; choose from random, exhaustive, reinforce, evol"):
        searcher_named("luck")


def test_evolution_beats_uniform_draws_of_the_same_number() -> None:
    asked = 0

    def counting(configs: Sequence[Config]) -> NDArray[np.float64]:
        nonlocal asked
        asked += len(configs)
        return toy(configs)

    found = SEARCHERS["evolution"]().search(LARGE, counting, count=1, rng=np.random.default_rng(0))
    uniform = toy(LARGE.sample(asked, rng=np.random.default_rng(1))).max()
    assert toy(found)[0] == 11.0  # the optimum: all 12 layers right, batch 8, one less for tp_degree 1
    assert toy(found)[0] > uniform
