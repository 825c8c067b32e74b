"""What an inspection reads of a model, and when, with stand-ins for the observed forwards."""

from __future__ import annotations

import gc
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.model import inspection as module
from torchx_cubicml.recorder.model.inspection import ModelInspection, parameters_of
from torchx_cubicml.recorder.model.pipeline import Pipeline
from torchx_cubicml.recorder.steps.forwards import Work

WORK = Work(forwards=2, samples=8, tokens=128)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Model(nn.Module):
    def __init__(self, n_layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(n_layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner


def forwards(model: nn.Module | None, *, is_whole: bool = True, samples: Any = 4, tokens: Any = 64) -> Any:
    return SimpleNamespace(
        model=model,
        is_whole=is_whole,
        samples_per_forward=samples,
        tokens_per_forward=tokens,
        on_output=None,
        survey=None,
    )


def inspection(seen: Any, world_size: int = 1) -> ModelInspection:
    clipping: Any = SimpleNamespace(facts=lambda: {"max_grad_norm": 2.0})
    return ModelInspection(seen, clipping, bare, world_size=world_size)


def hooks_of(model: nn.Module) -> int:
    return sum(len(each._forward_pre_hooks) for each in model.modules())


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for one in modules for each in one.parameters()], lr=0.1)


def test_a_new_inspection_is_empty() -> None:
    made = inspection(forwards(None))
    assert (made.facts, made.n_stages, made.encoded_stage_facts) == ({}, 0, {})
    made.install_probe()
    made.release()
    assert made._forwards.on_output is None


def test_the_model_and_its_step_are_read() -> None:
    model = Model()
    made = inspection(forwards(model), world_size=3)
    made.read(sgd(model), WORK)
    expected = {
        "n_layers": 2,
        "n_params": 41,
        "micro_batch_size": 4,
        "seq_len": 16,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 24,
        "max_grad_norm": 2.0,
        "optimizer": "SGD",
        "sharding_strategy": "NONE",
        "dp_degree": 3,
        "dp_replicate_degree": 3,
        "dp_shard_degree": 1,
    }
    assert made.facts == {**made.facts, **expected}
    assert (made.n_stages, made.encoded_stage_facts) == (0, {})


@pytest.mark.parametrize(("samples", "tokens"), [(None, 64), (4, None), (0, 64)])
def test_a_sequence_has_samples_and_tokens(samples: int | None, tokens: int | None) -> None:
    model = Model()
    made = inspection(forwards(model, samples=samples, tokens=tokens))
    made.read(sgd(model), WORK)
    assert "seq_len" not in made.facts


def test_without_an_optimizer_the_wrapping_is_unknown() -> None:
    model = Model()
    made = inspection(forwards(model))
    made.read(None, None)
    assert made.facts["n_params"] == 41
    wrapping = {"sharding_strategy", "dp_degree", "dp_replicate_degree", "dp_shard_degree"}
    assert not (wrapping | {"optimizer", "gradient_accumulation_steps"}) & made.facts.keys()


def test_a_wrapped_model_keeps_its_wrapping() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.module, self.process_group = inner, SimpleNamespace(size=lambda: 2)

    made = inspection(forwards(DistributedDataParallel(Model())), world_size=2)
    made.read(None, None)
    assert (made.facts["sharding_strategy"], made.facts["dp_degree"]) == ("DDP", 2)


def test_the_outermost_wrapper_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    wrapper = Wrapper(model)
    read: list[nn.Module] = []
    monkeypatch.setattr(module, "observe", lambda root, *_, **__: read.append(root) or {})
    inspection(forwards(model)).read(sgd(model), WORK)
    inspection(forwards(None)).read(sgd(model), WORK)
    assert [each is wrapper for each in read] == [True, True]


def test_the_optimizer_tells_the_model_if_forwards_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Model(), Model(3)
    both = nn.ModuleList([model, other])
    read: list[nn.Module] = []
    monkeypatch.setattr(module, "observe", lambda root, *_, **__: read.append(root) or {})
    linear = model.layers[0].linear
    for trained in (linear, model.layers[0], model.layers, model, both):
        inspection(forwards(model, is_whole=False)).read(sgd(trained), WORK)
    assert [*map(id, read)] == [*map(id, (linear, linear, model.layers, model, both))]


def test_parameters_of_several_networks_lead_to_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = nn.Sequential(Block()), nn.Linear(2, 2)
    read: list[nn.Module] = []
    monkeypatch.setattr(module, "observe", lambda root, *_, **__: read.append(root) or {})
    inspection(forwards(None)).read(sgd(first, second), WORK)
    assert read == [first]


def test_all_networks_of_one_optimizer_count() -> None:
    first, second, unrelated = nn.Sequential(Block()), nn.Linear(2, 2), nn.Linear(50, 50)
    made = inspection(forwards(None))
    made.read(sgd(first, second), WORK)
    assert (made.facts["n_params"], made.facts["n_trainable_params"]) == (26, 26)
    made.add_networks(sgd(first, second))
    third, fourth = nn.Linear(3, 3), nn.Linear(4, 4)
    third.bias.requires_grad_(False)
    for _ in range(2):
        made.add_networks(sgd(third, fourth, second))
        assert (made.facts["n_params"], made.facts["n_trainable_params"]) == (58, 55)
    del unrelated


def test_an_optimizer_of_a_plain_tensor_adds_no_module() -> None:
    model, unrelated = Model(), nn.Linear(50, 50)
    made = inspection(forwards(model))
    made.read(sgd(model), WORK)
    made.add_networks(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    assert made.facts["n_params"] == 41
    del unrelated


def test_a_model_that_is_wrapped_again_stays_counted() -> None:
    model, other, seen = Model(), nn.Linear(2, 2), forwards(None)
    wrapper = Wrapper(model)
    made = inspection(seen)
    made.read(sgd(model), WORK)
    del wrapper
    gc.collect()
    again = Wrapper(model)
    made.add_networks(sgd(other, model))
    assert made.facts["n_params"] == 41 + 6
    del again, model
    gc.collect()
    made.add_networks(sgd(nn.Linear(3, 3)))  # the first model is gone
    assert made.facts["n_params"] == 41 + 6


def test_without_any_model_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "modules_around", lambda parameters: [])
    made = inspection(forwards(None))
    made.read(None, None)
    assert made.facts == {}


def test_a_survey_serves_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources = Model(), []

    class Survey:
        """Notes that it was the source of live objects."""

        def as_source(self) -> Any:
            sources.append(self)
            return self

        def __enter__(self) -> None:
            return

        def __exit__(self, *_: object) -> None:
            return

    monkeypatch.setattr(module, "LiveObjects", Survey)
    seen = forwards(model)
    seen.survey = survey = Survey()
    made = inspection(seen)
    made.read(sgd(model), WORK)
    made.read(sgd(model), WORK)
    assert sources[0] is survey
    assert sources[1] is not survey
    assert seen.survey is None


def test_a_probe_stays_until_the_facts_are_read() -> None:
    model = Model()
    made = inspection(forwards(model))
    with torch.autocast("cpu", torch.bfloat16):
        made.install_probe()
    assert hooks_of(model) == 4
    with torch.autocast("cpu", torch.float16):
        model(torch.zeros(1, 4))
    made.read(sgd(model), WORK)
    assert hooks_of(model) == 0
    assert (made.facts["precision"], made.facts["activation_checkpointing"]) == ("fp16", "none")
    assert made.facts["checkpointed_modules"] == 0
    made.install_probe()
    assert hooks_of(model) == 0


def test_a_probe_that_saw_no_step_tells_no_checkpointing() -> None:
    model = Model()
    made = inspection(forwards(model))
    with torch.autocast("cpu", torch.bfloat16):
        made.install_probe()
    made.read(sgd(model), None)
    assert made.facts["precision"] == "bf16"
    assert not {"activation_checkpointing", "checkpointed_modules"} & made.facts.keys()


def test_a_probe_can_be_released() -> None:
    model = Model()
    made = inspection(forwards(model))
    made.install_probe()
    made.release()
    assert hooks_of(model) == 0


def test_compiled_and_flat_models_get_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = nn.Linear(4, 4)
    inspection(forwards(flat)).install_probe()
    model = Model()
    monkeypatch.setattr(module, "is_compiled", lambda root: root is model)
    made = inspection(forwards(model))
    made.install_probe()
    assert hooks_of(flat) == hooks_of(model) == 0
    assert made._forwards.on_output is not None
    made.read(sgd(model), WORK)
    assert "activation_checkpointing" not in made.facts


def test_the_output_tells_the_kernel_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(5)
    monkeypatch.setattr(module, "attention_kernel", lambda node, n_layers: f"{node} of {n_layers}")
    made = inspection(forwards(model))
    monkeypatch.setattr(module, "differentiated_operations", lambda node: [])
    made.install_probe()
    made._forwards.on_output("a node")
    made.read(sgd(model), WORK)
    assert made.facts["attention_kernel"] == "a node of 5"


def test_a_stage_is_sent_to_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Model(), Model(3)
    pipeline = Pipeline(degree=2, n_stages=4, stages={1: model, 3: other})
    monkeypatch.setattr(module, "read_pipeline", lambda: pipeline)
    made = inspection(forwards(model), world_size=4)
    made.read(sgd(model), WORK)
    assert not {"n_params", "n_trainable_params", "n_layers", "sharding_strategy"} & made.facts.keys()
    assert (made.facts["pp_degree"], made.facts["dp_degree"], made.n_stages) == (2, 2, 4)
    assert {stage: json.loads(text) for stage, text in made.encoded_stage_facts.items()} == {
        stage: {"sharding_strategy": "NONE", "n_params": n, "n_trainable_params": n, "n_layers": layers, "layer": kind}
        for stage, n, layers, kind in ((1, 41, 2, "Block 4 4"), (3, 61, 3, "Block 4 4"))
    }


def test_an_optimizer_has_the_parameters_of_all_its_groups() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": one.parameters()}, {"params": [other.bias]}], lr=0.1)
    assert [*map(id, parameters_of(optimizer))] == [*map(id, (one.weight, one.bias, other.bias))]
    assert parameters_of(None) == []


def test_a_recomputed_layer_tells_its_kernel_where_the_graph_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(5)
    monkeypatch.setattr(module, "attention_kernel", lambda node, n_layers: f"{node} of {n_layers}")
    monkeypatch.setattr(module, "differentiated_operations", lambda node: [node])
    monkeypatch.setattr(module, "attention_calls", lambda nodes: frozenset({None} if nodes == ["whole"] else ()))
    for outputs, kernel in ((("hidden", "layer"), "layer of 1"), (("whole", "layer"), "whole of 5")):
        made = inspection(forwards(model))
        made.install_probe()
        made._forwards.on_output(outputs[0])
        made._read_recomputed(outputs[1])
        made.read(sgd(model), WORK)
        assert made.facts["attention_kernel"] == kernel
