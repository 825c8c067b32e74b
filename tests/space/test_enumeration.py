from __future__ import annotations

from collections import Counter
from itertools import product
from math import comb
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import decision_diagram as diagram
from torchx_cubicml.space.decision_diagram import Check
from torchx_cubicml.space.enumeration import LegalChoices
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence


def check(dimensions: Collection[int], holds: Callable[[list[int]], bool]) -> Check:
    """A check on some entries that remembers all of them until it can decide."""
    order = sorted(dimensions)

    def residual(vector: Sequence[int], assigned: Collection[int]) -> Hashable:
        return tuple((item, vector[item]) for item in order if item in assigned)

    return Check(frozenset(order), lambda vector: holds([vector[item] for item in order]), residual)


def total_is(dimensions: Collection[int], wanted: int) -> Check:
    """A check that remembers only the sum so far, and is broken once the sum is too large."""
    order = sorted(dimensions)

    def residual(vector: Sequence[int], assigned: Collection[int]) -> Hashable | None:
        so_far = sum(vector[item] for item in order if item in assigned)
        return so_far if so_far <= wanted else None

    return Check(frozenset(order), lambda vector: sum(vector[item] for item in order) == wanted, residual)


@st.composite
def small_problems(draw: st.DrawFn) -> tuple[list[int], list[Check]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    checks = []
    for _ in range(draw(st.integers(0, 3))):
        dimensions = draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=4))
        modulus, wanted = draw(st.integers(2, 3)), draw(st.integers(0, 1))
        checks.append(check(dimensions, lambda values, m=modulus, w=wanted: sum(values) % m == w))
    if draw(st.booleans()):
        checks.append(total_is(range(len(sizes)), draw(st.integers(0, 6))))
    return sizes, checks


def listed(sizes: Sequence[int], checks: Sequence[Check]) -> list[tuple[int, ...]]:
    return [v for v in product(*map(range, sizes)) if all(check.holds(v) for check in checks)]


@given(small_problems())
def test_lists_and_counts_what_is_legal(problem: tuple[list[int], list[Check]]) -> None:
    sizes, checks = problem
    expected, choices = listed(sizes, checks), LegalChoices(sizes, checks)
    found = list(choices.vectors())
    assert sorted(found) == expected
    assert choices.size() == len(expected)
    assert choices.size(limit=2) == min(2, len(expected))
    assert choices.is_empty is (not expected)


@given(small_problems())
def test_a_search_finds_the_same_as_the_diagram(problem: tuple[list[int], list[Check]]) -> None:
    sizes, checks = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagram.DiagramBuilder, "build", lambda builder: None)
        choices = LegalChoices(sizes, checks)
        assert sorted(choices.vectors()) == listed(sizes, checks)
        assert choices.size() == len(listed(sizes, checks))
        if not choices.is_empty:
            assert set(choices.draw(3, np.random.default_rng(0))) <= set(listed(sizes, checks))


def test_draws_are_uniform() -> None:
    sizes = [3, 3, 2, 4]
    checks = [check({0, 1}, lambda v: v[0] <= v[1]), check({1, 2}, lambda v: v != [0, 1])]
    legal = listed(sizes, checks)
    drawn = LegalChoices(sizes, checks).draw(200 * len(legal), np.random.default_rng(3))
    counts = np.array([drawn.count(vector) for vector in legal])
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    # false alarm for a correct draw: 4e-5 (43 degrees of freedom)
    assert len(legal) == 44
    assert chi_square < 90


def test_the_same_seed_draws_the_same() -> None:
    choices = LegalChoices([4, 4, 4], [total_is({0, 2}, 3)])
    assert choices.draw(9, np.random.default_rng(5)) == choices.draw(9, np.random.default_rng(5))
    assert choices.draw(0, np.random.default_rng(5)) == []


def test_counts_beyond_machine_words() -> None:
    choices = LegalChoices([3] * 60, [total_is(range(60), 60)])
    exact = np.array([1], dtype=object)
    for _ in range(60):
        exact = np.convolve(exact, np.array([1, 1, 1], dtype=object))
    assert choices.size() == exact[60] > 2**63
    assert {sum(vector) for vector in choices.draw(20, np.random.default_rng(0))} == {60}


def test_a_check_that_is_decided_is_forgotten() -> None:
    rising = [check({i, i + 1}, lambda v: v[0] <= v[1]) for i in range(59)]
    assert LegalChoices([4] * 60, rising).size() == comb(63, 3)


def test_nothing_legal() -> None:
    choices = LegalChoices([2, 2], [check({0, 1}, lambda v: sum(v) == 5)])
    assert choices.is_empty
    assert choices.size() == 0
    assert list(choices.vectors()) == []
    with pytest.raises(SpaceError, match="no config is legal"):
        choices.draw(1, np.random.default_rng(0))


def test_a_check_of_nothing() -> None:
    broken = Check(frozenset(), lambda vector: False, lambda vector, assigned: None)
    assert LegalChoices([2], [broken]).is_empty
    assert LegalChoices([2], [broken]).size() == 0
    assert list(LegalChoices([2], [broken]).vectors()) == []
    assert list(LegalChoices([], []).vectors()) == [()]
    assert LegalChoices([], []).size() == 1


class TestTooLargeToCount:
    """Forty tied dimensions whose check forgets nothing: no diagram of a bounded size."""

    def test_many_legal(self) -> None:
        choices = LegalChoices([3] * 40, [check(range(40), lambda v: sum(v) % 7 != 0)])
        with pytest.raises(SpaceError, match="too many legal configs to count"):
            choices.size()
        assert choices.size(limit=100) == 100
        assert all(sum(vector) % 7 for vector in choices.draw(50, np.random.default_rng(0)))
        assert sum(next(choices.vectors())) % 7

    def test_few_legal_are_found_by_search(self) -> None:
        tied = [check({i, i + 1}, lambda v: v[0] == v[1]) for i in range(39)]
        choices = LegalChoices([3] * 40, [*tied, check(range(40), lambda v: v[0] > 0)])
        assert {vector[0] for vector in choices.draw(30, np.random.default_rng(0))} == {1, 2}

    def test_a_failed_search_is_reported(self) -> None:
        choices = LegalChoices([3] * 40, [check(range(40), lambda v: False)])
        assert choices.size(limit=9) == 9  # not known to be empty, and more than can be counted
        with pytest.raises(SpaceError, match="no legal config found"):
            choices.draw(1, np.random.default_rng(0))


@settings(max_examples=20)
@given(st.integers(0, 2**80), st.integers(1, 30))
def test_large_ranks_are_in_range(total: int, count: int) -> None:
    ranks = diagram.drawn_ranks(total + 1, count, np.random.default_rng(0))
    assert all(0 <= rank <= total for rank in ranks)
    assert len(ranks) == count


@pytest.mark.parametrize(
    "rule",
    ["max(s) >= 2", "min(s) == 1", "max(s) - min(s) <= 1", "max(s) * a <= 4", "max(s) == 2 or 0 in s"],
)
def test_rules_on_largest_and_smallest_layers_are_counted(rule: str) -> None:
    text = (
        '[parameters.s]\nchoices = [0, 1, 2]\nper_layer = 4\nflag = "--s"\n'
        '[parameters.a]\nchoices = [1, 2, 3]\nflag = "--a"\n'
        f'[[constraints]]\nrequire = "{rule}"\n'
    )
    space = parse_space(text, where="x.toml").bind(workload={"world_size": 1}, current={})
    listed = {(config["s"], config["a"]) for config in space.configs()}
    holds = compile(rule, "rule", "eval")
    every = product(product((0, 1, 2), repeat=4), (1, 2, 3))
    assert listed == {(s, a) for s, a in every if eval(holds, {"s": s, "a": a})}
    assert space.size() == len(listed)


def test_many_layers_are_counted_under_a_rule_on_their_largest() -> None:
    text = (
        '[parameters.s]\nchoices = [0, 1, 2]\nper_layer = 96\nflag = "--s"\n[[constraints]]\nrequire = "max(s) > 1"\n'
    )
    space = parse_space(text, where="x.toml").bind(workload={"world_size": 1}, current={})
    assert space.size() == 3**96 - 2**96
    assert space.size(limit=10**40) == 10**40


class Counted:
    """A check that no diagram holds, with the number of vectors that it has read."""

    def __init__(self, length: int, holds: Callable[[Sequence[int]], bool]) -> None:
        self.reads = 0
        self._holds = holds
        self.check = Check(frozenset(range(length)), self._read, lambda vector, assigned: tuple(vector))

    def _read(self, vector: Sequence[int]) -> bool:
        self.reads += 1
        return self._holds(vector)


@pytest.fixture
def no_diagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagram.DiagramBuilder, "build", lambda builder: None)


@pytest.mark.usefixtures("no_diagrams")
class TestSearches:
    def test_a_count_to_a_limit_reads_no_further(self) -> None:
        counted = Counted(3, lambda vector: True)
        choices = LegalChoices([5, 5, 5], [counted.check])
        assert choices.size(limit=4) == 4
        assert counted.reads == 4
        assert choices.size() == choices.size(limit=10**40) == 125

    def test_a_count_beyond_the_bound_is_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Each leaf reads itself and three entries, each inner choice itself: 5 + 25 + 125 * 4 in all.
        counted = Counted(3, lambda vector: True)
        monkeypatch.setattr("torchx_cubicml.space.enumeration.MAX_READS", 5 + 25 + 125 * 4)
        assert LegalChoices([5, 5, 5], [counted.check]).size() == 125
        monkeypatch.setattr("torchx_cubicml.space.enumeration.MAX_READS", 5 + 25 + 125 * 4 - 1)
        choices = LegalChoices([5, 5, 5], [counted.check])
        for _ in range(2):
            with pytest.raises(SpaceError, match="constraints link 3 choices; count up to a limit, or set groups"):
                choices.size()
            reads, counted.reads = counted.reads, 0
        assert reads == 0
        assert choices.size(limit=7) == 7
        assert counted.reads == 0

    def test_emptiness_is_looked_for_in_a_tenth_of_the_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted = Counted(2, lambda vector: False)
        monkeypatch.setattr("torchx_cubicml.space.enumeration.MAX_READS", 10 * (4 + 16 * 3))
        assert LegalChoices([4, 4], [counted.check]).is_empty
        monkeypatch.setattr("torchx_cubicml.space.enumeration.MAX_READS", 10 * (4 + 16 * 3) - 1)
        assert not LegalChoices([4, 4], [counted.check]).is_empty

    def test_rejection_gives_way_after_200_tries(self) -> None:
        counted = Counted(2, lambda vector: tuple(vector) == (1, 999))
        choices = LegalChoices([2, 1000], [counted.check])
        drawn = choices._parts[0].draw(3, np.random.default_rng(0))
        assert drawn == [(1, 999)] * 3
        found_by_search = counted.reads - 200
        assert 3 <= found_by_search <= 3 * 2000  # the guesses are made for the first alone

    def test_a_draw_that_fails_made_200_guesses_and_one_search(self) -> None:
        counted = Counted(2, lambda vector: False)
        with pytest.raises(SpaceError, match="no legal config found in a bounded search: constraints link 2 choices"):
            LegalChoices([2, 1000], [counted.check])._parts[0].draw(3, np.random.default_rng(0))
        assert counted.reads == 200 + 2 * 1000

    def test_draws_are_uniform_while_guesses_succeed(self) -> None:
        counted = Counted(2, lambda vector: vector[0] < vector[1])
        drawn = LegalChoices([4, 4], [counted.check]).draw(3000, np.random.default_rng(0))
        assert chisquare(list(Counter(drawn).values())).pvalue > 1e-4
        assert len(set(drawn)) == 6

    def test_a_search_starts_anywhere(self) -> None:
        counted = Counted(2, lambda vector: vector[0] == 7 * vector[1] % 1000)
        drawn = LegalChoices([1000, 1000], [counted.check]).draw(30, np.random.default_rng(0))
        assert len(set(drawn)) > 25

    def test_long_searches_end_and_their_results_serve_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A search reads about 100,000 entries: after ten of them, what they found is drawn from.
        counted = Counted(2, lambda vector: vector[0] % 40 == 39 and vector[1] == 0)
        monkeypatch.setattr("torchx_cubicml.space.enumeration.MAX_TRIES", 0)
        monkeypatch.setattr("torchx_cubicml.space.enumeration.MAX_READS", 20_000)
        choices = LegalChoices([400, 30], [counted.check])
        drawn = choices.draw(300, np.random.default_rng(0))
        assert all(counted._holds(vector) for vector in drawn)
        assert 3 <= len(set(drawn)) <= 10
        assert counted.reads < 3 * 20_000

    def test_short_searches_go_on(self) -> None:
        counted = Counted(2, lambda vector: vector[0] == vector[1])
        drawn = LegalChoices([300, 300], [counted.check]).draw(600, np.random.default_rng(0))
        assert len(set(drawn)) > 200


def test_a_vector_streams_its_last_tie_fastest() -> None:
    choices = LegalChoices([2, 2, 2], [check({0, 2}, lambda values: values != [1, 1])])
    assert list(choices.vectors()) == [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 1, 0)]
    assert [(dimensions, len(targets or [])) for dimensions, targets in choices.ties] == [((0, 2), 2)]


def test_small_checks_are_read_first() -> None:
    wide, narrow = check({0, 1, 2, 3}, lambda values: True), check({2, 3}, lambda values: True)
    ((order, _),) = LegalChoices([2, 2, 2, 2], [wide, narrow]).ties
    assert order == (2, 3, 0, 1)


def test_sizes_multiply_up_to_a_limit() -> None:
    choices = LegalChoices([3, 4, 5], [])
    assert (choices.size(), choices.size(limit=59), choices.size(limit=60), choices.size(limit=61)) == (60, 59, 60, 60)
    assert LegalChoices([3, 0, 5], []).is_empty
    assert LegalChoices([3, 0, 5], []).size() == LegalChoices([3, 0, 5], []).size(limit=9) == 0
