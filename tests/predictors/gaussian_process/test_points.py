from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder, EncodedConfigs, Number

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


def test_numbers_lie_between_zero_and_one() -> None:
    points = placed(ROWS, [{"batch": 8, "size": 15}, {"batch": 64, "size": 10}, {}])
    # The batch spans a factor of 64: eight is halfway. What is missing stands in the middle.
    assert points.numbers.tolist() == [[pytest.approx(0.5), 0.5], [1.0, 0.0], [0.5, 0.5]]


def test_a_tuned_number_spans_its_choices() -> None:
    points = placed(ROWS[:1], ROWS[:1], size=(0, 10, 40))
    assert points.numbers.tolist() == [[0.25]]


def test_constant_parameters_are_left_out() -> None:
    points = placed([ROWS[0]], ROWS)
    assert points.numbers.shape == (2, 0)
    assert points.categories.shape == (2, 0)
    assert points.members == ()


def test_layers_become_members_and_shares() -> None:
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


def test_a_huge_number_is_factored_without_a_warning() -> None:
    rows = [{"batch": size} for size in (1, 3, 5, 6, 7, 12, 2**64, 1e30)]
    assert placed(rows, [*rows, {"batch": -8}, {}]).power_of_two[:, 0].tolist() == [0, 0, 0, 1, 0, 2, 6, 6, 0, 0]


def number_of(values: list[float]) -> Number:
    rows = [{"size": value} for value in values]
    columns = Columns.from_rows(rows)
    (number,) = ConfigEncoder.of(columns.encode(rows), columns, tuned={}).numbers
    return number


@pytest.mark.parametrize(
    ("values", "logarithmic", "stepwise"),
    [
        ([1, 8], True, False),
        ([1, 7.9], False, False),
        ([0, 8], False, False),
        ([-1, 80], False, False),
        ([2, 4, 8, 16, 32, 64], True, False),  # all are powers of two
        ([2, 4, 8, 16, 32, 48], True, True),
        ([1, 2, 3, 4, 5], False, False),  # too few
        ([1, 2, 3, 4, 5, 6], False, True),
        ([1, 2, 3, 4, 5, 6.5], False, False),
        ([0, 2, 3, 4, 5, 6], False, False),
    ],
)
def test_the_scale_of_a_number_follows_its_values(values: list[float], logarithmic: bool, stepwise: bool) -> None:
    number = number_of(values)
    assert (number.name, number.logarithmic, number.stepwise) == ("size", logarithmic, stepwise)
    table = np.array([[value] for value in [*values, float("nan")]])
    scaled = number.scaled(table)
    assert (scaled[:-1].min(), scaled[:-1].max(), scaled[-1]) == (0.0, pytest.approx(1.0), 0.5)
    assert number.unscaled(scaled[:-1]) == pytest.approx(values)


def test_a_number_outside_counts_for_one_range_at_most() -> None:
    linear, logarithmic = number_of([10, 20]), number_of([10, 1000])
    assert linear.scaled(np.array([[5.0], [0.0], [-99.0], [25.0], [30.0], [99.0]])).tolist() == [
        *(-0.5, -1.0, -1.0),
        *(1.5, 2.0, 2.0),
    ]
    assert logarithmic.scaled(np.array([[1.0], [0.0], [-5.0], [1e4], [1e9]])) == pytest.approx(
        [-0.5, -1.0, -1.0, 1.5, 2.0]
    )


def test_layers_lie_apart_by_index_or_by_size() -> None:
    sized = [{**row, "layer_n_params": (8, 1, 1, 1)} for row in ROWS]
    other = [{**row, "layer_n_params": (8, 1, 1)} for row in ROWS]
    empty = [{**row, "layer_n_params": (8, 0, 1, 1)} for row in ROWS]
    varying = [{**row, "layer_n_params": (8, size, 1, 1)} for size, row in enumerate(ROWS, start=1)]
    for rows, far, large in ((ROWS, 1.0, 0.25), (sized, 3 * np.log(8), 8 / 11), (other, 1.0, 0.25), (empty, 1.0, 0.25)):
        columns = Columns.from_rows(rows)
        layered = {each.name: each for each in ConfigEncoder.of(columns.encode(rows), columns, tuned={}).layered}
        assert layered.keys() == {"layers"}
        assert layered["layers"].distance[0, 1] == layered["layers"].distance[1, 0] == pytest.approx(far)
        assert layered["layers"].distance[0, 3] == pytest.approx(3.0 if far == 1.0 else far)
        assert layered["layers"].sizes[0] == pytest.approx(large)
        assert layered["layers"].weights[0] == pytest.approx((large + 0.25) / 2)
    columns = Columns.from_rows(varying)
    (only,) = ConfigEncoder.of(columns.encode(varying), columns, tuned={}).layered
    assert only.sizes.tolist() == [0.25] * 4


def test_a_tuned_parameter_has_all_its_choices() -> None:
    columns = Columns.from_rows([*ROWS, {"kind": "c", "layers": ("z",) * 4, "flag": True}, {"flag": False}])
    tuned = {"kind": ("a", "b", "c"), "layers": ("x", "y", "z"), "flag": (False, True)}
    places = ConfigEncoder.of(columns.encode(ROWS[:1]), columns, tuned=tuned)
    assert sorted(places.category_names) == ["flag", "kind"]
    assert sorted(places.category_of.tolist()) == sorted(
        [places.category_names.index("kind")] * 3 + [places.category_names.index("flag")] * 2
    )
    assert len(places.layered[0].codes) == 3
    points = places.points(columns.encode([{"kind": "c", "flag": True}, {"kind": "a"}]))
    assert points.categories.sum(axis=1).tolist() == [2.0, 1.0]
    assert points.memory_pressure.shape == (2, 0)


def test_tables_are_weighted_by_what_is_looked_up_in_them() -> None:
    facts = {"embedding_dims": (8, 4, 4), "embedding_pooling": (10.0, 5.0, 1.0), "layer_n_params": (1, 1, 98)}
    rows = [{**facts, "embedding_sharding": words} for words in (("a", "b", "b"), ("b", "b", "a"))]
    columns = Columns.from_rows(rows)
    (layered,) = ConfigEncoder.of(columns.encode(rows), columns, tuned={}).layered
    assert layered.name == "embedding_sharding"
    assert layered.sizes == pytest.approx([80 / 104, 20 / 104, 4 / 104])
