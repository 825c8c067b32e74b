"""Plain weights: the experts that a rank holds tell how many ranks share them."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.recorder.model.experts_model import HIDDEN, WIDTH, Bank, SparseModel
from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.model.expert_placement import expert_groups, hidden_parameters
from torchx_cubicml.recorder.model.experts import find_expert_layers
from torchx_cubicml.recorder.model.sharding import read_sharding


def local_model(n_local: int, n_experts: int = 8) -> SparseModel:
    model = SparseModel(n_experts)
    for block in model.blocks:
        block.num_experts = n_experts
        block.experts = Bank(n_local)
        del block.bank
    return model


def test_plain_weights_of_own_experts() -> None:
    model, whole = local_model(2), SparseModel(8)
    assert hidden_parameters(find_expert_layers(model)) == (2 * 2 * 6 * WIDTH * HIDDEN,) * 2
    found = read_sharding(model, world_size=4)
    assert found.facts()["ep_degree"] == 4
    assert "expert_tp_degree" not in found.facts()  # plain weights may be parts of experts
    assert found.n_params == sum(parameter.numel() for parameter in whole.parameters())
    for parameter in model.parameters():
        parameter.requires_grad = False
    assert read_sharding(model, world_size=4).n_trainable_params == 0


def test_layers_that_disagree_hide_the_degree() -> None:
    model = nn.ModuleList([local_model(2), local_model(4)])
    assert "ep_degree" not in read_sharding(model, world_size=4).facts()


def test_the_axis_of_the_group_that_a_layer_holds_is_that_of_experts() -> None:
    with fake_ranks(8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("cp", "tp"))
        model = local_model(2)
        facts = read_sharding(model, world_size=8).facts()
        assert (facts["ep_degree"], facts["tp_degree"]) == (4, 4)  # by its name
        for held in (mesh["tp"].get_group(), mesh["tp"]):
            for block in model.blocks:
                block.held, block.other = held, dist.group.WORLD
            assert len(expert_groups(find_expert_layers(model))) == 1
            facts = read_sharding(model, world_size=8).facts()
            assert (facts["ep_degree"], facts["tp_degree"], facts["cp_degree"]) == (4, 1, 2)
