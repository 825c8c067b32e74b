from __future__ import annotations

import pytest
from torch import nn

from tests.recorder.model import recommenders as stand_ins
from tests.recorder.model.recommenders import Interaction, Pooling, SequenceTable, Table, sharded, torchrec
from torchx_cubicml.recorder.model.embeddings import embedding_facts, format_ranks, train_pipeline

__all__ = ["torchrec"]
ADS, PAGES = Table(name="ads", num_embeddings=1000), Table(name="pages", embedding_dim=8, pooling=Pooling.MEAN)
CLICKS = SequenceTable(name="clicks")


@pytest.mark.usefixtures("torchrec")
class TestEmbeddingFacts:
    def test_sharded_tables_have_all_facts(self) -> None:
        plan = {"ads": sharded("data_parallel", None, "dense"), "pages": sharded("column_wise", [3, 0, 0])}
        assert embedding_facts(Interaction(stand_ins.ShardedEmbeddingBagCollection(plan, ADS, PAGES))) == {
            "n_embedding_tables": 2,
            "embedding_tables": ("ads", "pages"),
            "embedding_rows": (1000, 10),
            "embedding_dims": (4, 8),
            "embedding_pooling_types": ("sum", "mean"),
            "embedding_sharding": ("data_parallel", "column_wise"),
            "embedding_kernel": ("dense", "fused"),
            "embedding_ranks": ("0-3", "3+0+0"),
        }

    def test_a_table_without_a_plan_leaves_the_plan_out(self) -> None:
        plan = {"ads": sharded("row_wise", None)}
        model = Interaction(
            stand_ins.ShardedEmbeddingBagCollection(plan, ADS),
            stand_ins.EmbeddingCollection(CLICKS),
        )
        facts = embedding_facts(model)
        assert facts["embedding_pooling_types"] == ("sum", "none")
        assert not {"embedding_sharding", "embedding_kernel", "embedding_ranks"} & facts.keys()
        alone = embedding_facts(model.sparse[0])
        assert (alone["embedding_sharding"], "embedding_ranks" in alone) == (("row_wise",), False)

    def test_of_very_many_tables_only_the_number_is_kept(self) -> None:
        tables = [Table(name=f"t{index}", num_embeddings=1) for index in range(1001)]
        assert embedding_facts(stand_ins.EmbeddingBagCollection(*tables)) == {"n_embedding_tables": 1001}
        assert embedding_facts(nn.Linear(2, 2)) == {}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0+1"),
        ([0, 1, 2], "0-2"),
        ([2, 1, 0], "2+1+0"),
        ([0, 0, 1, 2, 5, 6], "0+0-2+5+6"),
        (list(range(8)) * 2, "0-7+0-7"),
    ],
)
def test_ranks_are_a_text_that_can_be_read_back(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text
    bounds = [word.split("-") for word in text.split("+") if word]
    assert [rank for bound in bounds for rank in range(int(bound[0]), int(bound[-1]) + 1)] == ranks


def test_the_pipeline_is_that_whose_progress_is_running() -> None:
    def progress(self: object) -> str:
        return train_pipeline()

    module = "torchrec.distributed.train_pipeline.train_pipelines"
    pipeline = type("TrainPipelineSparseDist", (), {"__module__": module, "progress": progress})
    derived = type("OurPipeline", (pipeline,), {})
    other = type("TrainPipeline", (), {"progress": progress})
    assert train_pipeline() == ""
    assert [kind().progress() for kind in (pipeline, derived, other)] == ["TrainPipelineSparseDist"] * 2 + [""]
