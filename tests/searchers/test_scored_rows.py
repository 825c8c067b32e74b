from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.searchers.scored_rows import ScoredRows, as_legal
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config

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
