"""Memory of recommenders: counts by hand, and shardings that trade it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_memory import (
    RECOMMENDER_MEMORY_PARTS,
    recommender_memory_parts,
)

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

ROW: dict[str, Value] = {
    "layer_n_params": (100_000_000, 300_000_000),
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
    "micro_batch_size": 300,
    "world_size": 64,
    "device": "NVIDIA H100 80GB HBM3",
}
TABLES: dict[str, Value] = {"embedding_rows": (1000, 50), "embedding_dims": (64, 8)}
NO_TABLES = dict.fromkeys(("embeddings", "embedding_states", "embedding_buffers"), 0.0)


def memory(**changes: Value) -> dict[str, float]:
    parts = recommender_memory_parts(RecommenderLayout.from_rows([{**ROW, **changes}]))
    return {name: float(part[0]) for name, part in parts.items()}


def test_strategies_trade_memory_for_communication() -> None:
    full, once, none = (
        sum(memory(sharding_strategy=name).values()) for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
    )
    assert full == pytest.approx(once)  # of two layers, both are whole at a time
    assert once < none
    assert none == pytest.approx(18 * 400e6)
    assert once == pytest.approx((2 + 16 / 64) * 400e6)
    assert full == pytest.approx(18 / 64 * 400e6 + 2 * 400e6 * 63 / 64)


@pytest.mark.parametrize(
    ("strategy", "weights", "states", "gathered"),
    [
        ("FULL_SHARD", 1 / 64, 1 / 64, 63 / 64),
        ("HYBRID_SHARD", 1 / 64, 1 / 64, 63 / 64),
        ("SHARD_GRAD_OP", 1, 1 / 64, 0),
        ("_HYBRID_SHARD_ZERO2", 1, 1 / 64, 0),
        ("NO_SHARD", 1, 1, 0),
    ],
)
def test_each_strategy_divides_its_states(strategy: str, weights: float, states: float, gathered: float) -> None:
    """Of three layers, the two largest are whole at a time."""
    found = memory(layer_n_params=(100e6, 300e6, 200e6), sharding_strategy=strategy)
    expected = {"weights": 2 * 600e6 * weights, "gradients": 4 * 600e6 * states, "optimizer": 12 * 600e6 * states}
    assert found == pytest.approx({**expected, "gathered": 2 * 500e6 * gathered, **NO_TABLES})
    assert tuple(found) == RECOMMENDER_MEMORY_PARTS


def test_tables_that_are_alike_are_divided_among_the_ranks() -> None:
    found = memory(n_embedding_tables=100, embedding_dim=128, n_embedding_rows=10**9)
    assert found["embeddings"] == pytest.approx(10**9 * 128 * 4 / 64)
    assert found["embedding_states"] == pytest.approx(10**9 * 4 / 64)


def test_the_fullest_rank_holds_the_largest_table() -> None:
    sizes = [1000 * 64 * 4, 50 * 8 * 4]
    held = {
        word: memory(**TABLES, embedding_sharding=word)["embeddings"]
        for word in ("table_wise", "row_wise", "data_parallel")
    }
    assert held["table_wise"] == sizes[0]
    assert held["row_wise"] == pytest.approx(sum(sizes) / 64)
    assert held["data_parallel"] == sum(sizes)
    replicated = memory(**TABLES, embedding_sharding="data_parallel")
    assert replicated["embedding_states"] == pytest.approx(3 * sum(sizes))  # a gradient and two moments of each row
