from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.learner_inputs import Inputs

#                     number  code  constant  gappy
TABLE = np.array([[2.0, 0.0, 5.0, np.nan], [4.0, 1.0, 5.0, 2.0], [8.0, 2.0, 5.0, 4.0], [16.0, 0.0, 5.0, np.nan]])
CATEGORICAL = (False, True, False, False)


def test_constant_columns_are_left_out() -> None:
    inputs = Inputs.of(TABLE, CATEGORICAL)
    assert (inputs.numeric, inputs.codes, inputs.gappy, inputs.width) == ((0, 3), (1,), (3,), 3)


def test_dense_is_standardised_without_gaps() -> None:
    dense = Inputs.of(TABLE, CATEGORICAL).dense(TABLE)
    assert dense.shape == (4, 2 + 1 + 3)  # numbers, an indicator of the gap, an indicator of each code
    assert dense.mean(axis=0) == pytest.approx(np.zeros(6))
    assert np.diff(dense[:, 0]) == pytest.approx([np.diff(dense[:, 0])[0]] * 3)  # 2, 4, 8, 16 are even steps


def test_a_number_of_zero_or_less_has_a_place_where_all_known_were_positive() -> None:
    inputs = Inputs.of(TABLE, CATEGORICAL)
    odd = np.array([[value, 0.0, 5.0, 2.0] for value in (0.0, -3.0, 1.0, 2.0)])
    zero, negative, one, two = inputs.dense(odd)[:, 0]
    assert zero == negative == two
    assert one < two


def test_a_column_that_holds_zeros_keeps_their_order() -> None:
    table = np.array([[0.0], [1.0], [-1.0], [7.0]])
    dense = Inputs.of(table, (False,)).dense(table)[:, 0]
    assert np.argsort(dense).tolist() == [2, 0, 1, 3]


def test_gapped_keeps_numbers_codes_and_gaps() -> None:
    inputs = Inputs.of(TABLE, CATEGORICAL)
    np.testing.assert_array_equal(inputs.gapped(TABLE), TABLE[:, [0, 3, 1]])
    assert inputs.gapped_categorical == [False, False, True]


def test_an_unseen_code_belongs_to_no_category() -> None:
    inputs = Inputs.of(TABLE, CATEGORICAL)
    unseen = np.array([[1.0, np.nan, 5.0, 2.0]])
    lowest = inputs.dense(TABLE)[:, 3:].min(axis=0)
    assert inputs.dense(unseen)[0, 3:] == pytest.approx(lowest)


def test_a_column_of_many_names_is_no_category() -> None:
    table = np.arange(30.0).reshape(-1, 1)
    inputs = Inputs.of(table, (True,))
    assert (inputs.one_hot, inputs.gapped_categorical) == ((), [False])


def test_a_table_of_one_row_has_nothing_to_distinguish() -> None:
    inputs = Inputs.of(TABLE[:1], CATEGORICAL)
    assert (inputs.width, inputs.dense(TABLE).shape) == (0, (4, 0))


@pytest.mark.parametrize("value", [3.0, 0.3, 1e15, 2.0**64])
@pytest.mark.parametrize("n_rows", [4, 7, 30])
def test_a_number_that_is_alike_wherever_it_is_known_is_not_scaled_by_its_rounding(value: float, n_rows: int) -> None:
    table = np.full((n_rows, 1), value)
    table[::3] = np.nan
    other = Inputs.of(table, (False,)).dense(np.array([[10.0 * value], [value]]))[:, 0]
    assert other == pytest.approx([np.log(10.0), 0.0], abs=1e-6)
