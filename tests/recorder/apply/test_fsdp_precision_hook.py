from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

from tests.recorder.apply.hooked_launch import launch_hooked
from torchx_cubicml.recorder.apply.hooks import Hook, hook_facts, installed
from torchx_cubicml.recorder.ranks.peers import Peers
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torchx_cubicml.records.values import Value

pytestmark = pytest.mark.filterwarnings("ignore:.*FSDP.*", "ignore:.*fully_shard.*", "ignore:.*NO_SHARD.*")

FORMATS = ("bf16", "fp32", "bf16")
MIXED = ("bf16", "fp32", "bf16", "fp32")
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.computed_in: torch.dtype | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.linear(x)
        self.computed_in = x.dtype
        return x, torch.ones(1, dtype=torch.int64)


class Model(nn.Module):
    def __init__(self, n_layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(n_layers))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x, count = layer(x)
            assert count.dtype == torch.int64
        return self.head(x)


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    """Make a process group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def hooks() -> Iterator[dict[str, Hook]]:
    """Return an empty mapping, whose hooks are released at the end, the last one first."""
    made: dict[str, Hook] = {}
    yield made
    release(made)


def release(made: dict[str, Hook]) -> None:
    for hook in reversed(made.values()):
        hook.release()


def install(made: dict[str, Hook], **requested: Value) -> None:
    peers = Peers(read_job_environment({}))
    made.update(installed(requested, {}, peers=peers, guard=lambda call: call))


def wrap(model: Model, generation: int, **policy: object) -> nn.Module:
    if generation == 2:
        for layer in model.layers:
            fsdp.fully_shard(layer, **policy)
        return fsdp.fully_shard(model, **policy)
    for index, layer in enumerate(model.layers):
        model.layers[index] = fsdp.FullyShardedDataParallel(layer, device_id=CPU, **policy)
    return fsdp.FullyShardedDataParallel(model, device_id=CPU, **policy)


def blocks(model: nn.Module) -> list[Block]:
    return [module for module in model.modules() if isinstance(module, Block)]


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("is_low", [False, True], ids=["script in fp32", "script in bf16"])
def test_each_layer_computes_in_its_format_and_hands_on_that_of_the_script(
    generation: int, is_low: bool, hooks: dict[str, Hook]
) -> None:
    low = {
        1: {"mixed_precision": fsdp.MixedPrecision(param_dtype=torch.bfloat16)},
        2: {"mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    }[generation]
    install(hooks, fsdp_precision=FORMATS)
    model = wrap(Model(), generation, **(low if is_low else {}))
    output = model(torch.randn(2, 4))
    output.float().sum().backward()
    seen = [block.computed_in for block in blocks(model)]
    assert seen == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert output.dtype == (torch.bfloat16 if is_low else torch.float32)
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.numel())
    release(hooks)
    assert hook_facts("fsdp_precision", hooks["fsdp_precision"]) == {}


@pytest.mark.usefixtures("_alone")
def test_gradients_are_reduced_in_fp32_unless_the_script_has_a_policy(hooks: dict[str, Hook]) -> None:
    install(hooks, fsdp_precision="bf16")
    own = fsdp.MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float16)
    plain, with_policy = wrap(Model(), 2), wrap(Model(), 2, mp_policy=own)
    policies = [blocks(model)[0]._get_fsdp_state()._mp_policy for model in (plain, with_policy)]
    assert [policy.param_dtype for policy in policies] == [torch.bfloat16, torch.float32]  # one model per program
    assert policies[0].reduce_dtype == policies[0].output_dtype == torch.float32
    assert policies[1] == own


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("generation", [1, 2])
def test_parameters_that_are_not_stored_in_fp32_are_refused(generation: int, hooks: dict[str, Hook]) -> None:
    install(hooks, fsdp_precision="fp32")
    wrap(Model().bfloat16(), generation)
    release(hooks)
    reason = "the parameters are stored as bf16; the formats of FSDP's policies need fp32"
    assert hooks["fsdp_precision"].refusal() == reason


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("only_checks", [False, True], ids=["changes", "only checks"])
def test_autocast_decides_in_place_of_the_hook(generation: int, only_checks: bool, hooks: dict[str, Hook]) -> None:
    formats, peers = {"fsdp_precision": FORMATS}, Peers(read_job_environment({}))
    requested, checked = ({}, formats) if only_checks else (formats, {})
    hooks.update(installed(requested, checked, peers=peers, guard=lambda call: call))
    model = wrap(Model(), generation)
    with torch.no_grad():
        model(torch.randn(2, 4))  # an evaluation without autocast tells nothing
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 4)).float().sum().backward()
    assert {block.computed_in for block in blocks(model)} == {torch.bfloat16}
    release(hooks)
    change = "" if only_checks else "; their parameters alone have the requested one"
    reason = "the script runs the layers under autocast to bf16, which chooses the format that counts"
    assert hooks["fsdp_precision"].refusal() == reason + change


@pytest.mark.usefixtures("_alone")
def test_autocast_of_the_last_layer_alone_is_found(hooks: dict[str, Hook]) -> None:
    install(hooks, fsdp_precision=FORMATS)
    model = wrap(Model(), 2)
    x = torch.randn(2, 4)
    blocks(model)[0](x)
    with torch.autocast("cpu", torch.bfloat16):
        blocks(model)[-1](x)
    release(hooks)
    assert hooks["fsdp_precision"].refusal().startswith("the script runs the layers under autocast to bf16")


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("order", [("fsdp", "fsdp_precision"), ("fsdp_precision", "fsdp")])
@pytest.mark.parametrize("is_refused", [False, True])
def test_two_hooks_change_one_call_and_one_may_refuse(
    order: tuple[str, str], is_refused: bool, hooks: dict[str, Hook]
) -> None:
    original, constructor = fsdp.fully_shard, fsdp.FullyShardedDataParallel.__init__
    requested = {"fsdp": "NO_SHARD" if is_refused else "SHARD_GRAD_OP", "fsdp_precision": FORMATS}
    install(hooks, **{name: requested[name] for name in order})
    model = wrap(Model(), 2)
    release(hooks)
    assert bool(hooks["fsdp"].refusal()) == is_refused
    assert hooks["fsdp_precision"].refusal() == ""
    formats = [block._get_fsdp_state()._mp_policy.param_dtype for block in blocks(model)]
    assert formats == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert fsdp.fully_shard is original
    assert fsdp.FullyShardedDataParallel.__init__ is constructor


@pytest.mark.launch
@pytest.mark.parametrize("how", ["fsdp1-originals", "fsdp2-in-constructor"])
def test_three_hooks_serve_one_training(how: str, tmp_path: Path, unhooked: list[float]) -> None:
    sharding, recomputed = ("SHARD_GRAD_OP", "FULL_SHARD") * 2, ("full", "full", "none", "none")
    requested = {"fsdp": sharding, "fsdp_precision": MIXED, "activation_checkpointing": recomputed}
    ended = launch_hooked("train_wrapped.py", how, store=tmp_path, by_torchrun=True, hooks=requested)
    assert ended.warnings == []
    assert ended.trial.observed["sharding_strategy"] == sharding
    assert ended.trial.observed["precision"] == MIXED
    assert ended.trial.observed["activation_checkpointing"] == recomputed
    assert ended.losses == pytest.approx(unhooked, rel=0.02)  # bf16 has three digits
    assert ended.losses != unhooked
