"""Recommenders explained by their options: TorchRec's own classes have the layers and parameters that are told."""

from __future__ import annotations

import pytest

from tests.integrations.recorded_launch import needs
from torchx_cubicml.launch.command_facts.recommender_model import recommender_model

# FBGEMM warns of lookups that its CPU build lacks.
pytestmark = [needs("torchrec", target="test-torchrec"), pytest.mark.filterwarnings("ignore")]

ROWS = (100, 7, 31)
OPTIONS = {
    "num_embeddings_per_feature": "100,7,31",
    "embedding_dim": 8,
    "dense_in_features": 13,
    "dense_arch_layer_sizes": "16,8",
    "over_arch_layer_sizes": "12,4,1",
    "dcn_num_layers": 2,
    "dcn_low_rank_dim": 5,
    "interaction_branch1_layer_sizes": "16,24",
    "interaction_branch2_layer_sizes": "16",
}
OWN = {
    "original": {},
    "dcn": {"dcn_num_layers": 2, "dcn_low_rank_dim": 5},
    "projection": {"interaction_branch1_layer_sizes": [16, 24], "interaction_branch2_layer_sizes": [16]},
}


@pytest.mark.parametrize("kind", OWN)
def test_torchrecs_classes_have_the_layers_that_the_options_tell(kind: str) -> None:
    from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    from torchx_cubicml.recorder.model.dense_layers import dense_layer_sizes

    tables = [
        EmbeddingBagConfig(name=f"t{at}", num_embeddings=rows, embedding_dim=8, feature_names=[f"f{at}"])
        for at, rows in enumerate(ROWS)
    ]
    classes = {"original": DLRM, "dcn": DLRM_DCN, "projection": DLRM_Projection}
    model = classes[kind](
        embedding_bag_collection=EmbeddingBagCollection(tables=tables),
        dense_in_features=13,
        dense_arch_layer_sizes=[16, 8],
        over_arch_layer_sizes=[12, 4, 1],
        **OWN[kind],
    )
    n_params = sum(parameter.numel() for parameter in model.parameters())
    source = "from torchrec.models.dlrm import dlrm\n"
    told = recommender_model({**OPTIONS, "interaction_type": kind}, source=source)
    assert told is not None
    assert told.facts["n_params"] == n_params
    assert told.facts["layer_n_params"] == dense_layer_sizes(model, (), n_params=n_params)
    assert not told.assumed.keys() & {"n_params", "layer_n_params"}
