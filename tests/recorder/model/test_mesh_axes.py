"""Roles of the axes of generated meshes, which bear free names or the usual names of other roles."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.recorder.model.experts_model import SparseModel
from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.model.mesh_axes import axes_of, axes_of_group, is_in_use, role_by_name
from torchx_cubicml.recorder.model.sharding import read_sharding

FREE = ("a", "north", "x1", "planets")
USUAL = ("dp", "tp", "ep", "cp")


def share_dense(model: SparseModel, mesh: DeviceMesh) -> None:
    plan = {"dense.into": ColwiseParallel(), "dense.back": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def share_experts(model: SparseModel, mesh: DeviceMesh, *placements: object) -> None:
    for block in model.blocks:
        for name in ("into", "back"):
            whole = getattr(block.bank, name).detach()
            setattr(block.bank, name, nn.Parameter(distribute_tensor(whole, mesh, placements)))


def facts(model: nn.Module, world_size: int) -> dict[str, object]:
    found = read_sharding(model, world_size=world_size).facts()
    names = ("dp_degree", "tp_degree", "cp_degree", "ep_degree", "expert_tp_degree")
    return {name: found.get(name) for name in names}


def generated(seed: int) -> tuple[list[str], list[int]]:
    """Return names and sizes of three axes: data, tensor and expert parallelism, in this order."""
    draw = random.Random(seed)
    # Whether an axis that FSDP shards over also shares sequences is told by its name alone.
    usual = [names for names in permutations(USUAL, 3) if names[0] != "cp"]
    names = draw.sample(FREE, 3) if seed % 2 else list(draw.choice(usual))
    return names, [draw.choice([1, 2, 4]) for _ in range(3)]


@pytest.mark.parametrize("seed", range(24))
def test_degrees_follow_the_use_of_axes(seed: int) -> None:
    (data, tensor, expert), (n_data, n_tensor, n_expert) = generated(seed)
    order = random.Random(seed).sample(range(2), 2)
    world_size = n_data * n_tensor * n_expert
    with fake_ranks(world_size):
        # Experts lie on a mesh of their own, as data-parallel ranks share them.
        pairs = [(data, n_data * n_expert), (tensor, n_tensor)]
        names, sizes = zip(*(pairs[index] for index in order), strict=True)
        dense = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        sparse = init_device_mesh(
            "cpu", (n_data, n_expert, n_tensor), mesh_dim_names=(f"{data}_rest", expert, f"{tensor}_too")
        )
        model = SparseModel()
        share_dense(model, dense[tensor])
        share_experts(model, sparse[expert], Shard(0))
        for block in model.blocks:
            fully_shard(block.bank, mesh=sparse[f"{data}_rest"])
            fully_shard(block, mesh=dense[data])
        fully_shard(model, mesh=dense[data])
        assert facts(model, world_size) == {
            "dp_degree": n_data * n_expert,
            "tp_degree": n_tensor,
            "cp_degree": 1,
            "ep_degree": n_expert,
            "expert_tp_degree": 1,
        }


@pytest.mark.parametrize("name", [*FREE, "tp", "dp", "experts"])
def test_distributed_experts_on_all_ranks_beside_ddp(name: str) -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=(name,))
        model = SparseModel()
        share_experts(model, mesh, Shard(0))
        ignored = [path for path, _ in model.named_parameters() if ".bank." in path]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        found = facts(DistributedDataParallel(model), 4)
    assert (found["dp_degree"], found["tp_degree"], found["ep_degree"]) == (4, 1, 4)


@pytest.mark.parametrize(("expert", "tensor"), [("a", "b"), ("tp", "ep"), ("dp", "etp")])
@pytest.mark.parametrize("dim", [1, 2])
def test_parts_of_experts(expert: str, tensor: str, dim: int) -> None:
    with fake_ranks(8):
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=(expert, tensor))
        model = SparseModel()
        share_experts(model, mesh, Shard(0), Shard(dim))
        found = facts(model, 8)
        assert (found["ep_degree"], found["expert_tp_degree"]) == (4, 2)
        # Ranks with parts of one expert may work on one batch.
        assert found["dp_degree"] is None
        share_dense(model, mesh[tensor])
        found = facts(model, 8)
        assert (found["tp_degree"], found["ep_degree"], found["expert_tp_degree"], found["dp_degree"]) == (2, 4, 2, 4)


def test_copied_experts_are_not_parallel() -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("a",))
        model = SparseModel()
        share_experts(model, mesh, Replicate())
        found = facts(model, 4)
    assert (found["ep_degree"], found["expert_tp_degree"]) == (1, 1)


def test_an_axis_that_shards_norms_carries_data() -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        for module in model:
            for name, parameter in list(module.named_parameters()):
                setattr(module, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
        assert facts(model, 4) == {
            "dp_degree": 4,
            "tp_degree": 1,
            "cp_degree": 1,
            "ep_degree": 1,
            "expert_tp_degree": None,
        }


def test_an_axis_of_copies_under_a_free_name_is_unknown() -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("a",))
        model = nn.Linear(8, 8)
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Replicate()]))
        assert facts(model, 4)["tp_degree"] is None
        assert facts(model, 4)["dp_degree"] is None


@pytest.mark.parametrize("name", ["tp", "model", "cp", "ep", "a"])
def test_an_axis_of_pipeline_stages(name: str) -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", name))
        model = nn.Linear(8, 8)
        stage = PipelineStage(model, 0, 2, torch.device("cpu"), group=mesh.get_group(name))
        found = read_sharding(model, world_size=4, pp_degree=stage.group_size).facts()
        assert [found[fact] for fact in ("tp_degree", "cp_degree", "ep_degree", "dp_degree")] == [1, 1, 1, 2]


def test_meshes_of_an_earlier_setup_do_not_count() -> None:
    with fake_ranks(4):
        earlier = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "tp"))
        assert is_in_use(earlier)
        assert read_sharding(nn.Linear(2, 2), world_size=4).facts()["tp_degree"] == 2
    with fake_ranks(4):
        assert not is_in_use(earlier)
        assert read_sharding(nn.Linear(2, 2), world_size=4).facts()["tp_degree"] == 1


def test_the_axes_of_a_group() -> None:
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        assert axes_of_group(mesh.get_group("b"), [mesh]) == {"b"}
        assert axes_of_group(dist.group.WORLD, [mesh]) == frozenset()
        assert axes_of(mesh["a"]) == ("a",)
    assert axes_of(None) == ()


@pytest.mark.parametrize(
    ("name", "role"), [("etp", "expert_tensor"), ("pp", "pipeline"), ("dp_shard", "data"), ("a", "unknown")]
)
def test_names_of_roles(name: str, role: str) -> None:
    assert role_by_name(name) == role
    assert role_by_name((1, 0)) == "unknown"
