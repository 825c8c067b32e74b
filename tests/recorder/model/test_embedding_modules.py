from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.recorder.model import recommenders as stand_ins
from tests.recorder.model.recommenders import Interaction, Table, sharded, torchrec
from torchx_cubicml.recorder.model.dense_layers import dense_layer_sizes
from torchx_cubicml.recorder.model.embedding_modules import (
    embedding_modules,
    is_embedding_module,
    is_kernel,
    sharded_size,
)
from torchx_cubicml.recorder.model.layers import repeated_blocks, unwrap
from torchx_cubicml.recorder.model.sharding import read_sharding
from torchx_cubicml.recorder.model.size import count_parameters, parameter_format

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["torchrec"]
ADS, PAGES = Table(name="ads", num_embeddings=1000), Table(name="pages", num_embeddings=50, embedding_dim=8)
PLAN = {"ads": sharded("row_wise", [0, 1, 2, 3]), "pages": sharded("table_wise", [0])}
TABLES = 1000 * 4 + 50 * 8
DENSE = 10 + 32 + 1


def sharded_model(local: int = 1) -> Interaction:
    return Interaction(stand_ins.ShardedEmbeddingBagCollection(PLAN, ADS, PAGES, local=local))


def whole_model() -> Interaction:
    return Interaction(stand_ins.EmbeddingBagCollection(ADS, PAGES))


@pytest.mark.usefixtures("torchrec")
class TestEmbeddingModules:
    def test_modules_are_found_once_in_order(self) -> None:
        first, second = stand_ins.EmbeddingBagCollection(ADS), stand_ins.EmbeddingCollection()
        model = Interaction(first, stand_ins.EmbeddingBagCollection(PAGES), first, second)
        assert embedding_modules(model) == [model.sparse[0], model.sparse[1]]  # the last has no table
        assert not is_embedding_module(nn.Embedding(3, 4))

    @pytest.mark.parametrize("make", [sharded_model, whole_model])
    def test_parameters_count_each_table_once_and_whole(self, make: Callable[[], Interaction]) -> None:
        assert count_parameters(make()) == (TABLES + DENSE, TABLES + DENSE)
        model = make()
        for part in (model.bottom, model.top):
            part.requires_grad_(requires_grad=False)
        assert count_parameters(stand_ins.DistributedModelParallel(model)) == (TABLES + DENSE, TABLES)

    def test_frozen_shards_are_not_trained_and_absent_ones_are(self) -> None:
        frozen = stand_ins.ShardedEmbeddingBagCollection(PLAN, ADS, PAGES).requires_grad_(requires_grad=False)
        assert sharded_size(frozen) == (TABLES, 0)
        assert sharded_size(stand_ins.ShardedEmbeddingBagCollection(PLAN, ADS, PAGES, local=0)) == (TABLES, TABLES)
        assert sharded_size(stand_ins.EmbeddingBagCollection(ADS)) == (0, 0)

    @pytest.mark.parametrize("make", [sharded_model, whole_model])
    def test_dense_layers_are_without_tables(self, make: Callable[[], Interaction]) -> None:
        model = stand_ins.DistributedModelParallel(make())
        assert read_sharding(model, world_size=4).facts()["layer_n_params"] == (10, 32, 1)
        assert repeated_blocks(model) == []
        assert unwrap(model) is model._dmp_wrapped_module

    def test_wrapped_parts_are_the_dense_layers_if_they_are_all(self) -> None:
        model = sharded_model()
        parts = [model.bottom, model.top]
        assert dense_layer_sizes(model, parts, n_params=TABLES + DENSE) == (10, 33)
        assert dense_layer_sizes(model, parts[:1], n_params=TABLES + DENSE) == ()
        assert dense_layer_sizes(model, parts, n_params=None) == ()
        assert dense_layer_sizes(model, (), n_params=TABLES + DENSE, is_one=True) == (DENSE,)
        assert dense_layer_sizes(nn.Linear(2, 2), (), n_params=6) == ()

    def test_format_is_that_of_the_dense_part(self) -> None:
        model = whole_model()
        model.sparse.to(torch.float16)
        assert parameter_format(model) == "fp32"
        assert parameter_format(model.sparse) == "fp16"


def test_without_torchrec_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchrec", raising=False)
    assert embedding_modules(whole_model()) == []
    assert not is_embedding_module(stand_ins.EmbeddingBagCollection(ADS))  # of another library


def test_kernels_hold_shards_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel(nn.Module):
        pass

    assert not is_kernel(Kernel())
    monkeypatch.setattr(Kernel, "__module__", "fbgemm_gpu.split_table")
    assert is_kernel(Kernel())
