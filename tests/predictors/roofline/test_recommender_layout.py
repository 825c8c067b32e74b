"""Layouts of recommenders: which facts suffice, and what stands for those that are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.features.device_specs import REFERENCE
from torchx_cubicml.predictors.roofline.embedding_load import SHARDINGS
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

DENSE: dict[str, Value] = {
    "layer_n_params": (100, 300),
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
    "micro_batch_size": 300,
    "world_size": 64,
}
TABLES: dict[str, Value] = {
    "embedding_rows": (1000, 50),
    "embedding_dims": (64, 8),
    "micro_batch_size": 300,
    "world_size": 64,
}


def layout_of(row: dict[str, Value]) -> RecommenderLayout:
    return RecommenderLayout.from_rows([row])


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (DENSE, {"layer_n_params": 5, "sharding_strategy": ("NO_SHARD",) * 2}),
        (DENSE, {"world_size": "64"}),
        (DENSE, {"world_size": 0.5}),
        (DENSE, {"micro_batch_size": 0}),
        (DENSE, {"sharding_strategy": ("NO_SHARD",) * 3}),
        (DENSE, {"sharding_strategy": None}),
        (DENSE, {"layer_n_params": ()}),
        (DENSE, {"layer_n_params": ("a", "b")}),
        (DENSE, {"layer_n_params": (1e300, 1.0)}),
        (DENSE, {"layer_n_params": (-1, 2)}),
        (DENSE, {"layer_n_params": (True, 5)}),
        (TABLES, {"embedding_dims": (64,)}),
        (TABLES, {"embedding_dims": None}),
        (TABLES, {"micro_batch_size": None}),
    ],
    ids=str,
)
def test_an_incomplete_row_is_not_covered(row: dict[str, Value], changes: dict[str, Value]) -> None:
    assert layout_of(row).covered.all()
    assert not layout_of({**row, **changes}).covered.any()


def test_facts_left_out_have_defaults() -> None:
    layout = layout_of(TABLES)
    assert layout.has_tables.all()
    assert layout.tables.pooling.tolist() == [[1.0, 1.0]]
    assert layout.tables.sharding.tolist() == [[0, 0]]
    assert layout.reserved_share.tolist() == [1.0]
    assert layout.link.tolist() == [REFERENCE.link]
    assert layout.sizes.sum() == 0.0
    assert not layout_of(DENSE).has_tables.any()
    assert layout_of({**DENSE, **TABLES, "sharding_strategy": None}).covered.all()  # TorchRec replicates the dense part


def test_one_word_or_number_stands_for_all() -> None:
    layout = layout_of({**DENSE, **TABLES, "sharding_strategy": "FULL_SHARD", "embedding_sharding": "row_wise"})
    assert layout.sharded.all()
    assert (layout.tables.sharding == SHARDINGS.index("row_wise")).all()
    assert layout_of({**TABLES, "embedding_pooling": 7.0}).tables.pooling.tolist() == [[7.0, 7.0]]


def test_tables_that_are_alike_are_one_kind() -> None:
    alike = {"n_embedding_tables": 10, "embedding_dim": 16, "n_embedding_rows": 1000, "embedding_pooling": 3}
    tables = layout_of({**DENSE, **alike}).tables
    assert tables.count.tolist() == [[10.0]]
    assert tables.rows.tolist() == [[100.0]]
    assert (tables.width.item(), tables.pooling.item()) == (16.0, 3.0)
    assert tables.bytes.item() == 1000 * 16 * 4


def test_nodes_and_processes_stand_for_the_ranks() -> None:
    row = {name: value for name, value in TABLES.items() if name != "world_size"}
    layout = layout_of({**row, "nnodes": 2, "nproc_per_node": 4})
    assert (layout.ranks.item(), layout.per_node.item(), layout.nodes.item()) == (8.0, 4.0, 2.0)


def test_lists_of_another_length_are_left_out() -> None:
    layout = layout_of({**TABLES, "embedding_sharding": ("row_wise",) * 3, "embedding_pooling": (2.0, 3.0, 4.0)})
    assert layout.tables.sharding.tolist() == [[0, 0]]
    assert layout.tables.pooling.tolist() == [[1.0, 1.0]]


def test_rows_of_several_workloads_are_padded() -> None:
    other = {**TABLES, "embedding_rows": (7, 8, 9), "embedding_dims": (1, 2, 3), "embedding_sharding": "row_wise"}
    layout = RecommenderLayout.from_rows([TABLES, other, DENSE])
    assert layout.covered.tolist() == [True, True, True]
    assert layout.has_tables.tolist() == [True, True, False]
    assert layout.tables.rows.tolist() == [[1000, 50, 0], [7, 8, 9], [0, 0, 0]]
    chosen = layout.at(np.array([False, True, False]))
    assert len(chosen) == 1
    assert chosen.load.mean.tolist() == layout_of(other).load.mean.tolist()
