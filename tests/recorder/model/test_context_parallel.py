"""Meshes of torch's own context parallelism, under names that say something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as implementation
from torch.distributed.tensor.parallel import parallelize_module

from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.model.context_parallel import context_meshes, context_method
from torchx_cubicml.recorder.model.sharding import read_sharding

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def replacements() -> Iterator[None]:
    """Forget the replacements of earlier tests, which torch keeps."""
    implementation._replaced_functions.clear()
    yield
    implementation._replaced_functions.clear()


def degrees(model: nn.Module, world_size: int) -> tuple[object, ...]:
    facts = read_sharding(model, world_size=world_size).facts()
    return tuple(facts[name] for name in ("cp_degree", "tp_degree", "dp_degree"))


def test_a_model_without_it() -> None:
    assert context_meshes(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("name", ["a", "tp", "ep"])
def test_hooks_on_attention(name: str) -> None:
    with fake_ranks(8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("x", name))
        model = nn.ModuleDict({"inner": nn.Identity(), "out": nn.Linear(2, 2)})
        kinds = _attention._ContextParallel.AttentionType
        style = _attention._ContextParallel(seq_dim=2, attention_type=kinds.SDPA)
        parallelize_module(model["inner"], mesh[name], style)
        assert context_meshes(model) == [mesh[name]]
        assert context_method(model) == "all_gather"
        assert degrees(model, 8) == (4, 1, 2)
        assert read_sharding(model, world_size=8).facts()["ep_degree"] == 1


@pytest.mark.parametrize("name", ["a", "model"])
def test_the_context_that_replaces_attention(name: str) -> None:
    with fake_ranks(8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("x", name))
        model, before = nn.Linear(2, 2), nn.functional.scaled_dot_product_attention
        with context_parallel(mesh[name], buffers=[torch.zeros(1, 16, 2)], buffer_seq_dims=[1]):
            assert read_sharding(model, world_size=8).facts()["cp_method"] == "all_gather"
            assert nn.functional.scaled_dot_product_attention is not before
            assert degrees(model, 8) == (4, 1, 2)
        assert nn.functional.scaled_dot_product_attention is before
        assert degrees(model, 8) == (4, 1, 2)  # the optimizer steps outside


def test_keys_and_values_that_are_shuffled_pass_in_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    options = implementation._cp_options
    monkeypatch.setattr(options, "rotate_method", options.rotate_method)  # put back after the test
    for word, method in (("alltoall", "p2p"), ("allgather", "all_gather")):
        implementation.set_rotate_method(word)
        assert context_method(nn.Linear(2, 2)) == method
    implementation.set_rotate_method("alltoall")
    with fake_ranks(8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("x", "cp"))
        model = nn.ModuleDict({"inner": nn.Identity()})
        style = _attention._ContextParallel(seq_dim=2, attention_type=_attention._ContextParallel.AttentionType.FLEX)
        parallelize_module(model["inner"], mesh["cp"], style)
        assert context_method(model) == "all_gather"
