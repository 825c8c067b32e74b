"""Levers of a recommender: its batch, its ranks, and one sharding for tables that are left to the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.recommender_levers import recommender_levers

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

ROW: dict[str, Value] = {"micro_batch_size": 64, "world_size": 2, "nnodes": 1, "embedding_rows": (10, 20)}


def names(row: dict[str, Value]) -> set[str]:
    return {name for lever in recommender_levers(row) for name in lever.values}


def test_planned_tables_may_be_sharded_in_one_way() -> None:
    levers = recommender_levers({**ROW, "embedding_sharding": ("planner", "planner")})
    words = [lever.values["embedding_sharding"] for lever in levers if "embedding_sharding" in lever.values]
    assert words == [(word,) * 2 for word in ("table_wise", "row_wise", "column_wise", "data_parallel")]


def test_replicated_tables_of_plain_torch_have_no_sharding_to_change() -> None:
    assert "embedding_sharding" not in names({**ROW, "embedding_sharding": ("data_parallel",) * 2})
    assert "embedding_sharding" not in names({**ROW, "world_size": 1, "embedding_sharding": ("planner",) * 2})


def test_twice_the_ranks_are_twice_the_nodes_and_odd_batches_are_not_halved() -> None:
    levers = [dict(lever.values) for lever in recommender_levers({**ROW, "micro_batch_size": 3})]
    assert levers == [{"micro_batch_size": 6}, {"world_size": 4, "nnodes": 2}]
