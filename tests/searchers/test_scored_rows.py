from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers import scored_rows
from torchx_cubicml.searchers.scored_rows import ScoredRows, as_legal, rows_of
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config

SPACE = SearchSpace(
    parameters=(
        Parameter(name="tp", choices=(1, 2)),
        Parameter(name="overlap", choices=(0, 1), when=parse_expression("tp > 1", where="test"), default=0),
        Parameter(name="batch", choices=(1, 2, 3, 4)),
    ),
    constraints=(parse_expression("tp * batch <= 4", where="test"),),
).bind(workload={"world_size": 2}, current={})


class Batches:
    """Score: the batch; NaN for none at all."""

    def __init__(self) -> None:
        self.asked: list[Config] = []

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        self.asked += configs
        return np.array([np.nan if config["batch"] == 3 else config["batch"] for config in configs], dtype=np.float64)


def test_a_choice_for_an_idle_parameter_gives_way() -> None:
    rows = as_legal(SPACE, np.array([[0, 1, 3], [1, 1, 1], [1, 0, 3]]))
    assert sorted(rows.tolist()) == [[0, 0, 3], [1, 1, 1]]  # the third breaks the constraint


def test_rows_are_scored_once_before_they_are_proposed() -> None:
    score = Batches()
    ranking = ScoredRows(SPACE, score)
    for _ in range(2):
        ranking.add(np.array([[0, 0, 1], [0, 0, 3], [0, 1, 1], [0, 0, 2]]))
    assert len(ranking) == len(score.asked) == 3
    assert [config["batch"] for config in ranking.configs(5)] == [4, 2]
    assert ranking.best(1).tolist() == [[0, 0, 3]]


def test_draws_are_legal_rows() -> None:
    score = Batches()
    ScoredRows(SPACE, score).draw(50, np.random.default_rng(0))
    assert {int(str(config["batch"])) for config in score.asked} == {1, 2, 3, 4}
    assert all(config in SPACE for config in score.asked)


PLAIN = SearchSpace(
    parameters=(Parameter(name="one", choices=(1, 2, 3)), Parameter(name="other", choices=(1, 2, 3))),
    constraints=(parse_expression("one != other", where="test"),),
).bind(workload={"world_size": 1}, current={})


def test_infinite_scores_stand_at_the_ends() -> None:
    worth = {(0, 1): 1.0, (0, 2): np.inf, (1, 0): -np.inf, (1, 2): np.nan, (2, 0): -5.0}
    ranking = ScoredRows(
        PLAIN, lambda configs: np.array([worth[config["one"] - 1, config["other"] - 1] for config in configs])
    )
    numbers = ranking.numbers(np.array(list(worth)))
    assert numbers.tolist() == ranking.numbers(np.array(list(worth))).tolist() == [0, 1, 2, 3, 4]
    assert ranking.scores(numbers).tolist() == [1.0, np.inf, -np.inf, -np.inf, -5.0]
    assert ranking.order().tolist() == [1, 0, 4]
    assert ranking.rows(np.array([4, 0])).tolist() == [[2, 0], [0, 1]]
    assert ranking.best(2).tolist() == [[0, 2], [0, 1]]


def test_equal_scores_stand_in_the_order_of_scoring() -> None:
    ranking = ScoredRows(PLAIN, lambda configs: np.zeros(len(configs)))
    ranking.add(np.array([[2, 0], [0, 1], [1, 2]]))
    assert ranking.best(3).tolist() == [[2, 0], [0, 1], [1, 2]]
    assert ranking.best(0).shape == (0, 2)
    line = SearchSpace(parameters=(Parameter(name="place", choices=tuple(range(200))),))
    many = ScoredRows(
        line.bind(workload={}, current={}), lambda configs: np.array([float(config["place"]) % 3 for config in configs])
    )
    many.add(np.arange(200)[:, None])
    assert many.best(200).ravel().tolist() == [place for worth in (2, 1, 0) for place in range(worth, 200, 3)]


def test_a_fill_draws_its_number_at_once() -> None:
    sizes: list[int] = []

    def score(configs: Sequence[Config]) -> NDArray[np.float64]:
        sizes.append(len(configs))
        return np.zeros(len(configs))

    space = SearchSpace(parameters=(Parameter(name="layers", choices=("a", "b"), per_layer=60),))
    ranking = ScoredRows(space.bind(workload={"world_size": 1}, current={}), score)
    ranking.fill(20, np.random.default_rng(0))
    ranking.fill(20, np.random.default_rng(1))
    ranking.fill(21, np.random.default_rng(1), at_once=30)
    assert sizes == [20, 30]


def test_a_fill_ends_when_a_draw_adds_none() -> None:
    ranking = ScoredRows(PLAIN, lambda configs: np.zeros(len(configs)))
    ranking.fill(100, np.random.default_rng(0))
    assert len(ranking) == 6


def test_a_failed_draw_counts_where_nothing_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NDArray[np.intp]:
        raise SpaceError("no legal config found")

    monkeypatch.setattr(scored_rows, "drawn_rows", fail)
    ranking = ScoredRows(PLAIN, lambda configs: np.zeros(len(configs)))
    with pytest.raises(SpaceError, match="no legal config found"):
        ranking.fill(3, np.random.default_rng(0))
    ranking.add(np.array([[0, 1]]))
    ranking.fill(3, np.random.default_rng(0))
    assert ranking.configs(3) == [{"one": 1, "other": 2}]


def test_rows_of_a_plain_space_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SearchSpace, "decode", None)  # decoding one by one is slow
    assert as_legal(PLAIN, np.array([[0, 0], [0, 1]])).tolist() == [[0, 1]]
    assert as_legal(SPACE, np.array([[0, 0, 1], [1, 1, 1]])).tolist() == [[0, 0, 1], [1, 1, 1]]


def test_configs_that_are_not_legal_have_no_row() -> None:
    configs = [{}, {"one": 2, "other": 1}, {"one": 1, "other": 1}, {"one": 9, "other": 1}, {"one": 1, "other": 3}]
    assert rows_of(PLAIN, configs).tolist() == [[1, 0], [0, 2]]
    assert rows_of(PLAIN, []).shape == (0, 2)
