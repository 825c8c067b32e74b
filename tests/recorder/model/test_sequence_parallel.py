from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module

from torchx_cubicml.recorder.model.sequence_parallel import sequence_parallel_facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def model() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2), nn.LayerNorm(2))


def replicated() -> SequenceParallel:
    style = SequenceParallel()
    style.sequence_sharding = (Replicate(),)
    return style


def test_norms_tell_what_they_work_on(mesh: DeviceMesh) -> None:
    sharded = parallelize_module(model(), mesh, {"0": SequenceParallel(), "2": SequenceParallel()})
    whole = parallelize_module(model(), mesh, {"0": replicated(), "2": replicated()})
    mixed = parallelize_module(model(), mesh, {"0": replicated(), "2": SequenceParallel()})
    assert sequence_parallel_facts(sharded) == {"sequence_parallel": True}
    assert sequence_parallel_facts(whole) == {"sequence_parallel": False}
    assert sequence_parallel_facts(mixed) == {}


def test_nothing_is_known_without_such_norms(mesh: DeviceMesh) -> None:
    plain = model()
    plain[0].register_forward_pre_hook(lambda _module, _inputs: None)
    assert sequence_parallel_facts(plain) == {}
    assert sequence_parallel_facts(parallelize_module(model(), mesh, {"1": ColwiseParallel()})) == {}
