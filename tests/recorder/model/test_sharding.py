from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from torchx_cubicml.recorder.model.sharding import Sharding, read_sharding


class DistributedDataParallel(nn.Module):
    """Known by its name, as torch's own."""

    def __init__(self, module: nn.Module, size: int) -> None:
        super().__init__()
        self.module = module
        self.process_group = SimpleNamespace(size=lambda: size)


class FullyShardedDataParallel(nn.Module):
    """FSDP1 of a torch that has none of the private attributes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module


class FSDPLinear(nn.Linear):
    """What ``fully_shard`` makes of a module, holding one parameter group."""

    def __init__(self, **group: object) -> None:
        super().__init__(2, 2)
        self.__dict__["group"] = SimpleNamespace(**group)

    def _get_fsdp_state(self) -> object:
        return SimpleNamespace(_fsdp_param_group=self.group)


def mesh(**sizes: int) -> SimpleNamespace:
    return SimpleNamespace(**sizes)


def test_a_model_in_no_wrapper_is_data_parallel() -> None:
    assert read_sharding(nn.Linear(2, 2), world_size=4).facts() == {
        "sharding_strategy": "NONE",
        "dp_degree": 4,
        "dp_replicate_degree": 4,
        "dp_shard_degree": 1,
        "tp_degree": 1,
        "cp_degree": 1,
        "ep_degree": 1,
        "n_params": 6,
        "n_trainable_params": 6,
    }


def test_ddp_over_a_part_of_the_ranks() -> None:
    found = read_sharding(nn.Sequential(DistributedDataParallel(nn.Linear(2, 2), 2)), world_size=8)
    assert (found.strategy, found.root_strategy, found.dp_degree, found.n_params) == ("DDP", "", 2, 6)


def test_missing_private_attributes_leave_facts_out() -> None:
    model = FullyShardedDataParallel(nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2))))
    found = read_sharding(model, world_size=2)
    assert (found.strategy, found.dp_degree, found.dp_replicate_degree, found.n_params) == ("", None, None, 6)
    assert not {"sharding_strategy", "dp_degree", "dp_replicate_degree", "dp_shard_degree"} & set(found.facts())


@pytest.mark.parametrize(
    ("group", "strategy", "degree"),
    [
        ({"mesh_info": mesh(shard_mesh_size=4), "post_forward_mesh_info": mesh(shard_mesh_size=4)}, "FULL_SHARD", 4),
        ({"mesh_info": mesh(shard_mesh_size=4), "post_forward_mesh_info": None}, "SHARD_GRAD_OP", 4),
        ({"mesh_info": mesh(shard_mesh_size=4), "post_forward_mesh_info": mesh(shard_mesh_size=2)}, "FULL_SHARD_2", 4),
        ({"mesh_info": mesh(shard_mesh_size=1), "post_forward_mesh_info": None}, "NO_SHARD", 1),
        (
            {
                "mesh_info": mesh(shard_mesh_size=2, replicate_mesh_size=3),
                "post_forward_mesh_info": mesh(shard_mesh_size=2),
            },
            "HYBRID_SHARD",
            6,
        ),
        ({"mesh_info": mesh(shard_mesh_size=2, replicate_mesh_size=3)}, "_HYBRID_SHARD_ZERO2", 6),
        ({"mesh_info": mesh(replicate_mesh_size=3)}, "DDP", 3),
        ({}, "", None),
    ],
    ids=["full", "after backward", "smaller", "one rank", "hybrid", "hybrid after backward", "replicate", "unknown"],
)
def test_words_for_fsdp2(group: dict[str, object], strategy: str, degree: int | None) -> None:
    found = read_sharding(FSDPLinear(**group), world_size=12)
    assert (found.strategy, found.dp_degree) == (strategy, degree)


def test_low_precision_of_a_policy() -> None:
    group = {"mesh_info": mesh(shard_mesh_size=2), "mp_policy": SimpleNamespace(param_dtype=torch.bfloat16)}
    assert read_sharding(FSDPLinear(**group), world_size=2).low_precision == "bf16"


def test_different_policies_are_listed_by_unit() -> None:
    units = [
        FSDPLinear(
            mesh_info=mesh(shard_mesh_size=2),
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce),
            offload_policy=offload,
        )
        for reduce, offload in ((torch.float32, CPUOffloadPolicy()), (torch.bfloat16, OffloadPolicy()))
    ]
    facts = read_sharding(nn.Sequential(*units), world_size=2).facts()
    assert facts == {
        **facts,
        "param_dtype": "bf16",
        "reduce_dtype": ("fp32", "bf16"),
        "cpu_offload": (True, False),
    }


def test_another_parallel_library_leaves_the_degree_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    assert read_sharding(nn.Linear(2, 2), world_size=4) == Sharding()
    assert read_sharding(DistributedDataParallel(nn.Linear(2, 2), 4), world_size=4).dp_degree == 4


class Fsdp1(FullyShardedDataParallel):
    """FSDP1 with its private attributes."""


Fsdp1.__name__ = "FullyShardedDataParallel"


def ranks(size: int) -> SimpleNamespace:
    return SimpleNamespace(size=lambda: size)


def fsdp1(module: nn.Module, strategy: str = "FULL_SHARD", size: int = 4, **attributes: object) -> nn.Module:
    made = Fsdp1(module)
    vars(made).update(sharding_strategy=SimpleNamespace(name=strategy), process_group=ranks(size), **attributes)
    return made


@pytest.mark.parametrize(
    ("strategy", "nodes", "degrees"),
    [
        ("FULL_SHARD", None, (4, 1, 4)),
        ("SHARD_GRAD_OP", None, (4, 1, 4)),
        ("NO_SHARD", None, (4, 4, 1)),
        ("HYBRID_SHARD", 3, (12, 3, 4)),
        ("_HYBRID_SHARD_ZERO2", 2, (8, 2, 4)),
        ("HYBRID_SHARD", None, (None, None, 4)),
        ("", None, (None, None, None)),
    ],
)
def test_words_and_degrees_for_fsdp1(strategy: str, nodes: int | None, degrees: tuple[int | None, ...]) -> None:
    between_nodes = {} if nodes is None else {"_inter_node_pg": ranks(nodes)}
    found = read_sharding(fsdp1(nn.Linear(2, 2), strategy, **between_nodes), world_size=12)
    assert found.strategy == strategy
    assert (found.dp_degree, found.dp_replicate_degree, found.dp_shard_degree) == degrees


def test_policies_of_fsdp1() -> None:
    policy = SimpleNamespace(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for offloads in (True, False):
        model = fsdp1(nn.Linear(2, 2), mixed_precision=policy, cpu_offload=SimpleNamespace(offload_params=offloads))
        found = read_sharding(model, world_size=4)
        assert found.policies == {"param_dtype": "bf16", "reduce_dtype": "fp32", "cpu_offload": offloads}
        assert found.low_precision == "bf16"
    assert read_sharding(fsdp1(nn.Linear(2, 2)), world_size=4).policies == {}
    reduced = fsdp1(nn.Linear(2, 2), mixed_precision=SimpleNamespace(param_dtype=None, reduce_dtype=torch.float16))
    found = read_sharding(reduced, world_size=4)
    assert (found.policies, found.low_precision) == ({"reduce_dtype": "fp16"}, "")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)


def blocks_in(wrappers: list[str | None]) -> nn.ModuleList:
    """Return blocks, each in a wrapper of one strategy or in none."""
    return nn.ModuleList(Block() if name is None else fsdp1(Block(), name) for name in wrappers)


def test_each_repeated_layer_has_its_strategy() -> None:
    names = ["FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP"]
    found = read_sharding(fsdp1(blocks_in(names), "SHARD_GRAD_OP"), world_size=4)
    assert (found.strategy, found.root_strategy) == (tuple(names), "SHARD_GRAD_OP")
    assert found.facts() == {
        **found.facts(),
        "sharding_strategy": tuple(names),
        "root_sharding_strategy": "SHARD_GRAD_OP",
        "dp_degree": 4,
        "dp_replicate_degree": 1,
        "dp_shard_degree": 4,
        "n_params": 18,
        "n_trainable_params": 18,
    }


def test_layers_without_a_wrapper_around_them_have_no_root() -> None:
    found = read_sharding(blocks_in(["FULL_SHARD", "NO_SHARD"]), world_size=4)
    assert (found.strategy, found.root_strategy) == (("FULL_SHARD", "NO_SHARD"), "")


def test_unwrapped_layers_are_left_out() -> None:
    found = read_sharding(fsdp1(blocks_in(["FULL_SHARD", None, "NO_SHARD"]), "SHARD_GRAD_OP"), world_size=4)
    assert (found.strategy, found.root_strategy) == (("FULL_SHARD", "NO_SHARD"), "SHARD_GRAD_OP")
    embedding = nn.ModuleDict({"embedding": fsdp1(nn.Embedding(2, 2), "NO_SHARD"), "layers": blocks_in([None, None])})
    found = read_sharding(fsdp1(embedding), world_size=4)
    assert (found.strategy, found.root_strategy) == (("NO_SHARD",), "FULL_SHARD")


def test_a_layer_of_unknown_strategy_hides_the_list() -> None:
    found = read_sharding(fsdp1(blocks_in(["FULL_SHARD", ""]), "SHARD_GRAD_OP"), world_size=4)
    assert (found.strategy, found.root_strategy) == ("SHARD_GRAD_OP", "SHARD_GRAD_OP")


def test_a_single_wrapper_is_no_root() -> None:
    found = read_sharding(fsdp1(nn.Linear(2, 2), "SHARD_GRAD_OP"), world_size=4)
    assert (found.strategy, found.root_strategy) == ("SHARD_GRAD_OP", "")


def test_the_degree_is_that_of_the_widest_wrapper() -> None:
    experts = fsdp1(Block(), "FULL_SHARD", 2)
    unknown = FullyShardedDataParallel(Block())
    found = read_sharding(nn.ModuleList([experts, unknown, fsdp1(Block(), "NO_SHARD", 8)]), world_size=8)
    assert (found.dp_degree, found.dp_replicate_degree, found.dp_shard_degree) == (8, 8, 1)
    half = fsdp1(Block(), "HYBRID_SHARD", 16)  # the number of its copies is unknown
    found = read_sharding(nn.ModuleList([half, experts]), world_size=8)
    assert (found.dp_degree, found.dp_replicate_degree, found.dp_shard_degree) == (2, 1, 2)


def test_a_policy_unknown_to_one_wrapper_is_left_out() -> None:
    policy = SimpleNamespace(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    known, unknown = fsdp1(Block(), mixed_precision=policy), fsdp1(Block())
    found = read_sharding(nn.ModuleList([unknown, known]), world_size=4)
    assert (found.policies, found.low_precision) == ({}, "bf16")


@pytest.mark.parametrize(
    ("sizes", "shards", "replicas", "degrees"),
    [
        ({"dp": 2, "cp": 2}, 4, 1, (2, 1, 2)),
        ({"dp": 2, "cp": 2}, 2, 1, (2, 1, 2)),  # not over the ranks of the context
        ({"dp": 2, "cp": 2, "tp": 2}, 4, 1, (2, 1, 2)),
        ({"dp": 2, "cp": 2}, 1, 4, (2, 2, 1)),
        ({"dp": 3, "cp": 2}, 3, 2, (3, 1, 3)),
        ({"dp": 4, "cp": 1}, 4, 1, (4, 1, 4)),
    ],
)
def test_ranks_of_the_context_take_no_batches(
    sizes: dict[str, int], shards: int, replicas: int, degrees: tuple[int, int, int]
) -> None:
    world = SimpleNamespace(shape=tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    info = mesh(mesh=world, shard_mesh_size=shards, replicate_mesh_size=replicas)
    model = FSDPLinear(mesh_info=info, post_forward_mesh_info=None)
    tensor = SimpleNamespace(shape=(2,), mesh_dim_names=("tp",))
    if "tp" in sizes:
        model.bias.device_mesh, model.bias.placements = tensor, ()
    found = read_sharding(model, world_size=int(torch.tensor(world.shape).prod()))
    assert (found.dp_degree, found.dp_replicate_degree, found.dp_shard_degree) == degrees


def test_ranks_of_other_stages_are_not_counted() -> None:
    world = SimpleNamespace(shape=(2, 2), mesh_dim_names=("dp", "cp"))
    model = FSDPLinear(mesh_info=mesh(mesh=world, shard_mesh_size=4), post_forward_mesh_info=None)
    assert read_sharding(model, world_size=8, pp_degree=2).dp_degree == 2
    assert read_sharding(model, world_size=8).dp_degree == 4
    assert read_sharding(nn.Linear(2, 2), world_size=8, pp_degree=2).dp_degree == 4


def test_one_of_several_parameter_groups_counts() -> None:
    class Grouped(FSDPLinear):
        def _get_fsdp_state(self) -> object:
            return SimpleNamespace(_fsdp_param_groups=self.groups)

    model = Grouped()
    shards = [SimpleNamespace(mesh_info=mesh(shard_mesh_size=size), post_forward_mesh_info=None) for size in (4, 8)]
    vars(model)["groups"] = shards
    found = read_sharding(model, world_size=8)
    assert (found.strategy, found.dp_shard_degree) == ("SHARD_GRAD_OP", 4)
    vars(model)["groups"] = []
    assert read_sharding(model, world_size=8).strategy == "NONE"


def test_a_module_without_a_parameter_group_has_no_wrapper() -> None:
    model = FSDPLinear()
    vars(model)["group"] = None
    assert read_sharding(model, world_size=2).strategy == "NONE"


@pytest.mark.parametrize("library", ["deepspeed", "megatron", "colossalai"])
def test_the_sharding_of_other_libraries_is_unknown(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, ModuleType(library))
    assert read_sharding(nn.Linear(2, 2), world_size=4) == Sharding()


def test_frozen_parameters_are_counted_apart() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert read_sharding(model, world_size=1).facts()["n_params"] == 6
    assert read_sharding(model, world_size=1).facts()["n_trainable_params"] == 4


def test_an_unclear_mesh_leaves_the_degree_unknown() -> None:
    model = nn.Linear(2, 2)
    model.weight.device_mesh, model.weight.placements = SimpleNamespace(shape=(2, 2)), ()
    found = read_sharding(model, world_size=4)
    assert (found.strategy, found.dp_degree, found.dp_replicate_degree, found.dp_shard_degree) == (
        "NONE",
        None,
        None,
        None,
    )


def test_a_wrapper_over_unknown_ranks_is_not_the_widest() -> None:
    unknown, known = fsdp1(nn.Linear(2, 2), "HYBRID_SHARD", _inter_node_pg=ranks(8)), fsdp1(nn.Linear(2, 2))
    vars(unknown)["process_group"] = None
    for model in (nn.Sequential(unknown, known), nn.Sequential(known, unknown)):
        assert read_sharding(model, world_size=8).dp_degree == 4
