from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from torchx_cubicml.searchers.moves import Moves, ladder
from torchx_cubicml.space import Dimension

LAYERS = [Dimension("sharding_strategy", (index,), ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")) for index in range(8)]
BATCH = Dimension("micro_batch_size", (), (8, 1, 4, 2, 16, 32))
SWITCH = Dimension("compile", (), (True, False))
FIXED = Dimension("fixed", (), ("only",))
DIMENSIONS = [*LAYERS, BATCH, SWITCH, FIXED]
HOME = (0,) * 8 + (2, 0, 0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def in_range(vector: tuple[int, ...]) -> bool:
    return all(0 <= choice < len(dimension.choices) for choice, dimension in zip(vector, DIMENSIONS, strict=True))


def test_a_ladder_leads_from_the_lowest_number_to_the_highest() -> None:
    assert ladder(BATCH) == [1, 3, 2, 0, 4, 5]


@pytest.mark.parametrize("dimension", [LAYERS[0], SWITCH], ids=["words", "switch"])
def test_words_and_switches_have_no_ladder(dimension: Dimension) -> None:
    assert ladder(dimension) is None


def test_mutations_stay_in_range_and_reach_every_dimension(rng: np.random.Generator) -> None:
    moves = Moves(DIMENSIONS)
    mutants = [moves.mutate(HOME, rng) for _ in range(500)]
    assert all(in_range(mutant) for mutant in mutants)
    changed = (np.array(mutants) != np.array(HOME)).any(axis=0)
    assert changed.tolist() == [True] * 10 + [False]


def test_some_mutations_change_a_run_and_some_every_layer(rng: np.random.Generator) -> None:
    moves = Moves(LAYERS)
    counts = {sum(choice != 0 for choice in moves.mutate((0,) * 8, rng)) for _ in range(500)}
    assert {1, 2, 4, 8} <= counts


def test_a_child_holds_nothing_that_its_parents_lack(rng: np.random.Generator) -> None:
    moves, one, other = Moves(DIMENSIONS), HOME, (1,) * 8 + (4, 1, 0)
    children = [moves.cross(one, other, rng) for _ in range(100)]
    assert all(choice in pair for child in children for choice, *pair in zip(child, one, other, strict=True))
    assert len(set(children)) > 20


def test_layers_of_the_other_parent_come_in_one_run(rng: np.random.Generator) -> None:
    moves = Moves(LAYERS)
    for _ in range(100):
        child = moves.cross((0,) * 8, (1,) * 8, rng)
        assert sum(before != after for before, after in pairwise(child)) <= 2


def test_neighbours_hold_every_single_flip_and_near_numbers(rng: np.random.Generator) -> None:
    near = set(Moves(DIMENSIONS).neighbours(HOME, rng))
    assert all(in_range(vector) for vector in near)
    flips = {(*HOME[:index], choice, *HOME[index + 1 :]) for index in range(8) for choice in (1, 2)}
    assert flips <= near
    batches = {BATCH.choices[vector[8]] for vector in near}
    assert batches == {1, 2, 4, 8, 16}  # one, two and four rungs from 4


def test_swaps_keep_the_counts(rng: np.random.Generator) -> None:
    start = (0, 0, 0, 0, 2, 2, 2, 2)
    near = list(Moves(LAYERS).neighbours(start, rng))
    assert any(sorted(vector) == sorted(start) and vector != start for vector in near)
