"""What is read of a DeepSpeed engine; ``tests/integrations/test_deepspeed_recorded.py`` trains with the real one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.model.deepspeed_engine import engine_parameters, read_engine
from torchx_cubicml.recorder.model.sharding import read_sharding


class Engine(nn.Module):
    """Stand-in with the attributes of ``deepspeed.runtime.engine.DeepSpeedEngine`` 0.19.8 that are read."""

    dp_world_size, mp_world_size, sequence_parallel_size = 4, 1, 2

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.module, self.basic_optimizer, self.optimizer = module, optimizer, optimizer

    def zero_optimization_stage(self) -> int:
        return 3

    def gradient_clipping(self) -> float:
        return 1.5


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    module = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.engine", module)
    net = nn.Linear(3, 5)
    net.weight.ds_numel, net.bias.ds_numel = 15, 5  # type: ignore[assignment]
    net.bias.requires_grad = False
    net.weight.data = torch.empty(0)  # as at stage 3 between forwards
    return Engine(net, torch.optim.SGD([nn.Parameter(torch.zeros(10))], lr=0.1))


def test_partitions_belong_to_the_parameters_of_the_model(engine: Engine) -> None:
    assert {*map(id, engine_parameters(engine.basic_optimizer))} == {*map(id, engine.module.parameters())}
    assert engine_parameters(torch.optim.SGD([nn.Parameter(torch.zeros(1))])) == []
    assert engine_parameters(None) == []


def test_stage_degrees_and_sizes_are_those_of_the_engine(engine: Engine) -> None:
    for root in (engine, engine.module):
        layout = read_engine(root)
        assert layout is not None
        assert layout.facts() == {"zero_stage": 3, "tp_degree": 1, "cp_degree": 2, "pp_degree": 1, "max_grad_norm": 1.5}
        sharding = layout.applied_to(read_sharding(root, world_size=8))
        assert (sharding.dp_degree, sharding.n_params, sharding.n_trainable_params) == (4, 20, 15)
    assert read_engine(nn.Linear(3, 5)) is None


@pytest.mark.parametrize("limit", [0.0, 0, None, True, "1.0"])
def test_no_limit_of_the_norm_is_no_fact(engine: Engine, monkeypatch: pytest.MonkeyPatch, limit: object) -> None:
    monkeypatch.setattr(Engine, "gradient_clipping", lambda _: limit)
    layout = read_engine(engine)
    assert layout is not None
    assert "max_grad_norm" not in layout.facts()


def test_part_of_a_model_has_no_size(engine: Engine) -> None:
    engine.mp_world_size = 2
    layout = read_engine(engine)
    assert layout is not None
    assert (layout.degrees["tp_degree"], layout.n_params, layout.n_trainable_params) == (2, None, None)


@pytest.mark.parametrize("name", ["dp_world_size", "zero_optimization_stage", "sequence_parallel_size"])
def test_missing_attribute_is_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(Engine, name)
    layout = read_engine(engine)
    assert layout is not None
    assert layout.dp_degree == (None if name == "dp_world_size" else 4)
    assert ("zero_stage" in layout.facts()) == (name != "zero_optimization_stage")
    assert ("cp_degree" in layout.facts()) == (name != "sequence_parallel_size")


def test_two_engines_of_one_model_are_not_told_apart(engine: Engine) -> None:
    other = Engine(engine.module, engine.basic_optimizer)
    assert read_engine(other) is None
