from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.space import Parameter, SearchSpace


def numbers(count: int) -> SearchSpace:
    return SearchSpace(
        parameters=(
            Parameter(name="tens", choices=tuple(range(count // 10))),
            Parameter(name="ones", choices=tuple(range(10))),
        )
    ).bind(workload={"world_size": 1}, current={})


def test_a_space_larger_than_one_batch_is_listed_to_its_end() -> None:
    asked = []

    def score(configs: list[dict[str, int]]) -> np.ndarray:
        asked.append(len(configs))
        return np.array([config["tens"] * 10.0 + config["ones"] for config in configs])

    found = Exhaustive().search(numbers(10_000), score, count=3, rng=np.random.default_rng(0))
    assert [config["tens"] * 10 + config["ones"] for config in found] == [9999, 9998, 9997]
    assert len(asked) == 3


class ByRows:
    """A score that takes rows; of configs it must not be asked."""

    def __call__(self, configs: list[dict[str, int]]) -> np.ndarray:
        raise AssertionError("rows are cheaper")

    def of_vectors(self, vectors: np.ndarray) -> np.ndarray:
        return np.where(vectors[:, 1] == 9, np.nan, np.where(vectors[:, 0] == 0, -np.inf, vectors[:, 1]))


def test_rows_are_scored_in_place_of_configs() -> None:
    found = Exhaustive().search(numbers(10_000), ByRows(), count=2, rng=np.random.default_rng(0))
    assert found == [{"tens": 1, "ones": 8}, {"tens": 2, "ones": 8}]
    everything = Exhaustive().search(numbers(50), ByRows(), count=99, rng=np.random.default_rng(0))
    assert len(everything) == 4 * 9
    assert [config["ones"] for config in everything] == [number for number in range(8, -1, -1) for _ in range(4)]


def test_a_space_beyond_the_limit_is_refused_with_the_limit() -> None:
    with pytest.raises(SpaceError, match="limited to 50 configs"):
        Exhaustive(limit=50).search(
            numbers(100), lambda configs: np.zeros(len(configs)), count=1, rng=np.random.default_rng(0)
        )
