from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.features.columns import (
    MAX_CATEGORIES,
    MAX_ENTRIES,
    MAX_SHARES,
    VOLATILE_FACTS,
    Columns,
    unseen_word,
)

ROWS = [
    {"micro_batch_size": 4, "lr": 0.5, "precision": "bf16", "compile": True},
    {"micro_batch_size": 8, "lr": 1, "precision": "fp32", "compile": False},
]
LAYERS = [
    {"sharding_strategy": ("FULL_SHARD", "FULL_SHARD", "NO_SHARD", "NO_SHARD")},
    {"sharding_strategy": ("NO_SHARD", "SHARD_GRAD_OP")},
]


def by_name(columns: Columns, row: dict[str, object]) -> dict[str, float]:
    return dict(zip(columns.names, columns.encode([row])[0].tolist(), strict=True))


def test_numbers_stay_numbers_and_words_become_categories() -> None:
    columns = Columns.from_rows(ROWS)
    assert dict(zip(columns.names, columns.categorical, strict=True)) == {
        "compile": True,
        "lr": False,
        "micro_batch_size": False,
        "precision": True,
    }
    assert by_name(columns, ROWS[0]) == {"compile": 1.0, "lr": 0.5, "micro_batch_size": 4.0, "precision": 0.0}
    assert by_name(columns, ROWS[1]) == {"compile": 0.0, "lr": 1.0, "micro_batch_size": 8.0, "precision": 1.0}


@pytest.mark.parametrize(
    "row",
    [{}, {"precision": "int4"}, {"precision": 4}, {"precision": True}, {"precision": ("bf16",)}],
    ids=["missing", "unseen", "number", "boolean", "tuple"],
)
def test_a_category_that_was_never_seen_is_missing(row: dict[str, object]) -> None:
    assert math.isnan(by_name(Columns.from_rows(ROWS), row)["precision"])


@pytest.mark.parametrize(
    "row", [{}, {"lr": "high"}, {"lr": True}, {"lr": (1.0,)}], ids=["missing", "text", "boolean", "tuple"]
)
def test_what_is_no_number_is_missing(row: dict[str, object]) -> None:
    assert math.isnan(by_name(Columns.from_rows(ROWS), row)["lr"])


def test_numbers_stay_numbers_beside_a_word() -> None:
    columns = Columns.from_rows([{"groups": 4}, {"groups": "auto"}, {"groups": 8}, {"groups": 16}, {"groups": True}])
    assert dict(zip(columns.names, columns.categorical, strict=True)) == {"groups": False, "groups.other": True}
    assert by_name(columns, {"groups": 5}) == pytest.approx({"groups": 5.0, "groups.other": math.nan}, nan_ok=True)
    assert by_name(columns, {"groups": "auto"}) == pytest.approx({"groups": math.nan, "groups.other": 1.0}, nan_ok=True)
    assert columns.of(["groups"]) == [0, 1]


def test_words_stay_words_beside_a_number() -> None:
    columns = Columns.from_rows([{"precision": "bf16"}, {"precision": "fp32"}, {"precision": 32}])
    assert dict(zip(columns.names, columns.categorical, strict=True)) == {"precision": True}
    codes = {by_name(columns, {"precision": value})["precision"] for value in ("bf16", "fp32", 32)}
    assert len(codes) == 3


def test_true_is_not_one() -> None:
    columns = Columns.from_rows([{"x": True}, {"x": 1}, {"x": "True"}])
    assert len({float(code) for code in columns.encode([{"x": True}, {"x": 1}, {"x": "True"}])[:, 0]}) == 3


class TestTuples:
    def test_each_entry_is_a_category_and_each_choice_has_a_share(self) -> None:
        columns = Columns.from_rows(LAYERS)
        assert columns.names == (
            "sharding_strategy[0]",
            "sharding_strategy[1]",
            "sharding_strategy[2]",
            "sharding_strategy[3]",
            "sharding_strategy.share(FULL_SHARD)",
            "sharding_strategy.share(NO_SHARD)",
            "sharding_strategy.share(SHARD_GRAD_OP)",
        )
        assert columns.categorical == (True,) * 4 + (False,) * 3
        np.testing.assert_array_equal(
            columns.encode(LAYERS),
            [[0, 0, 1, 1, 0.5, 0.5, 0], [1, 2, np.nan, np.nan, 0, 0.5, 0.5]],
        )

    def test_one_value_for_all_layers_is_the_uniform_tuple(self) -> None:
        columns = Columns.from_rows(LAYERS)
        uniform, one = columns.encode([{"sharding_strategy": ("NO_SHARD",) * 4}, {"sharding_strategy": "NO_SHARD"}])
        np.testing.assert_array_equal(uniform, one)

    def test_a_word_that_replaces_all_layers_is_a_category_too(self) -> None:
        columns = Columns.from_rows([*LAYERS, {"sharding_strategy": "DDP"}])
        assert by_name(columns, {"sharding_strategy": "DDP"})["sharding_strategy.share(DDP)"] == 1.0

    def test_an_entry_that_was_never_seen_is_missing_and_the_shares_know(self) -> None:
        encoded = by_name(Columns.from_rows(LAYERS), {"sharding_strategy": ("HYBRID_SHARD", "NO_SHARD")})
        assert math.isnan(encoded["sharding_strategy[0]"])
        assert encoded["sharding_strategy[1]"] == 1.0
        assert encoded["sharding_strategy.share(NO_SHARD)"] == 0.5

    def test_more_layers_than_were_seen_are_encoded_by_their_shares(self) -> None:
        encoded = by_name(Columns.from_rows(LAYERS), {"sharding_strategy": ("NO_SHARD",) * 9 + ("FULL_SHARD",)})
        assert encoded["sharding_strategy.share(NO_SHARD)"] == 0.9

    def test_numbers_per_layer_stay_numbers(self) -> None:
        columns = Columns.from_rows([{"layer_n_params": (100, 300)}, {"layer_n_params": (200, 300)}])
        assert columns.categorical == (False,) * len(columns.names)
        assert by_name(columns, {"layer_n_params": (150, 300)})["layer_n_params[0]"] == 150.0

    def test_sizes_that_all_differ_have_no_shares(self) -> None:
        columns = Columns.from_rows([{"sizes": tuple(range(MAX_SHARES + 1))}])
        assert not any("share" in name for name in columns.names)

    def test_a_tuple_without_end_has_columns_with_an_end(self) -> None:
        columns = Columns.from_rows([{"x": ("a", "b") * 2000}])
        assert len(columns.names) == MAX_ENTRIES + 2

    def test_an_empty_tuple_is_missing(self) -> None:
        assert np.isnan(Columns.from_rows(LAYERS).encode([{"sharding_strategy": ()}])).all()
        assert Columns.from_rows([{"x": ()}]).encode([{"x": ()}, {"x": "a"}]).shape == (2, 0)


def test_what_differs_for_no_reason_is_no_column() -> None:
    assert Columns.from_rows([dict.fromkeys(VOLATILE_FACTS, "x") | {"n_layers": 2}]).names == ("n_layers",)


def test_rare_categories_go_before_trees_refuse_the_column() -> None:
    rows = [{"x": f"v{number}"} for number in range(1000)] + [{"x": "often"}] * 3
    columns = Columns.from_rows(rows)
    codes = columns.encode(rows)[:, 0]
    assert np.nanmax(codes) == MAX_CATEGORIES - 1
    assert not math.isnan(codes[-1])


def test_no_rows_make_no_columns() -> None:
    columns = Columns.from_rows([])
    assert (columns.names, columns.categorical) == ((), ())
    assert columns.encode(ROWS).shape == (2, 0)
    assert Columns.from_rows(ROWS).encode([]).shape == (0, 4)


scalars = st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0]) | st.sampled_from(["a", "b", "True", "1"])
values = scalars | st.lists(scalars, max_size=3).map(tuple)
tables = st.lists(st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=3), max_size=6)


@given(tables, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_order_of_rows_never_matters(rows, shuffler) -> None:
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    columns = Columns.from_rows(shuffled)
    assert columns == Columns.from_rows(rows)
    np.testing.assert_array_equal(columns.encode(rows), Columns.from_rows(rows).encode(rows))


@given(tables, tables)
@settings(max_examples=60)
def test_any_rows_fit_any_columns(rows, others) -> None:
    columns = Columns.from_rows(rows)
    table = columns.encode(others)
    assert table.shape == (len(others), len(columns.names)) == (len(others), len(columns.categorical))


@pytest.mark.parametrize(
    ("name", "seen", "asked", "word"),
    [("precision", "bf16", "fp8", "fp8"), ("device", "NVIDIA A100-SXM4-80GB", "NVIDIA GB300", "gb300")],
)
def test_a_standard_word_keeps_its_meaning_though_no_trial_had_it(name: str, seen: str, asked: str, word: str) -> None:
    columns = Columns.from_rows([{name: seen}])
    codes = columns.encode([{name: seen}, {name: asked}])[:, columns.names.index(name)]
    assert [unseen_word(name, code) for code in codes] == [None, word]


def test_a_known_device_is_described_by_what_it_can_do() -> None:
    columns = Columns.from_rows([{"device": "H100"}, {"device": "abacus"}])
    assert columns.names == ("device", "device.tflops", "device.memory_gb")
    assert columns.encode([{"device": "H100"}])[0].tolist() == [0.0, 989.4, 80.0]
    assert np.isnan(columns.encode([{"device": "abacus"}])[0, 1:]).all()
