from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import chisquare

from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Config

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


def test_a_stray_start_does_not_hide_a_good_one() -> None:
    found = Evolution(start=({}, NEEDLE)).search(SPACE, needle_in_hay, count=1, rng=np.random.default_rng(0))
    assert found == [NEEDLE]


def test_a_search_scores_generations_and_then_neighbours() -> None:
    batches: list[int] = []

    def counted(configs: Sequence[Config]) -> np.ndarray:
        batches.append(len(configs))
        return likeness(configs)

    Evolution().search(SPACE, counted, count=1, rng=np.random.default_rng(0))
    first, generations, climbs = batches[0], batches[1:13], batches[13:]
    assert first == 60
    assert all(50 < size <= 150 for size in generations)  # some children are known already
    assert len(climbs) == 5
    # A top has two flips of 64 layers, one of the batch, and 64 swaps, of which a third changes nothing.
    assert 3 * 170 < climbs[0] <= 4 * (2 * 64 + 1 + 64 * 2 / 3 + 5)


def test_climbs_end_at_a_maximum() -> None:
    batches: list[int] = []

    def counted(configs: Sequence[Config]) -> np.ndarray:
        batches.append(len(configs))
        return np.array([float(config["one"]) for config in configs])

    space = SearchSpace(parameters=(Parameter(name="one", choices=tuple(range(9))),)).bind(
        workload={"world_size": 1}, current={}
    )
    found = Evolution(population=1, children=2, generations=1, climbers=1, climbs=50, start=({"one": 4},)).search(
        space, counted, count=1, rng=np.random.default_rng(0)
    )
    assert found == [{"one": 8}]
    assert len(batches) < 10


class Unmoved:
    """Moves that change nothing; a cross is the second parent."""

    def crossed(self, ones: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return others + 100

    def mutated(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rows


def test_better_parents_have_more_children() -> None:
    parents = np.array([[0], [1], [2]])
    children = Evolution(children=30_000)._children(parents, Unmoved(), np.random.default_rng(0))
    seen = Counter(int(row[0]) for row in children)
    # The better of two ranks: 5, 3 and 1 of 9 pairs. Half of the children are crossed.
    expected = {at + rank: 30_000 * chance / 18 for at in (0, 100) for rank, chance in enumerate((5, 3, 1))}
    assert chisquare([seen[key] for key in expected], list(expected.values())).pvalue > 1e-4
    assert len(Evolution()._children(parents, Unmoved(), np.random.default_rng(0))) == 150


def test_a_generation_without_parents_is_empty() -> None:
    found = Evolution().search(
        SPACE, lambda configs: np.full(len(configs), -np.inf), count=1, rng=np.random.default_rng(0)
    )
    assert found == []


def test_a_hundred_layers_are_searched_in_seconds() -> None:
    started = time.process_time()
    found = Evolution().search(SPACE, likeness, count=5, rng=np.random.default_rng(0))
    assert time.process_time() - started < 60.0  # about 2 s of one core
    assert likeness(found)[0] >= 40  # uniform draws of the same number reach about 35
