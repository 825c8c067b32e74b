from __future__ import annotations

import sys
from types import ModuleType

import pytest
from torch import nn

from torchx_cubicml.recorder.model.facts import observe_stage
from torchx_cubicml.recorder.model.pipeline import Pipeline, combine_stages, encode_stage, read_pipeline


class _PipelineStageBase:
    def __init__(self, submod: nn.Module, stage_index: int) -> None:
        self.submod, self.stage_index, self.num_stages, self.group_size = submod, stage_index, 4, 2


class _PipelineSchedule:
    _n_microbatches = 8


class Interleaved(_PipelineSchedule):
    pass


@pytest.fixture
def pipelining(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("stage", _PipelineStageBase), ("schedules", _PipelineSchedule)):
        module = ModuleType(name)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, f"torch.distributed.pipelining.{name}", module)


@pytest.mark.usefixtures("pipelining")
def test_the_stages_of_this_rank_are_found() -> None:
    assert read_pipeline() is None
    parts = nn.Linear(2, 2), nn.Linear(2, 3)
    stages = [_PipelineStageBase(part, 2 * index) for index, part in enumerate(parts)]
    schedule = Interleaved()
    found = read_pipeline()
    assert found == Pipeline(
        degree=2, n_stages=4, stages=dict(zip((0, 2), parts, strict=True)), schedule="Interleaved", n_microbatches=8
    )
    assert found.facts() == {"pp_degree": 2, "pp_stages": 4, "pp_schedule": "Interleaved", "pp_microbatches": 8}
    del stages[0].num_stages, schedule
    assert read_pipeline() is None


def test_without_its_module_there_is_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.pipelining.stage", raising=False)
    assert read_pipeline() is None


def test_stages_add_up() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

    parts = [nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(count))}) for count in (1, 2)]
    words = [encode_stage(observe_stage(part, world_size=2, pp_degree=2)) for part in parts]
    assert combine_stages(words) == {
        "n_params": 18,
        "n_trainable_params": 18,
        "n_layers": 3,
        "sharding_strategy": "NONE",
    }


class Wide(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for width in widths)


@pytest.mark.parametrize(
    ("stages", "n_layers"),
    [
        ([Wide(2, 2), Wide(2)], 3),
        ([nn.Embedding(4, 2), Wide(2, 2), nn.Linear(2, 4)], 2),
        ([Wide(2, 2), Wide(3, 3)], None),
        ([Wide(2), Wide(3)], None),
        ([Wide(2, 3, 4), Wide(2)], None),
        ([nn.Linear(2, 2), nn.Linear(2, 2)], None),
    ],
    ids=["one stack", "ends", "two stacks", "single layers", "a stage without a stack", "no layers"],
)
def test_layers_count_where_the_stages_are_parts_of_one_stack(stages: list[nn.Module], n_layers: int | None) -> None:
    words = [encode_stage(observe_stage(stage, world_size=4, pp_degree=2)) for stage in stages]
    assert combine_stages(words).get("n_layers") == n_layers


def test_a_fact_unknown_to_one_stage_is_unknown() -> None:
    assert combine_stages([]) == {}
    assert combine_stages(['{"n_params": 3}', "{}"]) == {}
    assert combine_stages(['{"sharding_strategy": "DDP"}', '{"sharding_strategy": "NONE"}']) == {}
    layered = ['{"sharding_strategy": ["FULL_SHARD"]}', '{"sharding_strategy": ["NO_SHARD", "FULL_SHARD"]}']
    assert combine_stages(layered) == {"sharding_strategy": ("FULL_SHARD", "NO_SHARD", "FULL_SHARD")}
