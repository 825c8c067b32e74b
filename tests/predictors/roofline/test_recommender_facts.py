"""Facts of recommenders: decoded from encoded rows, they are those of the rows themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_DEFAULTS
from torchx_cubicml.predictors.roofline.recommender_facts import RecommenderDecoder
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_time import recommender_step_time

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

BASE: dict[str, Value] = {
    "embedding_rows": (1000, 50, 7),
    "embedding_dims": (64, 8, 256),
    "embedding_pooling": (2.5, 1.0, 9.0),
    "embedding_pooling_types": ("sum", "none", "mean"),
    "embedding_kernel": ("fused", "dense", "fused_uvm"),
    "layer_n_params": (100, 300),
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
    "micro_batch_size": 300,
    "world_size": 4,
    "device": "NVIDIA A100-SXM4-80GB",
}
ROWS: list[dict[str, Value]] = [
    {**BASE, "embedding_sharding": ("row_wise", "table_wise", "data_parallel")},
    {**BASE, "embedding_sharding": ("planner", "row_wise", "column_wise"), "embedding_ranks": ("0+1", "0", "0-3")},
    {**BASE, "embedding_sharding": "table_wise", "sharding_strategy": "SHARD_GRAD_OP", "reserved_share": 0.2},
    {**BASE, "embedding_rows": (9, 9), "embedding_dims": (4, 4), "embedding_sharding": ("row_wise", "table_wise")},
    {"n_embedding_tables": 4, "embedding_dim": 8, "n_embedding_rows": 100, "micro_batch_size": 2, "world_size": 2},
    {"n_layers": 3, "world_size": 2},
]
ROWS[3] = {
    name: value for name, value in ROWS[3].items() if name in {"embedding_rows", "embedding_dims"} | set(ROWS[4])
} | {
    "embedding_sharding": ("row_wise", "table_wise"),
    "device": "cpu",
}


def decoded(columns: Columns, rows: list[dict[str, Value]]) -> RecommenderLayout:
    return RecommenderLayout.of(RecommenderDecoder(columns, ROWS).facts(columns.encode(rows)))


def test_decoded_facts_predict_as_the_rows_do() -> None:
    columns = Columns.from_rows(ROWS)
    layout, expected = decoded(columns, ROWS), RecommenderLayout.from_rows(ROWS)
    assert layout.covered.tolist() == expected.covered.tolist() == [True] * 5 + [False]
    assert layout.has_tables.tolist() == expected.has_tables.tolist()
    found, wanted = (recommender_step_time(each, RECOMMENDER_DEFAULTS) for each in (layout, expected))
    for name, part in wanted.items():
        assert found[name][layout.covered] == pytest.approx(part[layout.covered])


def test_a_word_that_no_trial_had_is_read() -> None:
    columns = Columns.from_rows([ROWS[0]])
    new = {**BASE, "embedding_sharding": ("table_row_wise", "grid_shard", "column_wise"), "device": "cpu"}
    layout, expected = decoded(columns, [new]), RecommenderLayout.from_rows([new])
    assert layout.tables.sharding.tolist() == expected.tables.sharding.tolist()
    assert layout.link.tolist() == expected.link.tolist()


def test_a_table_of_other_facts_has_no_recommender() -> None:
    columns = Columns.from_rows([ROWS[5]])
    decoder = RecommenderDecoder(columns, [ROWS[5]])
    assert not decoder.is_recommender
    assert not RecommenderLayout.of(decoder.facts(columns.encode([ROWS[5]]))).covered.any()
    assert len(decoder.facts(np.empty((0, len(columns.names))))) == 0
