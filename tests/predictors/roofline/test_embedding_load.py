"""The load of each rank: against a plain enumeration of all placements, and against counts by hand."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.embedding_load import QUANTITIES, SHARDINGS, EmbeddingLoad, busy_ranks, placed
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SAMPLES = 100
ROW: dict[str, Value] = {
    "embedding_rows": (1000, 500),
    "embedding_dims": (32, 256),
    "embedding_pooling": (3.0, 1.0),
    "micro_batch_size": SAMPLES,
    "world_size": 4,
    "nproc_per_node": 4,
    "device": "cpu",
}
SHARDED = [word for word in SHARDINGS if word != "planner"]


def layout_of(**changes: Value) -> RecommenderLayout:
    return RecommenderLayout.from_rows([{**ROW, **changes}])


def load_of(**changes: Value) -> EmbeddingLoad:
    return layout_of(**changes).load


def mean(name: str, **changes: Value) -> float:
    return float(load_of(**changes).mean[0, QUANTITIES.index(name)])


def most(name: str, **changes: Value) -> float:
    return float(load_of(**changes).fullest[0, :, QUANTITIES.index(name)].max())


@pytest.mark.parametrize("word", SHARDED)
def test_every_sharding_looks_up_all_rows_of_all_samples(word: str) -> None:
    """A cut by columns looks a row up once for each of its shards."""
    times = np.array([1, 2 if word in {"column_wise", "table_column_wise"} else 1])  # 256 columns are two shards
    assert mean("rows", embedding_sharding=(word, word)) == pytest.approx(SAMPLES * (times * [3.0, 1.0]).sum())
    expected = SAMPLES * (3.0 * 32 + 256) * 4
    assert mean("row_bytes", embedding_sharding=(word, word)) == pytest.approx(expected)


@pytest.mark.parametrize("word", SHARDED)
def test_each_number_of_a_table_is_held_once_unless_replicated(word: str) -> None:
    tables = (1000 * 32 + 500 * 256) * 4
    held = mean("held", embedding_sharding=(word, word))
    assert held == pytest.approx(tables if word == "data_parallel" else tables / 4)


@pytest.mark.parametrize("word", SHARDINGS)
def test_one_process_sends_nothing(word: str) -> None:
    for name in ("sent", "scattered", "scattered_in_node", "received", "sorted"):
        assert most(name, embedding_sharding=(word, word), world_size=1) == 0.0


def test_the_owner_of_a_table_serves_the_samples_of_all_ranks() -> None:
    one = {"embedding_rows": (1000,), "embedding_dims": (32,), "embedding_pooling": (3.0,)}
    assert most("rows", **one, embedding_sharding=("table_wise",)) == 4 * SAMPLES * 3
    assert most("sent", **one, embedding_sharding=("table_wise",)) == 4 * SAMPLES * 32 * 4 * 3 / 4
    assert most("received", **one, embedding_sharding=("table_wise",)) == 8 * 4 * SAMPLES * (3 + 1) * 3 / 4


def test_row_wise_shards_reduce_partial_sums_of_all_samples() -> None:
    one = {"embedding_rows": (1000,), "embedding_dims": (32,), "embedding_pooling": (3.0,)}
    word = {"embedding_sharding": ("row_wise",)}
    assert most("rows", **one, **word) == SAMPLES * 3
    assert most("pooled_bytes", **one, **word) == 4 * SAMPLES * 32 * 4
    assert most("scattered", **one, **word) == 3 * SAMPLES * 32 * 4
    assert most("sent", **one, **word) == 0.0
    listed = {**one, **word, "embedding_pooling_types": ("none",)}
    assert most("sent", **listed) == SAMPLES * 3 * 32 * 4 * 3 / 4  # rows that are not pooled go to their sample's rank
    assert most("scattered", **listed) == 0.0


def test_a_table_on_one_node_reduces_within_it_and_sends_the_rest() -> None:
    one = {"embedding_rows": (1000,), "embedding_dims": (32,), "embedding_pooling": (3.0,), "world_size": 8}
    word = {"embedding_sharding": ("table_row_wise",)}
    pooled = 8 * SAMPLES * 32 * 4
    assert most("scattered_in_node", **one, **word) == pytest.approx(pooled * 3 / 4)
    assert most("sent", **one, **word) == pytest.approx(pooled / 4 / 2)
    assert most("rows", **one, **word) == 8 * SAMPLES * 3 / 4
    assert mean("rows", **one, **word) == SAMPLES * 3


def test_a_known_owner_is_taken() -> None:
    words = {"embedding_sharding": ("table_wise", "table_wise")}
    apart = most("rows", **words, embedding_ranks=("0", "1"))
    together = most("rows", **words, embedding_ranks=("2", "2"))
    assert apart == 4 * SAMPLES * 3
    assert together == 4 * SAMPLES * (3 + 1)
    assert most("rows", **words) == apart


def test_the_shards_that_a_plan_names_count() -> None:
    word = {"embedding_sharding": ("column_wise", "column_wise")}
    by_default, told = (mean("shards", **word, **more) for more in ({}, {"embedding_ranks": ("0+1", "0-3")}))
    assert (by_default, told) == ((1 + 2) / 4, (2 + 4) / 4)


tables = st.lists(
    st.tuples(st.integers(1, 10**6), st.sampled_from((4, 16, 64)), st.floats(1.0, 30.0)), min_size=1, max_size=5
)


def fullest_seconds(loads: np.ndarray, seconds: np.ndarray) -> float:
    return float((loads @ seconds).max())


@settings(deadline=None)
@given(tables=tables, ranks=st.integers(1, 3))
def test_imbalance_is_that_of_the_best_placement_within_its_bound(
    tables: list[tuple[int, int, float]], ranks: int
) -> None:
    """Longest processing time first is at most 4/3 - 1/(3 ranks) of the best (Graham 1969)."""
    rows, dims, pooling = zip(*tables, strict=True)
    changes: dict[str, Value] = {"embedding_rows": rows, "embedding_dims": dims, "embedding_pooling": pooling}
    words: dict[str, Value] = {"embedding_sharding": ("table_wise",) * len(tables)}
    layout = layout_of(**changes, **words, world_size=ranks)
    seconds = np.zeros(len(QUANTITIES))
    seconds[QUANTITIES.index("rows")], seconds[QUANTITIES.index("row_bytes")] = 64.0, 1.0
    found = fullest_seconds(placed(layout.tables, seconds[None], ranks=ranks)[0], seconds)
    costs = [ranks * SAMPLES * each[2] * (64.0 + 4 * each[1]) for each in tables]
    best = min(
        max(sum(cost for cost, at in zip(costs, owners, strict=True) if at == rank) for rank in range(ranks))
        for owners in product(range(ranks), repeat=len(tables))
    )
    assert best * (1 - 1e-9) <= found <= best * (4 / 3 - 1 / (3 * ranks)) * (1 + 1e-9)


@settings(deadline=None)
@given(tables=tables, words=st.data())
def test_the_ranks_that_are_kept_contain_the_one_that_all_wait_for(
    tables: list[tuple[int, int, float]], words: st.DataObject
) -> None:
    rows, dims, pooling = zip(*tables, strict=True)
    sharding = tuple(words.draw(st.sampled_from(SHARDED)) for _ in tables)
    changes: dict[str, Value] = {"embedding_rows": rows, "embedding_dims": dims, "embedding_pooling": pooling}
    load = load_of(**changes, embedding_sharding=sharding)
    assert (load.fullest.max(axis=1) >= load.mean * (1 - 1e-9))[0, : QUANTITIES.index("pooled_bytes")].all()
    assert (load.fullest >= 0.0).all()


@pytest.mark.parametrize("word", SHARDED)
def test_many_ranks_cost_no_more_than_there_are_shards(word: str) -> None:
    many = {"embedding_sharding": (word, word), "world_size": 100_000, "nproc_per_node": 8}
    assert busy_ranks(layout_of(**many).tables, ranks=100_000) <= 8 * 4
    assert mean("held", **many) > 0.0
    assert not layout_of(**{**many, "world_size": 10**12}).covered.any()


def test_texts_and_widths_beyond_all_bounds_are_taken_as_unknown() -> None:
    wide = layout_of(
        embedding_dims=(10**9 + 7, 8), embedding_sharding="column_wise", embedding_ranks=("0-10000000", "9")
    )
    assert wide.tables.column_shards.tolist() == [[1.0, 1.0]]
    assert most("rows", embedding_sharding="table_wise", embedding_ranks=("999999999999", "1")) == 4 * SAMPLES * 3
