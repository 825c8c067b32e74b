from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.model.facts import HookObservations, observe
from torchx_cubicml.recorder.model.kernels import is_compiled, overlaps_tensor_parallelism

if TYPE_CHECKING:
    from collections.abc import Sequence


class Model(nn.Module):
    def __init__(self, n_layers: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(n_layers))


def test_unknown_facts_are_left_out() -> None:
    facts = observe(Model(), None, HookObservations(), world_size=1)
    assert not {"micro_batch_size", "seq_len", "global_batch_size", "optimizer", "activation_checkpointing"} & set(
        facts
    )
    assert facts["n_layers"] == 2
    assert facts["torch_version"] == torch.__version__


def test_the_global_batch_is_that_of_the_whole_job() -> None:
    seen = HookObservations(
        forwards=3, samples=4, seq_len=16, autocast_type="torch.bfloat16", activation_checkpointing="full"
    )
    model = Model()
    facts = observe(model, torch.optim.AdamW(model.parameters()), seen, world_size=8)
    assert facts["global_batch_size"] == 3 * 4 * 8
    assert (facts["seq_len"], facts["gradient_accumulation_steps"]) == (16, 3)
    assert facts["precision"] == "bf16"
    assert facts["optimizer"] == "AdamW"
    assert facts["activation_checkpointing"] == "full"


def test_checkpoint_wrappers_serve_without_a_probe() -> None:
    model = Model()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    assert observe(model, None, HookObservations(), world_size=1)["activation_checkpointing"] == "selective"
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    assert observe(model, None, HookObservations(), world_size=1)["activation_checkpointing"] == "full"


def test_checkpointing_by_operator_is_selective() -> None:
    def contexts() -> object:
        return create_selective_checkpoint_contexts([])

    model = Model()
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block, checkpoint_fn=checkpoint, context_fn=contexts)
    facts = observe(model, None, HookObservations(activation_checkpointing="full"), world_size=1)
    assert (facts["activation_checkpointing"], facts["selective_recompute"]) == ("selective", "op")


def test_megatrons_config_tells_recomputation_deep_in_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, state.__name__, state)
    model = Model()
    seen = HookObservations(activation_checkpointing="none", n_checkpointed=0)
    for granularity, told in (("selective", ("selective", "core_attn", 2)), (None, ("none", None, 0))):
        model.config = SimpleNamespace(recompute_granularity=granularity, recompute_modules=["core_attn"])  # type: ignore[assignment]
        facts = observe(model, None, seen, world_size=1)
        names = ("activation_checkpointing", "selective_recompute", "checkpointed_modules")
        assert tuple(facts.get(name) for name in names) == told


@pytest.mark.parametrize("is_selective", [False, True])
def test_wrappers_that_fsdp_shards_are_seen(is_selective: bool) -> None:
    policy = {"context_fn": lambda: create_selective_checkpoint_contexts([])} if is_selective else {}
    model = Model()
    with fake_ranks(2):
        for index, block in enumerate(model.blocks):
            model.blocks[index] = fully_shard(checkpoint_wrapper(block, **policy))  # its class is now another
        facts = observe(fully_shard(model), None, HookObservations(), world_size=2)
    names = ("activation_checkpointing", "selective_recompute", "checkpointed_modules")
    assert tuple(facts.get(name) for name in names) == (("selective", "op", 2) if is_selective else ("full", None, 2))


@pytest.mark.parametrize(
    ("wrapped", "every"),
    [
        *(((0, 2, 4), "2"), ((1, 3, 5), "2"), ((2, 5), "3"), ((3,), "4"), ((5,), "6")),
        *(((0,), None), ((2,), None), ((0, 1), None), ((3, 5), None), (range(6), None)),
    ],
)
def test_every_nth_layer_is_told_by_the_places_of_wrappers(wrapped: Sequence[int], every: str | None) -> None:
    model = Model(6)
    for index in wrapped:
        model.blocks[index] = checkpoint_wrapper(model.blocks[index])
    assert observe(model, None, HookObservations(), world_size=1).get("selective_recompute") == every


@pytest.mark.parametrize("is_on", [False, True])
def test_asynchronous_tensor_parallelism_is_that_of_inductor(is_on: bool) -> None:
    compiled = torch.compile(Model(), backend="eager")
    with inductor.patch(_micro_pipeline_tp=is_on):
        assert overlaps_tensor_parallelism(compiled, 2) is is_on
        assert overlaps_tensor_parallelism(compiled, 1) is None
        assert overlaps_tensor_parallelism(compiled, None) is None


def test_compiled_parts_show() -> None:
    plain, wrapped, in_place = Model(), Model(), Model()
    wrapped.blocks[1] = torch.compile(wrapped.blocks[1], backend="eager")
    in_place.blocks[0].compile(backend="eager")
    if not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
        assert not is_compiled(plain)
    assert is_compiled(wrapped)
    assert is_compiled(in_place)
