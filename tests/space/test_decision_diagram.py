from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.stats import chisquare

from torchx_cubicml.space import decision_diagram
from torchx_cubicml.space.decision_diagram import Check, DecisionDiagram, DiagramBuilder, Symbolic, symbolic_result

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

WHOLE, OTHER, REAL = Symbolic("w", whole=True), Symbolic(("o", 1), whole=True), Symbolic("r")


class TestSymbolicResults:
    def test_known_operands_have_none(self) -> None:
        assert symbolic_result("Mult", 2, 3) is None
        assert symbolic_result("Eq", (1, 2), "a") is None

    @pytest.mark.parametrize(("operation", "folded"), [("Mult", 24), ("Add", 10)])
    def test_known_parts_of_whole_numbers_are_folded(self, operation: str, folded: int) -> None:
        inner = symbolic_result(operation, 4, WHOLE)
        nested = symbolic_result(operation, symbolic_result(operation, 6, OTHER), inner)
        assert nested == symbolic_result(operation, symbolic_result(operation, WHOLE, OTHER), folded)
        assert nested != symbolic_result(operation, symbolic_result(operation, WHOLE, OTHER), folded + 1)
        assert nested is not None
        assert nested.whole

    def test_fractions_are_folded_and_truth_is_not(self) -> None:
        half = symbolic_result("Mult", Fraction(1, 2), WHOLE)
        assert symbolic_result("Mult", half, 4) == symbolic_result("Mult", 2, WHOLE)
        assert symbolic_result("Mult", True, WHOLE) != symbolic_result("Mult", 1, WHOLE)

    def test_sums_inside_products_stay_apart(self) -> None:
        total = symbolic_result("Add", 3, WHOLE)
        assert symbolic_result("Mult", 2, total) != symbolic_result("Mult", 2, symbolic_result("Mult", 3, WHOLE))
        assert symbolic_result("Mult", 1, total) != total

    def test_only_whole_numbers_are_folded(self) -> None:
        for operation, first, second in (("Mult", REAL, WHOLE), ("Sub", WHOLE, OTHER), ("Mult", 2.0, WHOLE)):
            found = symbolic_result(operation, first, second)
            assert found is not None
            assert not found.whole
            assert found != symbolic_result(operation, second, first)

    def test_values_of_another_type_differ(self) -> None:
        keys = [symbolic_result("Eq", REAL, value) for value in (1, 1.0, True, "1", (1,), (1.0,), ("1",), None)]
        assert len(set(keys)) == len(keys)


def sum_check(order: Sequence[int], wanted: int) -> Check:
    def residual(vector: Sequence[int], assigned: Collection[int]) -> int | None:
        so_far = sum(vector[item] for item in order if item in assigned)
        return so_far if so_far <= wanted else None

    return Check(frozenset(order), lambda vector: sum(vector[item] for item in order) == wanted, residual)


def built(wanted: int, sizes: Sequence[int], more: Sequence[Check] = ()) -> DecisionDiagram | None:
    order = range(len(sizes))
    return DiagramBuilder(order, sizes, [sum_check(order, wanted), *more], len(sizes)).build()


def test_a_diagram_of_two_numbers_with_the_sum_three() -> None:
    # 0+3, 1+2 and 2+1 of 0..2 and 0..3: a node for each first number.
    found = built(3, [3, 4])
    assert found == DecisionDiagram(
        targets=[[[0, 1, 2]], [[-1, -1, -1, 0], [-1, -1, 0, -1], [-1, 0, -1, -1]]],
        ends=[[[1, 2, 3]], [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]]],
        total=3,
    )
    assert found is not None
    assert [found.assignment(rank) for rank in range(3)] == [(0, 3), (1, 2), (2, 1)]


def test_equal_sums_become_one_node() -> None:
    found = built(4, [3, 3, 3])
    assert found is not None
    assert [len(level) for level in found.targets] == [1, 3, 5]  # the sums 0 to 4 of the first two
    assert found.total == 6
    legal = [vector for vector in product(range(3), repeat=3) if sum(vector) == 4]
    assert [found.assignment(rank) for rank in range(6)] == legal


def test_a_closed_check_no_longer_splits_nodes() -> None:
    found = built(3, [2, 2, 3, 2], [sum_check([0, 1], 1)])
    assert found is not None
    assert [len(level) for level in found.targets] == [1, 2, 1, 3]  # the sum of two is one, that of three is 1 to 3
    assert found.total == 2 * 2


def test_nothing_legal_has_an_empty_diagram() -> None:
    found = built(9, [2, 2])
    assert found is not None
    assert found.total == 0


def test_draws_of_a_diagram_are_uniform() -> None:
    found = built(6, [3, 4, 5])
    assert found is not None
    drawn = found.draw(400 * found.total, np.random.default_rng(0))
    assert chisquare([drawn.count(found.assignment(rank)) for rank in range(found.total)]).pvalue > 1e-4


def test_the_limit_counts_the_entries_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # One node of 2 choices, two nodes of 3: each choice reads itself and the two entries of the check.
    reads = 1 * 2 * (1 + 2) + 2 * 3 * (1 + 2)
    monkeypatch.setattr(decision_diagram, "MAX_READS", reads)
    assert built(2, [2, 3]) is not None
    monkeypatch.setattr(decision_diagram, "MAX_READS", reads - 1)
    assert built(2, [2, 3]) is None


@pytest.mark.parametrize("total", [7, 2**63 - 1, 2**63, 2**70 + 3])
def test_ranks_are_spread_over_all(total: int) -> None:
    ranks = decision_diagram.drawn_ranks(total, 3000, np.random.default_rng(0))
    assert len(ranks) == 3000
    assert 0 <= min(ranks) < total / 6
    assert 5 * total / 6 < max(ranks) < total
    counts = np.bincount([7 * rank // total for rank in ranks], minlength=7)
    assert chisquare(counts).pvalue > 1e-4
