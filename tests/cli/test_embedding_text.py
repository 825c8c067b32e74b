from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.embedding_text import table_lines

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

FACTS: dict[str, Value] = {
    "n_embedding_tables": 3,
    "embedding_tables": ("ads", "clicks", "hours"),
    "embedding_rows": (400_000, 500, 24),
    "embedding_dims": (64, 16, 4),
    "embedding_pooling": (2.018, 6.0, 1.0),
    "embedding_pooling_types": ("sum", "none", "mean"),
    "embedding_sharding": ("grid_shard", "row_wise", "table_wise"),
    "embedding_kernel": ("fused_uvm", "fused", "fused"),
    "embedding_ranks": ("0-3+0-3", "0+1", "2"),
}


def test_each_table_has_a_line_with_its_ranks() -> None:
    assert table_lines(FACTS) == [
        "ads: 400,000 x 64, sum of 2.018 rows, grid_shard (fused_uvm) on ranks 0-3 (8 shards)",
        "clicks: 500 x 16, 6 rows, row_wise (fused) on ranks 0+1",
        "hours: 24 x 4, mean of 1 rows, table_wise (fused) on rank 2",
    ]


def test_unknown_facts_are_left_out() -> None:
    known = {name: FACTS[name] for name in ("n_embedding_tables", "embedding_rows", "embedding_dims")}
    assert table_lines(known) == ["0: 400,000 x 64", "1: 500 x 16", "2: 24 x 4"]
    pooled = table_lines({**known, "embedding_pooling_types": ("sum", "none", "mean")})
    assert pooled == ["0: 400,000 x 64, sum", "1: 500 x 16", "2: 24 x 4, mean"]


@pytest.mark.parametrize(
    "change",
    [
        {"n_embedding_tables": 2},
        {"embedding_rows": (1, 2)},
        {"embedding_rows": (1, 2, "many")},
        {"embedding_rows": 5},
        {"embedding_dims": (1.5, 2.5, 3.5)},
    ],
)
def test_facts_that_do_not_fit_together_have_no_lines(change: dict[str, Value]) -> None:
    assert table_lines({**FACTS, **change}) == []


def test_many_tables_are_cut_with_their_number() -> None:
    many = {"n_embedding_tables": 1500, "embedding_rows": (7,) * 1500, "embedding_dims": (4,) * 1500}
    lines = table_lines(many)
    assert (len(lines), lines[-1]) == (101, "and 1,400 more: see --json")
    assert table_lines({}) == []
