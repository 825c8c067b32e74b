from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.stats import chisquare

from torchx_cubicml.searchers.neighbourhood import Neighbourhood, ascending_choices
from torchx_cubicml.space import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

LAYERS = [Dimension("sharding_strategy", (index,), ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")) for index in range(8)]
BATCH = Dimension("micro_batch_size", (), (8, 1, 4, 2, 16, 32))
SWITCH = Dimension("compile", (), (True, False))
FIXED = Dimension("fixed", (), ("only",))
DIMENSIONS = [*LAYERS, BATCH, SWITCH, FIXED]
HOME = (0,) * 8 + (2, 0, 0)
FALSE_ALARM = 1e-4  # of each statistical test


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


def layers_of(count: int, choices: tuple[str, ...]) -> list[Dimension]:
    return [Dimension("layers", (index,), choices) for index in range(count)]


def follows(rows: NDArray[np.intp], chances: Mapping[tuple[int, ...], float | Fraction]) -> bool:
    """Whether rows occur as often as their chances say, and no others occur."""
    counts = Counter(map(tuple, rows.tolist()))
    likely = [row for row, chance in chances.items() if chance > 0]
    expected = [float(chances[row]) * len(rows) for row in likely]
    return counts.keys() <= set(likely) and chisquare([counts[row] for row in likely], expected).pvalue > FALSE_ALARM


def chances_after_moves(
    start: tuple[int, ...], moves: Mapping[tuple[int, ...], Mapping[tuple[int, ...], Fraction]]
) -> dict[tuple[int, ...], Fraction]:
    """One move of three mutations in six, two moves of two in six, three moves of one in six."""
    state, total = {start: Fraction(1)}, defaultdict(Fraction)
    for share in (Fraction(3, 6), Fraction(2, 6), Fraction(1, 6)):
        following: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for row, chance in state.items():
            for other, of_move in moves[row].items():
                following[other] += chance * of_move
        state = dict(following)
        for row, chance in state.items():
            total[row] += share * chance
    return dict(total)


def layer_moves(row: tuple[int, ...], n_choices: int) -> dict[tuple[int, ...], Fraction]:
    """All layers in 15 %, a run in 35 %, a swap in 25 %, one to three layers in 25 %."""
    chances: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    places = range(len(row))
    for choice in range(n_choices):
        chances[(choice,) * len(row)] += Fraction(15, 100) / n_choices
        for one, other in product(range(len(row) + 1), repeat=2):
            run = range(min(one, other), max(one, other))
            after = tuple(choice if place in run else row[place] for place in places)
            chances[after] += Fraction(35, 100) / n_choices / (len(row) + 1) ** 2
        for count in (1, 2, 3):
            for few in combinations(places, count):
                after = tuple(choice if place in few else row[place] for place in places)
                chances[after] += Fraction(25, 100) / n_choices / 3 / len(list(combinations(places, count)))
    for one, other in (pairs := list(combinations(places, 2))):
        after = list(row)
        after[one], after[other] = row[other], row[one]
        chances[tuple(after)] += Fraction(25, 100) / len(pairs)
    return chances


def test_moves_of_layers_are_as_likely_as_stated(rng: np.random.Generator) -> None:
    moves = {row: layer_moves(row, 2) for row in product(range(2), repeat=4)}
    start = (0, 1, 1, 1)
    mutants = Neighbourhood(layers_of(4, ("a", "b"))).mutated(many(start, 40_000), rng)
    assert follows(mutants, chances_after_moves(start, moves))


def test_moves_of_numbers_step_or_leap(rng: np.random.Generator) -> None:
    near = {0: [1, 2], 1: [0, 2, 3], 2: [0, 1, 3], 3: [1, 2]}  # one or two steps; four do not fit
    words, numbers = 3, len(near)

    def moved(row: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
        word, number = row
        chances: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for other in range(words):
            chances[other, number] += Fraction(1, 2) / words
        for other in range(numbers):
            chances[word, other] += Fraction(1, 2) * Fraction(3, 10) / numbers
        for other in near[number]:
            chances[word, other] += Fraction(1, 2) * Fraction(7, 10) / len(near[number])
        return chances

    moves = {row: moved(row) for row in product(range(words), range(numbers))}
    dimensions = [Dimension("word", (), ("a", "b", "c")), FIXED, Dimension("number", (), (1, 2, 4, 8))]
    mutants = Neighbourhood(dimensions).mutated(many((1, 0, 2), 40_000), rng)
    assert (mutants[:, 1] == 0).all()
    assert follows(mutants[:, [0, 2]], chances_after_moves((1, 2), moves))


def test_a_space_of_one_config_has_no_moves(rng: np.random.Generator) -> None:
    moves, rows = Neighbourhood([FIXED]), many((0,), 3)
    assert moves.mutated(rows, rng).tolist() == moves.crossed(rows, rows, rng).tolist() == rows.tolist()
    assert moves.neighbours((0,), rng).shape == (0, 1)


def test_crossed_values_and_runs_are_equally_likely(rng: np.random.Generator) -> None:
    for n_layers in (2, 3):
        zeros, ones = many((0,) * (n_layers + 1), 20_000), many((1,) * (n_layers + 1), 20_000)
        children = Neighbourhood([*layers_of(n_layers, ("a", "b")), SWITCH]).crossed(zeros, ones, rng)
        chances: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for one, other, switch in product(range(n_layers + 1), range(n_layers + 1), range(2)):
            run = range(min(one, other), max(one, other))
            child = (*(int(layer in run) for layer in range(n_layers)), switch)
            chances[child] += Fraction(1, 2 * (n_layers + 1) ** 2)
        assert follows(children, chances)


def test_mixed_layers_are_alike_more_often_than_not(rng: np.random.Generator) -> None:
    # Dirichlet shares of 1/2 each: the second of two layers is as the first in (1/2 + 1) of (3/2 + 1) cases.
    chances = {(one, other): 0.6 / 3 if one == other else 0.4 / 6 for one, other in product(range(3), repeat=2)}
    assert follows(Neighbourhood(layers_of(2, ("a", "b", "c"))).mixed(many((0, 1), 20_000), rng), chances)


def test_mixed_layers_of_single_choices_stay(rng: np.random.Generator) -> None:
    dimensions = [*layers_of(2, ("a",)), SWITCH, SWITCH]
    assert (Neighbourhood(dimensions).mixed(many((0, 0, 1, 1), 5), rng)[:, :2] == 0).all()


def test_near_numbers_are_one_two_and_four_steps_away(rng: np.random.Generator) -> None:
    numbers = Dimension("number", (), tuple(reversed(range(12))))
    moves = Neighbourhood([numbers])
    for at in range(12):
        near = sorted(int(row[0]) for row in moves.neighbours((at,), rng))
        assert near == [other for other in range(12) if abs(other - at) in (1, 2, 4)]


def test_each_neighbour_is_one_flip_or_one_swap(rng: np.random.Generator) -> None:
    start = (0, 1, 2, 2, 0)
    rows = Neighbourhood([*layers_of(4, ("a", "b", "c")), SWITCH]).neighbours(start, rng).tolist()
    flips = [[*start[:at], choice, *start[at + 1 :]] for at in range(4) for choice in range(3) if choice != start[at]]
    assert rows[:9] == [*flips, [0, 1, 2, 2, 1]]
    assert len(rows) == 9 + 4  # a swap for each layer
    for row in rows[9:]:
        assert sorted(row[:4]) == sorted(start[:4])
        assert sum(before != after for before, after in zip(start, row, strict=True)) in (0, 2)
        assert row[4] == 0
