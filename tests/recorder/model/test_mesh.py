from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

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


class LiveMesh(Mesh):
    """A mesh that is found without a parameter on it."""


@dataclass(frozen=True)
class Shard:
    dim: int


@pytest.fixture
def live_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let meshes of one class count as torch's own, which need a process group."""
    module = ModuleType("device_mesh")
    module.DeviceMesh = LiveMesh
    monkeypatch.setitem(sys.modules, "torch.distributed.device_mesh", module)


def model(mesh: Mesh | None = None, *placements: object) -> nn.Module:
    made = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))})
    for parameter in made.parameters():
        if mesh is not None:
            parameter.device_mesh, parameter.placements = mesh, placements
    return made


def test_without_a_mesh_all_degrees_are_one() -> None:
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
    for same in (data, Mesh((4,))):
        assert read_layout(model(data, Shard(0)), data_meshes=[same]).tp_degree == 1
    both = Mesh((4, 2), ("mine", "other"))
    layout = read_layout(model(both, Shard(0), Shard(1)), data_meshes=[Mesh((4,), ("mine",))])
    assert (layout.tp_degree, layout.plan) == (2, ("layers.*.weight Shard(1)",))


def test_ranks_that_share_a_sequence_share_a_batch() -> None:
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


@pytest.mark.usefixtures("live_meshes")
@pytest.mark.parametrize("name", ["tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp"])
def test_a_mesh_in_use_elsewhere_names_tensor_axes(name: str) -> None:
    mesh = LiveMesh((2, 3), ("dp", name))
    assert read_layout(model()).tp_degree == 3
    layout = read_layout(model(Mesh((2,), ("other",)), Shard(0)))
    assert (layout.tp_degree, layout.axes, layout.sizes) == (3, mesh.mesh_dim_names, (2, 3))


@pytest.mark.parametrize("name", ["cp", "context", "context_parallel"])
def test_names_of_context_axes(name: str) -> None:
    layout = read_layout(model(Mesh((3, 2), (name, "tp")), Shard(0), Shard(0)))
    assert (layout.cp_degree, layout.tp_degree, layout.ep_degree) == (3, 2, 1)


@pytest.mark.parametrize("name", ["ep", "expert", "expert_parallel"])
def test_names_of_expert_axes(name: str) -> None:
    layout = read_layout(model(Mesh((3, 2), (name, "tp")), Shard(0), Shard(0)))
    assert (layout.ep_degree, layout.tp_degree, layout.cp_degree) == (3, 2, 1)
    assert layout.facts()["ep_degree"] == 3


@pytest.mark.parametrize(
    "name",
    ["dp", "data", "data_parallel", "ddp", "fsdp", "dp_replicate", "dp_shard", "replicate", "shard", "dp_shard_cp"],
)
def test_names_of_data_axes(name: str) -> None:
    layout = read_layout(model(Mesh((3, 2), (name, "tp")), Shard(0), Shard(1)))
    assert (layout.tp_degree, layout.plan) == (2, ("layers.*.weight Shard(1)",))


def test_the_widest_mesh_is_named() -> None:
    root = Mesh((2, 2, 2), ("pp", "dp", "tp"))

    class Slice:
        shape, mesh_dim_names = (2,), ("tp",)

        def _get_root_mesh(self) -> Mesh:
            return root

    layout = read_layout(model(Slice(), Shard(0)), data_meshes=[Mesh((2, 2), ("dp", "cp"))])
    assert (layout.axes, layout.sizes, layout.tp_degree, layout.cp_degree) == (root.mesh_dim_names, (2, 2, 2), 2, 2)
    assert layout.facts() == {
        "mesh": "pp=2,dp=2,tp=2",
        "mesh_axes": ("pp", "dp", "tp"),
        "mesh_sizes": (2, 2, 2),
        "tp_degree": 2,
        "cp_degree": 2,
        "ep_degree": 1,
        "tp_plan": "layers.*.weight Shard(0)",
    }


def test_axes_of_an_unknown_purpose_hide_the_degrees() -> None:
    facts = read_layout(model(Mesh((2, 4)), Shard(0), Shard(1))).facts()
    assert facts == {"mesh": "2,4", "mesh_sizes": (2, 4), "tp_plan": "layers.*.weight Shard(1)"}


def test_tensor_axes_multiply_and_the_largest_mesh_counts() -> None:
    made = model(Mesh((2, 3), ("x", "y")), Shard(0), Shard(1))
    assert read_layout(made).tp_degree == 6
    other = Mesh((2,), ("tp",))
    made.layers[1].weight.device_mesh, made.layers[1].weight.placements = other, (Shard(1),)
    layout = read_layout(made)
    assert layout.tp_degree == 6
    assert layout.plan == ("layers.*.weight Shard(0) Shard(1)", "layers.*.weight Shard(1)")
    made.layers[0].weight.device_mesh = Mesh((2, 2))
    assert read_layout(made).tp_degree is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("0.weight", "*.weight"),
        ("layers.10.wq.weight", "layers.*.wq.weight"),
        ("block2.3.weight", "block2.*.weight"),
        ("_orig_mod.layers.1._fsdp_wrapped_module.weight", "layers.*.weight"),
        ("module.head._checkpoint_wrapped_module.weight", "head.weight"),
        ("submodule.weight", "submodule.weight"),
        ("experts.7", "experts.*"),
    ],
)
def test_a_plan_is_by_kinds_of_parameters(name: str, kind: str) -> None:
    mesh = Mesh((2,), ("tp",))
    made = nn.Module()
    inner = made
    *parts, last = name.split(".")
    for part in parts:
        inner.add_module(part, nn.Module())
        inner = inner.get_submodule(part)
    parameter = nn.Parameter(torch.zeros(1))
    parameter.device_mesh, parameter.placements = mesh, (Shard(0),)
    inner.register_parameter(last, parameter)
    assert read_layout(made).plan == (f"{kind} Shard(0)",)


def test_a_plan_has_a_bounded_text() -> None:
    layout = MeshLayout(plan=tuple(f"{index:03d} {'x' * 95}" for index in range(64)))
    assert layout.facts()["tp_plan"] == "; ".join(layout.plan)[:2000]
    assert len(layout.facts()["tp_plan"]) == 2000


def test_an_axis_without_a_placement_is_left_out() -> None:
    assert read_layout(model(Mesh((2, 2), ("x", "y")), Shard(0))).plan == ("layers.*.weight Shard(0)",)
    assert read_layout(model(Mesh((2, 2), ("dp", "cp")), Shard(0), Shard(0))).plan == ()


@pytest.mark.parametrize(
    ("layout", "pp_degree", "degree"),
    [
        (MeshLayout(tp_degree=2, cp_degree=3), 1, 4),
        (MeshLayout(tp_degree=2, cp_degree=3), 2, 2),
        (MeshLayout(tp_degree=5), 1, None),
        (MeshLayout(tp_degree=None), 1, None),
        (MeshLayout(ep_degree=8), 1, 24),
    ],
)
def test_batches_of_their_own(layout: MeshLayout, pp_degree: int, degree: int | None) -> None:
    assert layout.data_parallel(24, pp_degree=pp_degree) == degree
