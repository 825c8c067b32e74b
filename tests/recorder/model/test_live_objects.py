from __future__ import annotations

import gc
import weakref

import pytest
import torch.distributed.device_mesh
import torch.distributed.pipelining
import torch.utils.data
from torch import nn

from torchx_cubicml.recorder.model.layers import modules_around
from torchx_cubicml.recorder.model.live_objects import LiveObjects, live_instances, live_instances_of


class Base:
    pass


class Derived(Base):
    pass


@pytest.mark.usefixtures("thawed")
def test_objects_are_found_by_their_class_while_they_live() -> None:
    one, other = Base(), Derived()
    assert sorted(map(id, live_instances(Base))) == sorted(map(id, (one, other)))
    assert live_instances(Derived) == [other]
    del other
    assert live_instances(Derived) == []


def test_a_class_that_is_absent_has_no_objects() -> None:
    assert live_instances_of("torchx_cubicml.recorder.model.live_objects", "Absent") == []
    assert live_instances_of("a.module.nobody.imports", "Absent") == []


def test_a_survey_replaces_walks_and_keeps_nothing_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = nn.Sequential(nn.Linear(2, 2)), torch.utils.data.DataLoader([0], batch_size=1)
    survey = LiveObjects()
    later = nn.Linear(2, 2)
    walks: list[None] = []
    monkeypatch.setattr(gc, "get_objects", lambda: walks.append(None) or [later])
    with survey.as_source():
        found = [*map(id, live_instances(nn.Module)), *map(id, live_instances(torch.utils.data.DataLoader))]
        assert {id(model), id(model[0]), id(loader)} <= {*found}
        assert id(later) not in found
        assert not walks
        remains = weakref.ref(model)
        del model
        assert remains() is None
        assert live_instances(Base) == []
        assert len(walks) == 1, "no class that is surveyed"
    assert live_instances(nn.Module) == [later]


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


@pytest.mark.usefixtures("thawed")
def test_frozen_objects_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, loader = Trainer(), torch.utils.data.DataLoader([0], batch_size=1)
    monkeypatch.setitem(globals(), "TRAINER", trainer)
    monkeypatch.setitem(globals(), "LOADER", loader)
    gc.collect()
    gc.freeze()
    assert any(each is loader for each in live_instances(torch.utils.data.DataLoader))
    around = modules_around([trainer.model[0].weight])
    count = gc.get_freeze_count()
    assert count > 0
    assert around == [trainer.model[0], trainer.model]


def test_surveyed_classes_allow_weak_references() -> None:
    from torch.distributed.pipelining import schedules, stage

    kinds = torch.distributed.device_mesh.DeviceMesh, stage._PipelineStageBase, schedules._PipelineSchedule
    assert all(kind.__weakrefoffset__ for kind in (*kinds, nn.Module, torch.utils.data.DataLoader))
