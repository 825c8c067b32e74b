from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.searchers.neighbourhood import Neighbourhood, ascending_choices
from torchx_cubicml.space import Dimension

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYERS = [Dimension("sharding_strategy", (index,), ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")) for index in range(8)]
BATCH = Dimension("micro_batch_size", (), (8, 1, 4, 2, 16, 32))
SWITCH = Dimension("compile", (), (True, False))
FIXED = Dimension("fixed", (), ("only",))
DIMENSIONS = [*LAYERS, BATCH, SWITCH, FIXED]
HOME = (0,) * 8 + (2, 0, 0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def in_range(vectors: NDArray[np.intp]) -> bool:
    return bool((vectors >= 0).all() and (vectors < [len(dimension.choices) for dimension in DIMENSIONS]).all())


def many(vector: tuple[int, ...], count: int) -> NDArray[np.intp]:
    return np.array([vector] * count, dtype=np.intp)


def test_a_ladder_leads_from_the_lowest_number_to_the_highest() -> None:
    assert ascending_choices(BATCH) == [1, 3, 2, 0, 4, 5]


@pytest.mark.parametrize("dimension", [LAYERS[0], SWITCH], ids=["words", "switch"])
def test_words_and_switches_have_no_ladder(dimension: Dimension) -> None:
    assert ascending_choices(dimension) is None


def test_mutations_stay_in_range_and_reach_every_dimension(rng: np.random.Generator) -> None:
    moves = Neighbourhood(DIMENSIONS)
    start = many(HOME, 500)
    mutants = moves.mutated(start, rng)
    assert in_range(mutants)
    assert (start == HOME).all()
    changed = (mutants != HOME).any(axis=0)
    assert changed.tolist() == [True] * 10 + [False]


def test_some_mutations_change_a_run_and_some_every_layer(rng: np.random.Generator) -> None:
    moves = Neighbourhood(LAYERS)
    counts = (moves.mutated(many((0,) * 8, 500), rng) != 0).sum(axis=1)
    assert {1, 2, 4, 8} <= set(counts.tolist())


def test_a_child_takes_all_values_from_its_parents(rng: np.random.Generator) -> None:
    moves, one, other = Neighbourhood(DIMENSIONS), HOME, (1,) * 8 + (4, 1, 0)
    children = moves.crossed(many(one, 100), many(other, 100), rng)
    assert ((children == one) | (children == other)).all()
    assert len({tuple(child) for child in children.tolist()}) > 20


def test_layers_of_the_other_parent_come_in_one_run(rng: np.random.Generator) -> None:
    moves = Neighbourhood(LAYERS)
    for child in moves.crossed(many((0,) * 8, 100), many((1,) * 8, 100), rng).tolist():
        assert sum(before != after for before, after in pairwise(child)) <= 2


def test_mixed_layers_take_shares_that_differ(rng: np.random.Generator) -> None:
    mixed = Neighbourhood(DIMENSIONS).mixed(many(HOME, 300), rng)
    assert in_range(mixed)
    assert (mixed[:, 8:] == HOME[8:]).all()
    counts = (mixed[:, :8] == 2).sum(axis=1)
    assert {0, 4, 8} <= set(counts.tolist())


def test_neighbours_hold_every_single_flip_and_near_numbers(rng: np.random.Generator) -> None:
    rows = Neighbourhood(DIMENSIONS).neighbours(HOME, rng)
    assert in_range(rows)
    near = {tuple(row) for row in rows.tolist()}
    flips = {(*HOME[:index], choice, *HOME[index + 1 :]) for index in range(8) for choice in (1, 2)}
    assert flips <= near
    batches = {BATCH.choices[vector[8]] for vector in near}
    assert batches == {1, 2, 4, 8, 16}  # one, two and four rungs from 4


def test_swaps_keep_the_counts(rng: np.random.Generator) -> None:
    start = (0, 0, 0, 0, 2, 2, 2, 2)
    near = [tuple(row) for row in Neighbourhood(LAYERS).neighbours(start, rng).tolist()]
    assert any(sorted(vector) == sorted(start) and vector != start for vector in near)
