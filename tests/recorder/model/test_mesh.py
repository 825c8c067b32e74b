from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.model.mesh import MeshLayout, read_layout
from torchx_cubicml.recorder.model.sharding import read_sharding


@dataclass(frozen=True)
class Mesh:
    """A device mesh as far as its readers know."""

    shape: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Shard:
    dim: int


def model(mesh: Mesh | None = None, *placements: object) -> nn.Module:
    made = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))})
    for parameter in made.parameters():
        if mesh is not None:
            parameter.device_mesh, parameter.placements = mesh, placements
    return made


def test_no_mesh_is_no_parallelism_of_tensors() -> None:
    layout = read_layout(model())
    assert layout == MeshLayout()
    assert layout.facts() == {"tp_degree": 1, "cp_degree": 1, "ep_degree": 1}
    assert layout.data_parallel(8, pp_degree=2) == 4


@pytest.mark.parametrize(
    ("mesh", "tp_degree", "dp_degree"),
    [
        (Mesh((4,)), 4, 2),
        (Mesh((2, 4), ("dp", "tp")), 4, 2),
        (Mesh((2, 2, 2), ("dp", "cp", "tp")), 2, 2),
        (Mesh((2, 4)), None, None),
        (Mesh((3,), ("tp",)), 3, None),
    ],
    ids=["one dimension", "named", "with context", "without names", "does not divide"],
)
def test_axes_that_share_the_work_on_a_sample(mesh: Mesh, tp_degree: int | None, dp_degree: int | None) -> None:
    layout = read_layout(model(mesh, *(Shard(0) for _ in mesh.shape)))
    assert layout.tp_degree == tp_degree
    assert layout.data_parallel(8) == dp_degree
    assert layout.sizes == mesh.shape


def test_the_meshes_of_fully_shard_carry_data() -> None:
    data = Mesh((4,))
    assert read_layout(model(data, Shard(0)), data_meshes=[data]).tp_degree == 1
    both = Mesh((4, 2), ("mine", "other"))
    layout = read_layout(model(both, Shard(0), Shard(1)), data_meshes=[Mesh((4,), ("mine",))])
    assert (layout.tp_degree, layout.plan) == (2, ("layers.*.weight Shard(1)",))


def test_ranks_that_share_a_sequence_consume_no_batches_of_their_own() -> None:
    class FSDPLinear(nn.Linear):
        def _get_fsdp_state(self) -> object:
            return type("State", (), {"_fsdp_param_group": group})

    mesh = Mesh((2, 2), ("dp_shard", "cp"))
    info = type("Info", (), {"mesh": mesh, "shard_mesh_size": 4, "replicate_mesh_size": 1})
    group = type("Group", (), {"mesh_info": info, "post_forward_mesh_info": info})
    found = read_sharding(FSDPLinear(2, 2), world_size=4)
    assert (found.dp_degree, found.dp_shard_degree, found.dp_replicate_degree) == (2, 2, 1)
    assert found.facts()["cp_degree"] == 2


def test_a_plan_names_each_kind_once_and_is_short() -> None:
    mesh = Mesh((2,), ("tp",))
    wide = nn.ModuleDict({f"part_{index}": nn.Linear(1, 1, bias=False) for index in range(99)})
    for parameter in wide.parameters():
        parameter.device_mesh, parameter.placements = mesh, (Shard(0),)
    assert len(read_layout(wide).plan) == 64
    assert read_layout(model(mesh, torch.nn.Identity())).plan == ("layers.*.weight Identity",)
