"""Degrees of Megatron Core, read from a module that the program imported; nothing of it is imported here."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from torchx_cubicml.recorder.model.megatron import megatron_facts


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
