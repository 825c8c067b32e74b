"""Degrees of Megatron Core, read from a module that the program imported; nothing of it is imported here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.model.megatron import count_megatron_parameters, megatron_facts


def refuse() -> int:
    raise AssertionError("group is not initialized")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with the names of Megatron Core, without functions yet."""
    module = ModuleType("megatron.core.parallel_state")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_nothing_is_read_without_the_programs_import() -> None:
    assert megatron_facts() == {}
    assert "megatron" not in sys.modules


def test_groups_that_were_not_made_have_no_degrees(state: ModuleType) -> None:
    assert megatron_facts() == {}
    state.model_parallel_is_initialized = lambda: False
    state.get_tensor_model_parallel_world_size = lambda: 2
    assert megatron_facts() == {}


def test_a_degree_that_a_release_lacks_or_refuses_is_left_out(state: ModuleType) -> None:
    state.model_parallel_is_initialized = lambda: True
    state.get_tensor_model_parallel_world_size = lambda: 2
    state.get_expert_model_parallel_world_size = lambda: 4
    state.get_context_parallel_world_size = refuse
    state.get_expert_tensor_parallel_world_size = lambda: 0  # its answer without process groups
    assert megatron_facts() == {"tp_degree": 2, "ep_degree": 4}


def marked(size: int, *, is_split: bool = False, is_expert: bool = False) -> nn.Parameter:
    """Return a parameter with the marks that Megatron Core sets."""
    parameter = nn.Parameter(torch.zeros(size))
    parameter.tensor_model_parallel = is_split
    parameter.allreduce = not is_expert
    return parameter


def test_parameters_of_other_ranks_are_counted() -> None:
    dense = nn.ParameterList([marked(3, is_split=True), marked(5)])
    whole = {"tp_degree": 4, "pp_degree": 1, "ep_degree": 1, "expert_tp_degree": 4}
    assert count_megatron_parameters(dense, whole) == (17, 17)
    dense[1].requires_grad = False
    assert count_megatron_parameters(dense, whole) == (17, 12)
    dense.append(marked(7, is_split=True, is_expert=True))
    assert count_megatron_parameters(dense, {**whole, "ep_degree": 2, "expert_tp_degree": 3}) == (59, 54)


@pytest.mark.parametrize("degrees", [{}, {"tp_degree": 1}, {"tp_degree": 1, "pp_degree": 2}])
def test_part_of_a_pipeline_has_no_count(degrees: dict[str, int]) -> None:
    assert count_megatron_parameters(nn.Linear(2, 2), degrees) == (None, None)


@pytest.mark.parametrize(
    ("config", "stage"),
    [
        ({"use_distributed_optimizer": True}, {"zero_stage": 1}),
        ({"use_distributed_optimizer": False}, {"zero_stage": 0}),
        ({}, {}),
        (
            {
                "use_distributed_optimizer": True,
                "use_megatron_fsdp": True,
                "data_parallel_sharding_strategy": "optim_grads",
            },
            {"zero_stage": 2},
        ),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "of a later release"}, {}),
    ],
)
def test_the_wrapper_tells_the_stage_of_zero(
    state: ModuleType, config: dict[str, object], stage: dict[str, int]
) -> None:
    state.model_parallel_is_initialized = lambda: True
    state.get_data_parallel_world_size = lambda: 2
    model = nn.Linear(2, 2)
    model.ddp_config = SimpleNamespace(**config)  # type: ignore[assignment]
    assert megatron_facts(model) == {"dp_degree": 2, **stage}


def test_experts_have_a_degree_of_tensor_parallelism_and_dense_models_have_none(state: ModuleType) -> None:
    state.model_parallel_is_initialized = lambda: True
    state.get_tensor_model_parallel_world_size = state.get_expert_tensor_parallel_world_size = lambda: 2
    kind = type("MoELayer", (nn.Linear,), {"__module__": "megatron.core.transformer.moe.moe_layer"})
    assert megatron_facts(nn.Sequential(nn.Linear(2, 2))) == {"tp_degree": 2}
    assert megatron_facts(nn.Sequential(kind(2, 2))) == {"tp_degree": 2, "expert_tp_degree": 2}


@pytest.mark.parametrize(
    ("config", "tp", "cp", "found"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]}, 1, 1, "core_attn mlp"),
        ({"recompute_granularity": "full", "recompute_modules": ["core_attn"]}, 1, 1, None),
        ({"tp_comm_overlap": True, "cp_comm_type": None}, 1, 1, {}),
        ({"tp_comm_overlap": True, "cp_comm_type": None}, 2, 2, {"tp_overlap": True, "cp_method": "p2p"}),
        ({"tp_comm_overlap": False, "cp_comm_type": "a2a"}, 2, 2, {"tp_overlap": False, "cp_method": "a2a"}),
        ({"cp_comm_type": ["p2p", "a2a"]}, 1, 2, {"cp_method": ("p2p", "a2a")}),
    ],
)
def test_the_models_config_is_told_in_the_words_of_the_trainers_table(
    state: ModuleType, config: dict[str, object], tp: int, cp: int, found: object
) -> None:
    state.model_parallel_is_initialized = lambda: True
    state.get_tensor_model_parallel_world_size = lambda: tp
    state.get_context_parallel_world_size = lambda: cp
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(**config)  # type: ignore[assignment]
    facts = found if isinstance(found, dict) else {"selective_recompute": found} if found else {}
    assert megatron_facts(model) == {"tp_degree": tp, "cp_degree": cp, **facts}
