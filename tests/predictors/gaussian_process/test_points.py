from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder, EncodedConfigs

ROWS = [
    {"batch": 1, "size": 10, "kind": "a", "layers": ("x", "y", "x", "x"), "same": 3},
    {"batch": 64, "size": 20, "kind": "b", "layers": ("y", "y", "x", "x"), "same": 3},
]


def placed(
    rows: list[dict[str, object]], asked: list[dict[str, object]], **tuned: tuple[object, ...]
) -> EncodedConfigs:
    columns = Columns.from_rows(rows)
    places = ConfigEncoder.of(columns.encode(rows), columns, tuned=tuned)
    return places.points(columns.encode(asked))


def test_numbers_stand_between_nought_and_one() -> None:
    points = placed(ROWS, [{"batch": 8, "size": 15}, {"batch": 64, "size": 10}, {}])
    # The batch spans a factor of 64: eight is halfway. What is missing stands in the middle.
    assert points.numbers.tolist() == [[pytest.approx(0.5), 0.5], [1.0, 0.0], [0.5, 0.5]]


def test_a_tuned_number_spans_its_choices() -> None:
    points = placed(ROWS[:1], ROWS[:1], size=(0, 10, 40))
    assert points.numbers.tolist() == [[0.25]]


def test_what_does_not_vary_is_left_out() -> None:
    points = placed([ROWS[0]], ROWS)
    assert points.numbers.shape == (2, 0)
    assert points.categories.shape == (2, 0)
    assert points.members == ()


def test_layers_are_encoded_by_members_and_shares() -> None:
    points = placed(ROWS, [*ROWS, {"layers": ("x", "z", "z", "y")}])
    assert points.shares[0].tolist() == [[0.75, 0.25], [0.5, 0.5], [0.25, 0.25]]
    assert points.members[0].shape == (3, 2, 4)
    assert points.categories[2].tolist() == [0.0, 0.0]


def test_sizes_of_layers_are_weights_and_no_feature() -> None:
    rows = [{**row, "layer_n_params": (7, 1, 1, 1)} for row in ROWS]
    points = placed(rows, rows)
    # The large layer is y and holds 0.7; a layer weighs half by its size and half like any other.
    assert points.shares[0][1] == pytest.approx([(0.2 + 0.5) / 2, (0.8 + 0.5) / 2])
    assert len(points.members) == 1


def test_points_can_be_joined() -> None:
    points = placed(ROWS, ROWS)
    joined = points.concatenate(points)
    assert len(joined) == 4
    np.testing.assert_array_equal(joined.shares[0][2:], points.shares[0])


def test_how_often_two_divides_a_number_beyond_all_whole_ones_is_counted_without_a_warning() -> None:
    rows = [{"batch": size} for size in (1, 3, 5, 6, 7, 12, 2**64, 1e30)]
    assert placed(rows, [*rows, {"batch": -8}, {}]).power_of_two[:, 0].tolist() == [0, 0, 0, 1, 0, 2, 6, 6, 0, 0]
