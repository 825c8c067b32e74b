from __future__ import annotations

import pytest

from torchx_cubicml.predictors.memory.order import SHARDED_ACCUMULATION, MemoryOrder, coordinates, respect_of
from torchx_cubicml.space import Binding, Parameter
from torchx_cubicml.space.expression import parse_expression


def needs_as_much(respect: str, value: object, other: object) -> bool:
    found, least = coordinates(respect, value), coordinates(respect, other)
    return found is not None and least is not None and all(a >= b for a, b in zip(found, least, strict=True))


@pytest.mark.parametrize(
    ("respect", "value", "other", "expected"),
    [
        ("sharding_strategy", "SHARD_GRAD_OP", "FULL_SHARD", (True, False)),
        ("sharding_strategy", "HYBRID_SHARD", "FULL_SHARD", (True, False)),
        ("sharding_strategy", "HYBRID_SHARD", "SHARD_GRAD_OP", (False, False)),
        ("sharding_strategy", "_HYBRID_SHARD_ZERO2", "HYBRID_SHARD", (True, False)),
        ("sharding_strategy", "_HYBRID_SHARD_ZERO2", "SHARD_GRAD_OP", (True, False)),
        ("sharding_strategy", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", (True, False)),
        ("sharding_strategy", "SHARD_OPTIMIZER", "_HYBRID_SHARD_ZERO2", (False, False)),
        ("sharding_strategy", "NO_SHARD", "SHARD_OPTIMIZER", (True, False)),
        ("sharding_strategy", "DDP", "_HYBRID_SHARD_ZERO2", (True, False)),
        ("sharding_strategy", "DDP", "NO_SHARD", (False, False)),
        ("sharding_strategy", "full_shard auto_wrap", "FULL_SHARD", (True, True)),
        ("sharding_strategy", "mine", "FULL_SHARD", (False, False)),
        ("zero_stage", 1, 3, (True, False)),
        ("activation_checkpointing", "none", "selective", (True, False)),
        ("activation_checkpointing", "selective", "full", (True, False)),
        ("activation_checkpointing", False, True, (True, False)),
        ("activation_checkpointing", 0, 1, (True, False)),
        ("reshard_after_forward", "never", "default", (True, False)),
        ("reshard_after_forward", False, True, (True, False)),
        ("offload", False, True, (True, False)),
        ("offload_optimizer", "none", "cpu", (True, False)),
        ("offload_optimizer", "nvme", "cpu", (False, False)),
        ("distributed_optimizer", False, True, (True, False)),
        ("micro_batch_size", 8, 4, (True, False)),
        ("micro_batch_size", "8", 4, (False, False)),
        ("micro_batch_size", True, 4, (False, False)),
        ("seq_len", 4096, 2048, (True, False)),
        ("reserved_share", 0.8, 0.9, (True, False)),  # a lower limit leaves less room
    ],
    ids=str,
)
def test_what_needs_more_memory_is_known(
    respect: str, value: object, other: object, expected: tuple[bool, bool]
) -> None:
    assert (needs_as_much(respect, value, other), needs_as_much(respect, other, value)) == expected


@pytest.mark.parametrize(
    ("flag", "respect"),
    [
        ("--per_device_train_batch_size", "micro_batch_size"),
        ("--gradient-checkpointing", "activation_checkpointing"),
        ("--bs", "bs"),
        ("--zero", "zero_stage"),
        ("--precision", ""),
        ("--tensor-model-parallel-size", ""),
    ],
)
def test_a_parameter_is_known_by_its_flag(flag: str, respect: str) -> None:
    mine = Parameter(name="p1", choices=(1, 2), binding=Binding(kind="flag", name=flag))
    order = MemoryOrder.of_space([mine], workload={}, own={})
    assert order.parameters == ("p1",)
    assert order.respects == ({"p1": respect} if respect else {})


def test_derived_parameters_count_where_their_order_is_known() -> None:
    rest = [
        Parameter(name=name, derive=parse_expression("64 // micro_batch_size", where="test"))
        for name in ("warm_steps", "gradient_accumulation_steps", "activation_checkpointing")
    ]
    order = MemoryOrder.of_space(
        [Parameter(name="micro_batch_size", choices=(1, 2)), *rest], workload={"seq_len": 1024}, own={}
    )
    assert order.parameters == (
        *("micro_batch_size", "gradient_accumulation_steps", "activation_checkpointing", "seq_len"),
    )


@pytest.mark.parametrize("batch", ["global_batch_size", "total_batch_size"])
def test_accumulation_that_may_divide_the_batch_has_no_order(batch: str) -> None:
    accumulation = Parameter(name="gradient_accumulation_steps", choices=(1, 2))
    parameters = [Parameter(name=batch, choices=(64, 128)), accumulation]
    assert "gradient_accumulation_steps" not in MemoryOrder.of_space(parameters, workload={}, own={}).respects
    assert MemoryOrder.of_space([accumulation], workload={}, own={}).respects == {}
    whole = {"micro_batch_size": 4, "sharding_strategy": "DDP"}
    fixed = MemoryOrder.of_space([accumulation], workload=whole, own={})
    assert fixed.respects == {"gradient_accumulation_steps": "gradient_accumulation_steps"}


@pytest.mark.parametrize("workload", [{}, {"sharding_strategy": "FULL_SHARD"}], ids=["unknown", "sharded"])
def test_gradients_count_as_sharded_unless_stated_otherwise(workload: dict[str, str]) -> None:
    accumulation = Parameter(name="gradient_accumulation_steps", choices=(1, 2))
    parameters = [Parameter(name="micro_batch_size", choices=(4, 8)), accumulation]
    order = MemoryOrder.of_space(parameters, workload=workload, own={})
    assert order.respects["gradient_accumulation_steps"] == SHARDED_ACCUMULATION


@pytest.mark.parametrize("workload", [{"world_size": 1}, {"world_size": 2, "sharding_strategy": "ddp"}])
def test_gradients_of_one_process_or_a_stated_copy_are_whole(workload: dict[str, str | int]) -> None:
    accumulation = Parameter(name="gradient_accumulation_steps", choices=(1, 2))
    parameters = [Parameter(name="micro_batch_size", choices=(4, 8)), accumulation]
    order = MemoryOrder.of_space(parameters, workload=workload, own={})
    assert order.respects["gradient_accumulation_steps"] == "gradient_accumulation_steps"


def test_names_without_an_order_have_no_respect() -> None:
    assert respect_of(["tp_degree", "world_size", "precision"]) == ""
