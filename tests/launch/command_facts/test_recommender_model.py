"""Recommenders by their options: the tables and dense layers are those that a torch model with these options has."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from torchx_cubicml.launch.command_facts.recommender_model import recommender_model

TORCHREC = "from torchrec.models.dlrm import DLRM\ncat, numbers = DEFAULT_CAT_NAMES, DEFAULT_INT_NAMES\n".lower()
PLANNED = f"{TORCHREC}model = DistributedModelParallel(model)".lower()
SIZES = {"dense_arch_layer_sizes": "32,8", "over_arch_layer_sizes": "16,1", "embedding_dim": 8}


def network(*widths: int) -> nn.Sequential:
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(nn.Linear(inputs, outputs) for inputs, outputs in pairs))


def n_params(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_a_dlrm_of_torch_has_the_parameters_that_its_options_tell() -> None:
    rows = (1000, 37, 5)
    found = recommender_model({**SIZES, "num_embeddings_per_feature": "1000,37,5", "dense_in_features": 13})
    assert found is not None
    tables = nn.ModuleList(nn.EmbeddingBag(each, 8) for each in rows)
    bottom, top = network(13, 32, 8), network(8 + 3 + 3, 16, 1)
    features = torch.stack([bottom(torch.randn(2, 13)), *(table(torch.zeros(2, 1).long()) for table in tables)], 1)
    products = (features @ features.transpose(1, 2))[:, *torch.triu_indices(4, 4, 1)]
    assert top(torch.cat([features[:, 0], products], 1)).shape == (2, 1)
    assert found.facts["n_params"] == n_params(tables, bottom, top)
    assert found.facts["layer_n_params"] == tuple(n_params(layer) for layer in (*bottom, *top))
    assert "the dense part is that of DLRM" in found.assumed["n_params"]


def test_the_classes_of_torchrec_and_the_features_of_criteo_are_certain() -> None:
    found = recommender_model({**SIZES, "num_embeddings": 100}, source=PLANNED)
    assert found is not None
    assert found.facts["embedding_rows"] == (100,) * 26
    assert found.facts["embedding_sharding"] == ("planner",) * 26
    assert found.facts["layer_n_params"][0] == 14 * 32  # type: ignore[index]  # one per layer
    assert (dict(found.assumed), dict(found.unknown)) == ({}, {})


def test_tables_replace_their_number_where_both_are_told() -> None:
    found = recommender_model({**SIZES, "num_embeddings": 100, "num_embeddings_per_feature": [7, 9]}, source=TORCHREC)
    assert found is not None
    assert found.facts["embedding_rows"] == (7, 9)


@pytest.mark.parametrize(
    ("options", "fact", "teller"),
    [
        ({**SIZES, "num_embeddings": 100}, "embedding_rows", "--num_embeddings_per_feature"),
        ({**SIZES, "num_embeddings_per_feature": "5"}, "layer_n_params", "--dense_in_features"),
        (
            {**SIZES, "num_embeddings_per_feature": "5", "dense_in_features": 3, "interaction_type": "~k1234"},
            "layer_n_params",
            "--interaction_type",
        ),
    ],
)
def test_what_is_not_told_is_named_with_what_would_tell_it(options: dict[str, object], fact: str, teller: str) -> None:
    found = recommender_model(options)
    assert found is not None
    assert fact not in found.facts
    assert "n_params" not in found.facts
    assert found.unknown[fact] == teller


@pytest.mark.parametrize("operation", ["dot", "cat"])
@pytest.mark.parametrize("itself", [None, True])
def test_a_dlrm_of_the_research_code_has_the_parameters_that_its_options_tell(operation: str, itself: object) -> None:
    options = {"arch_embedding_size": "1000-20-3", "arch_sparse_feature_size": 4, "arch_mlp_bot": "13-8-4"}
    options |= {"arch_mlp_top": "6-1", "arch_interaction_op": operation, "mini_batch_size": 64}
    found = recommender_model({**options, "arch_interaction_itself": itself}, world_size=2)
    assert found is not None
    pairs = 4 * 5 // 2 if itself else 4 * 3 // 2
    joined = 4 * 4 if operation == "cat" else 4 + pairs
    tables = nn.ModuleList(nn.EmbeddingBag(rows, 4) for rows in (1000, 20, 3))
    assert found.facts["n_params"] == n_params(tables, network(13, 8, 4), network(joined, 6, 1))
    assert found.facts["micro_batch_size"] == 32
    assert found.facts["embedding_sharding"] == ("table_wise",) * 3


@pytest.mark.parametrize("changed", [{"data_generation": "dataset"}, {"qr_flag": True}])
def test_tables_of_a_data_set_are_not_guessed(changed: dict[str, object]) -> None:
    options = {"arch_embedding_size": "4-3-2", "arch_sparse_feature_size": 4, "arch_mlp_bot": "13-4"}
    found = recommender_model({**options, "arch_mlp_top": "6-1", **changed})
    assert found is not None
    assert "embedding_rows" in found.unknown
    assert not found.facts.keys() & {"embedding_rows", "n_params"}


@pytest.mark.parametrize("options", [{}, {"n_layer": 3}, {"num_embeddings": 5}, {"embedding_dim": "x"}])
def test_other_programs_are_no_recommenders(options: dict[str, object]) -> None:
    assert recommender_model(options) is None


def test_tables_of_plain_torch_are_replicated_unless_their_gradients_are_sparse() -> None:
    options = {**SIZES, "num_embeddings_per_feature": "5,6"}
    dense = recommender_model(options, source="nn.embeddingbag(rows, width)")
    sparse = recommender_model(options, source="nn.embeddingbag(rows, width, sparse=true)")
    assert dense is not None
    assert sparse is not None
    assert dense.facts["embedding_sharding"] == ("data_parallel",) * 2
    assert "embedding_sharding" not in sparse.facts
