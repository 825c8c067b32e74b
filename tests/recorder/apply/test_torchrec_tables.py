from __future__ import annotations

import sys

import pytest
from torch import nn

from tests.recorder.apply.torchrec_stand_in import Around, Bags, Sequences, Sharder, stand_ins
from torchx_cubicml.recorder.apply.torchrec_tables import PlannedTable, planned_tables


@pytest.fixture(autouse=True)
def torchrec(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)


def test_tables_come_module_after_module_as_each_lists_them() -> None:
    model = nn.ModuleDict({"z": Bags(b=3, a=5), "n": nn.Linear(1, 1), "a": Sequences(c=7)})
    found = planned_tables(model, [Sharder()], "cpu")
    assert [(table.name, table.rows, table.width) for table in found] == [("b", 3, 4), ("a", 5, 4), ("c", 7, 4)]
    offers = {"table_wise": ("fused",), "row_wise": ("fused",), "data_parallel": ("dense",)}
    assert [table.kernels for table in found] == [offers, offers, {}]
    assert planned_tables(model, [Sharder(), Sharder(Sequences, {"row_wise": ["fused"]})], "cpu")[2].kernels == {
        "row_wise": ("fused",)
    }


def test_a_collection_around_another_counts_once_and_has_the_outer_sharder() -> None:
    inner = Bags(a=5)
    sharders = [Sharder(Around, {"row_wise": ["fused"]}), Sharder()]
    (table,) = planned_tables(nn.Sequential(Around(inner)), sharders, "cpu")
    assert (table.name, table.kernels) == ("a", {"row_wise": ("fused",)})
    (table,) = planned_tables(Around(inner), [Sharder()], "cpu")
    assert list(table.kernels) == ["table_wise", "row_wise", "data_parallel"]  # the inner one is sharded


def test_without_torchrec_a_model_has_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchrec.modules.embedding_modules")
    assert planned_tables(Bags(a=5), [], "cpu") == []


@pytest.mark.parametrize(
    ("sharding", "kernel", "reason"),
    [
        ("", "", ""),
        ("row_wise", "", ""),
        ("", "dense", ""),
        ("row_wise", "fused", ""),
        ("grid_shard", "", "the sharder of the table t does not offer grid_shard on cpu"),
        ("row_wise", "dense", "the sharder of the table t does not offer the kernel dense with row_wise on cpu"),
        ("", "key_value", "the sharder of the table t does not offer the kernel key_value on cpu"),
    ],
)
def test_what_a_sharder_does_not_offer_is_an_obstacle(sharding: str, kernel: str, reason: str) -> None:
    kernels = {"row_wise": ("fused",), "data_parallel": ("dense",)}
    table = PlannedTable(name="t", rows=1, width=1, kernels=kernels)
    assert table.obstacle(sharding, kernel, "cpu") == reason
    unsharded = PlannedTable(name="t", rows=1, width=1, kernels={})
    assert unsharded.obstacle(sharding, kernel, "cpu") == (
        "no sharder of the program shards the table t" if sharding or kernel else ""
    )
