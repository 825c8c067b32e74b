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


def test_policies_that_differ_are_recorded_unit_by_unit() -> None:
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


def test_a_library_of_another_parallelism_leaves_the_degree_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    assert read_sharding(nn.Linear(2, 2), world_size=4) == Sharding()
    assert read_sharding(DistributedDataParallel(nn.Linear(2, 2), 4), world_size=4).dp_degree == 4
