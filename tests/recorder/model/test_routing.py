from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from torch import nn

from tests.recorder.model.experts_model import SparseModel
from torchx_cubicml.recorder.model.experts import find_expert_layers
from torchx_cubicml.recorder.model.routing import routing_facts


@dataclass
class Settings:
    num_experts_per_tok: int = 2
    moe_expert_capacity_factor: float | None = 1.25


def facts(model: nn.Module) -> dict[str, object]:
    return routing_facts(find_expert_layers(model))


def test_a_dense_model_has_no_facts_of_routing() -> None:
    assert facts(nn.Linear(8, 8)) == {}


def test_the_number_of_experts_is_that_of_the_router() -> None:
    assert facts(SparseModel(n_experts=6)) == {"n_experts": 6}


@pytest.mark.parametrize("name", ["top_k", "k", "num_experts_per_tok", "moe_router_topk"])
@pytest.mark.parametrize("holder", ["outer", "router", "experts"])
def test_the_experts_of_a_token(name: str, holder: str) -> None:
    model = SparseModel()
    for layer in find_expert_layers(model):
        setattr(getattr(layer, holder), name, 3)
    assert facts(model) == {"n_experts": 8, "n_active_experts": 3}


@pytest.mark.parametrize("config", [Settings(), SimpleNamespace(top_k=2, capacity_factor=1.25)])
@pytest.mark.parametrize("name", ["config", "cfg", "args"])
def test_a_config_states_both(config: object, name: str) -> None:
    model = SparseModel()
    for block in model.blocks:
        setattr(block, name, config)
    assert facts(model) == {"n_experts": 8, "n_active_experts": 2, "capacity_factor": 1.25}


def test_a_dictionary_is_a_config_too() -> None:
    model = SparseModel()
    for block in model.blocks:
        block.args = {"top_k": 1, 3: "other", "capacity_factor": 2}
    assert facts(model) == {"n_experts": 8, "n_active_experts": 1, "capacity_factor": 2.0}


@pytest.mark.parametrize("value", [0, 9, True, "2", None, -1])
def test_no_number_of_experts_per_token(value: object) -> None:
    model = SparseModel()
    for block in model.blocks:
        block.top_k, block.capacity_factor = value, None
    assert facts(model) == {"n_experts": 8}


def test_layers_and_attributes_that_disagree_hide_a_number() -> None:
    model = SparseModel()
    model.blocks[0].top_k, model.blocks[1].top_k = 1, 2
    assert facts(model) == {"n_experts": 8}
    model.blocks[1].top_k, model.blocks[1].scores.k = 1, 2
    assert facts(model) == {"n_experts": 8}
    assert facts(nn.ModuleList([SparseModel(2), SparseModel(4)])) == {}


def test_a_config_that_runs_code_is_not_run() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    model = SparseModel()
    for block in model.blocks:
        block.config = Lazy()
    assert facts(model) == {"n_experts": 8}
