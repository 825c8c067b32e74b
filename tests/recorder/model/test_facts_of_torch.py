"""Facts of modules with stand-ins for what a device or another library would show."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim import optimizer as torchs_optimizer

from torchx_cubicml.recorder.host import hardware
from torchx_cubicml.recorder.host.hardware import hardware_facts
from torchx_cubicml.recorder.model import facts as module
from torchx_cubicml.recorder.model.facts import (
    HookObservations,
    observe,
    observe_stage,
    read_optimizer,
    software_facts,
)
from torchx_cubicml.recorder.model.heads import HEADS, Attention
from torchx_cubicml.recorder.model.pipeline import Pipeline


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


class Model(nn.Module):
    def __init__(self, n_layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layers))


def wrapped(model: Model, count: int) -> Model:
    for index in range(count):
        model.blocks[index] = checkpoint_wrapper(model.blocks[index])
    return model


def facts(model: nn.Module, world_size: int = 2, pipeline: Pipeline | None = None, **seen: object) -> dict[str, object]:
    return observe(model, None, HookObservations(**seen), world_size=world_size, pipeline=pipeline)


@pytest.mark.parametrize(
    ("wrappers", "seen", "expected"),
    [
        (0, None, None),
        (2, None, 2),
        (0, 0, 0),
        (2, 1, 2),
        (1, 3, 3),
    ],
)
def test_checkpointed_modules_are_counted(wrappers: int, seen: int | None, expected: int | None) -> None:
    assert facts(wrapped(Model(), wrappers), n_checkpointed=seen).get("checkpointed_modules") == expected


@pytest.mark.parametrize(
    ("wrappers", "seen", "expected"),
    [
        (0, "", None),
        (0, "none", "none"),
        (2, "none", "none"),
        (2, "", "selective"),
        (3, "", "full"),
        (3, "full", "full"),
    ],
)
def test_checkpointing_is_seen_or_wrapped(wrappers: int, seen: str, expected: str | None) -> None:
    found = facts(wrapped(Model(), wrappers), activation_checkpointing=seen)
    assert found.get("activation_checkpointing") == expected


def test_all_that_a_step_shows_is_a_fact() -> None:
    seen = {
        "forwards": 3,
        "samples": 4,
        "seq_len": 16,
        "autocast_type": "torch.bfloat16",
        "attention_kernel": "sdpa_flash",
        "clipping": {"max_grad_norm": 1.0},
    }
    found = facts(Model(), **seen)
    assert found == {
        **found,
        "torch_version": torch.__version__,
        "n_layers": 3,
        "precision": "bf16",
        "float8_modules": 0,
        "attention_kernel": "sdpa_flash",
        "device": "cpu",
        "micro_batch_size": 4,
        "seq_len": 16,
        "gradient_accumulation_steps": 3,
        "global_batch_size": 24,
        "max_grad_norm": 1.0,
        "compile": False,
        "pp_degree": 1,
        "vocab_size": 9,
        "d_model": 4,
        "sharding_strategy": "NONE",
        "n_cpus": len(os.sched_getaffinity(0)),
    }
    unseen = facts(nn.Linear(2, 2), world_size=1)
    assert not {
        "n_layers", "attention_kernel", "micro_batch_size", "seq_len", "gradient_accumulation_steps", "vocab_size",
        "global_batch_size", "activation_checkpointing", "checkpointed_modules", "optimizer",
    } & unseen.keys()  # fmt: skip
    assert unseen["precision"] == "fp32"
    for missing in ("samples", "forwards"):
        assert "global_batch_size" not in facts(Model(), **{**seen, missing: None})
    assert "device" not in facts(nn.ReLU())
    assert "precision" not in facts(nn.ReLU())


def test_where_the_precision_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    low = SimpleNamespace(facts=dict, layout=None, dp_degree=None, low_precision="fp16")
    monkeypatch.setattr(module, "read_sharding", lambda *_, **__: low)
    assert facts(Model())["precision"] == "fp16"
    assert facts(Model(), autocast_type="torch.bfloat16")["precision"] == "bf16"
    assert "pp_degree" not in facts(Model())
    monkeypatch.setattr(module, "count_float8_modules", lambda root: 2)
    found = facts(Model(), autocast_type="torch.bfloat16")
    assert (found["precision"], found["float8_modules"]) == ("fp8", 2)


def test_the_precision_of_each_layer_is_that_of_autocast_first(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = SimpleNamespace(
        facts=dict, layout=None, dp_degree=None, low_precision="bf16", layer_formats=("bf16", "", "bf16")
    )
    monkeypatch.setattr(module, "read_sharding", lambda *_, **__: policies)
    seen = {"per_layer": {"precision"}, "autocast_type": "torch.float16"}
    assert facts(Model(), **seen)["precision"] == ("fp16",) * 3
    some = ("", "", "torch.float16")
    assert facts(Model(), **seen, layer_autocast=some)["precision"] == ("bf16", "fp32", "fp16")
    assert facts(Model(), **seen, layer_autocast=("",) * 2)["precision"] == ("fp16",) * 3  # of other layers


def test_a_part_of_a_model_has_no_count_of_its_recomputed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    degrees = {"pp_degree": 2, "selective_recompute": "core_attn"}
    stage = SimpleNamespace(facts=lambda: degrees, layout=None, dp_degree=None, low_precision="")
    monkeypatch.setattr(module, "read_sharding", lambda *_, **__: stage)
    found = facts(Model(), activation_checkpointing="none", n_checkpointed=0)
    assert found["activation_checkpointing"] == "selective"
    assert not {"n_layers", "checkpointed_modules"} & found.keys()


def test_a_shared_sequence_hides_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = SimpleNamespace(facts=lambda: {"cp_degree": 2}, tp_degree=1)
    shared = SimpleNamespace(facts=lambda: {"cp_degree": 2}, layout=layout, dp_degree=2, low_precision="")
    monkeypatch.setattr(module, "read_sharding", lambda *_, **__: shared)
    found = facts(Model(), samples=4, forwards=1, seq_len=16)
    assert "seq_len" not in found
    assert (found["global_batch_size"], found["pp_degree"]) == (8, 1)


def test_stages_divide_the_ranks() -> None:
    pipeline = Pipeline(degree=2, n_stages=4, schedule="Interleaved", n_microbatches=8)
    found = facts(Model(), world_size=4, pipeline=pipeline, samples=4, forwards=1)
    assert found == {
        **found,
        "pp_degree": 2,
        "pp_stages": 4,
        "pp_schedule": "Interleaved",
        "pp_microbatches": 8,
        "dp_degree": 2,
        "global_batch_size": 8,
    }


def test_a_stage_has_the_layers_that_it_holds() -> None:
    assert observe_stage(Model(), world_size=4, pp_degree=2)["n_layers"] == 3
    assert observe_stage(Model(1), world_size=4, pp_degree=2)["n_layers"] == 1
    found = observe_stage(nn.Linear(2, 2), world_size=4, pp_degree=2)
    assert (found["n_layers"], found["dp_degree"], found["n_params"]) == (0, 2, 6)


def test_the_name_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "device_kind", lambda root: "cuda")
    monkeypatch.setattr(module, "hardware_facts", lambda kind, ranks: {"asked": kind, "shared": ranks})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    found = facts(Model())
    assert (found["device"], found["asked"], found["shared"]) == ("NVIDIA H200", "cuda", 2)


def test_a_program_without_torch_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software_facts() == {"torch_version": torch.__version__}
    monkeypatch.delitem(sys.modules, "torch")
    assert software_facts() == {}


def stepped(**group: object) -> SimpleNamespace:
    return SimpleNamespace(param_groups=[{"params": [nn.Parameter(torch.zeros(2))], "lr": 0.1, **group}])


@pytest.mark.parametrize(
    ("group", "facts"),
    [
        ({}, {}),
        ({"fused": None}, {"optimizer_fused": False}),
        ({"fused": True, "foreach": None}, {"optimizer_fused": True}),
        ({"fused": True, "foreach": False}, {"optimizer_fused": True, "optimizer_foreach": False}),
        ({"foreach": True}, {"optimizer_foreach": True}),
        ({"foreach": None}, {"optimizer_foreach": True}),
        ({"foreach": None, "lr": torch.tensor(0.1)}, {}),
        ({"foreach": None, "params": None}, {}),
        ({"foreach": None, "differentiable": True}, {"optimizer_foreach": False}),
    ],
)
def test_torch_chooses_the_lists_of_an_optimizer(
    group: dict[str, object], facts: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(params: list[object], differentiable: bool, use_fused: bool) -> tuple[bool, bool]:
        if params is None:
            raise TypeError
        return not use_fused, not differentiable and not use_fused

    monkeypatch.setattr(torchs_optimizer, "_default_to_fused_or_foreach", choose)
    assert read_optimizer(stepped(**group)) == {"optimizer": "SimpleNamespace", **facts}


@pytest.mark.parametrize(("is_available", "is_initialized", "backend"), [
    (True, True, "gloo"), (True, False, None), (False, True, None),
])  # fmt: skip
def test_the_backend_of_collectives(
    is_available: bool, is_initialized: bool, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = ModuleType("torch.distributed")
    distributed.is_available = lambda: is_available
    distributed.is_initialized = lambda: is_initialized
    distributed.get_backend = lambda: "gloo"
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert hardware_facts("cpu").get("backend") == backend
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert "backend" not in hardware_facts("cpu")


def test_the_processors_of_a_system_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_name", lambda: "")
    assert "cpu" not in hardware_facts("cpu")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {process, 5, 7})
    assert hardware_facts("cpu")["n_cpus"] == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 77)
    assert hardware_facts("cpu")["n_cpus"] == 77


CALL = Attention(heads=2, kv_heads=1, head_width=2, merged=4, width=4)


@pytest.mark.parametrize(
    ("attributes", "call", "heads"),
    [
        ({}, CALL, {"n_heads": 2, "n_kv_heads": 1}),
        ({"num_heads": 2}, CALL, {"n_heads": 2, "n_kv_heads": 1}),
        ({"num_heads": 4}, CALL, {}),
        ({"num_heads": 2, "n_kv_heads": 2}, CALL, {}),
        ({"num_heads": 2}, None, {"n_heads": 2}),
    ],
    ids=["unnamed", "named", "another count", "other keys", "not read"],
)
def test_observed_heads_agree_with_named_ones(
    attributes: dict[str, int], call: Attention | None, heads: dict[str, int]
) -> None:
    model = Model()
    vars(model.blocks[0]).update(attributes)
    found = facts(model, seq_len=8, attention_calls=frozenset({call}))
    assert {name: count for name, count in found.items() if name in HEADS} == heads


def test_heads_of_what_is_no_language_model_are_left_out() -> None:
    assert not facts(Model(), attention_calls=frozenset({CALL})).keys() & set(HEADS)


def test_a_compiled_model_is_read_from_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Attention(heads=2, kv_heads=2, head_width=2, merged=4, width=4)
    monkeypatch.setattr(module, "compiled_attention_calls", lambda: frozenset({call}))
    for is_compiled, heads in ((False, None), (True, 2)):
        monkeypatch.setattr(module, "is_compiled", lambda root, answer=is_compiled: answer)
        assert facts(Model(), seq_len=8).get("n_heads") == heads
