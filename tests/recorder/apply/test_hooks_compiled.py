"""Hooks on compiled models: layers that are compiled one by one are served; a model compiled as a whole is in part."""

from __future__ import annotations

import gc
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
import torch._dynamo.utils
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

from tests.recorder.apply.hooked_launch import launch_hooked, unhooked_losses
from torchx_cubicml.recorder.apply.hooks import Hook, hook_facts, installed
from torchx_cubicml.recorder.ranks.peers import Peers
from torchx_cubicml.recorder.steps.torch_hooks import make_tracing_test
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.values import Value

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*FSDP.*", "ignore:.*fully_shard.*", "ignore:.*NO_SHARD.*", "ignore:The .grad attribute"
)

JOB = ("train_wrapped.py", "fsdp2-compiled-blocks")
CPU = torch.device("cpu")
SHARDING, RECOMPUTED, FORMATS = ("SHARD_GRAD_OP", "FULL_SHARD", "FULL_SHARD"), ("full", "none", "full"), ("bf16",) * 3
WHOLE = "refused: the model is compiled as a whole, and not layer by layer"
N_STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class CastingModel(Model):
    """Model that enters autocast within its own forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Backend:
    """Compiler that runs each graph as it is, and counts graphs and calls."""

    def __init__(self) -> None:
        self.n_graphs = 0
        self.n_calls = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        self.n_graphs += 1

        def call(*args: object) -> object:
            self.n_calls += 1
            return graph.forward(*args)

        return call


def fsdp1(module: nn.Module) -> nn.Module:
    return fsdp.FullyShardedDataParallel(module, device_id=CPU, use_orig_params=True)


def sharded(model: Model) -> Model:
    for layer in model.layers:
        fsdp.fully_shard(layer)
    fsdp.fully_shard(model)
    return model


def replaced(model: Model, wrap: Callable[[nn.Module], nn.Module], *, most: int = 3) -> Model:
    for index, layer in enumerate([*model.layers][:most]):
        model.layers[index] = wrap(layer)
    return model


def in_place(module: nn.Module, *inner: nn.Module, backend: Backend) -> nn.Module:
    for each in inner or (module,):
        each.compile(backend=backend)
    return module


def compiled(model: Model, backend: Backend, *, how: str) -> nn.Module:
    compile_ = partial(torch.compile, backend=backend)
    fully, layers = partial(torch.compile, backend=backend, fullgraph=True), [*model.layers]
    ways: dict[str, Callable[[], nn.Module]] = {
        "blocks, then FSDP2": lambda: sharded(replaced(model, fully)),  # as torchtitan does
        "blocks in place, then FSDP2": lambda: in_place(model, *layers, backend=backend) and sharded(model),
        "FSDP2, then blocks in place": lambda: in_place(sharded(model), *layers, backend=backend),
        "FSDP1 around compiled blocks": lambda: fsdp1(replaced(model, lambda layer: fsdp1(compile_(layer)))),
        "blocks alone": lambda: replaced(model, compile_),
        "some blocks": lambda: replaced(model, compile_, most=1),
        "compiled FSDP1 layers": lambda: replaced(model, lambda layer: compile_(fsdp1(layer))),
        "FSDP2, then the model": lambda: compile_(sharded(model)),
        "FSDP2, then the model in place": lambda: in_place(sharded(model), backend=backend),
    }
    return ways[how]()


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    """Make a process group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def guard() -> Guard:
    """Return the recorder's own kind of guard: a hook does nothing while a compiler traces it."""
    is_traced = make_tracing_test()

    def guarded(hook: Callable[..., object]) -> Callable[..., None]:
        def call(*args: object, **kwargs: object) -> None:
            if not is_traced():
                hook(*args, **kwargs)

        return call

    return guarded


class Outcome(NamedTuple):
    """What a training without hooks came to."""

    losses: list[float]
    n_graphs: int
    n_calls: int


@cache
def unhooked(how: str) -> Outcome:
    run = Run(how, {})
    return Outcome(run.losses, run.backend.n_graphs, run.backend.n_calls)


class Run:
    """Training of a compiled model, with hooks or without."""

    def __init__(self, how: str, requested: dict[str, Value], *, kind: type[Model] = Model) -> None:
        torch._dynamo.reset()
        gc.collect()  # the graphs of earlier runs, whose number formats the hook would read
        torch._dynamo.utils.counters.clear()
        self.backend = Backend()
        peers = Peers(read_job_environment({}))
        hooks: dict[str, Hook] = installed(requested, {}, peers=peers, guard=guard()) if requested else {}
        torch.manual_seed(0)
        self.model = compiled(kind(), self.backend, how=how)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[float] = []
        for step in range(N_STEPS):
            loss = self.model(torch.randn(2, 4)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.losses.append(loss.item())
            for hook in reversed(hooks.values()) if not step else ():
                hook.release()
        facts = {name: value for each in hooks for name, value in hook_facts(each, hooks[each]).items()}
        self.facts = {name: value for name, value in facts.items() if not name.endswith("_illegal")}


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    "how",
    [
        "blocks, then FSDP2",
        "blocks in place, then FSDP2",
        "FSDP2, then blocks in place",
        "FSDP1 around compiled blocks",
        "blocks alone",
    ],
)
def test_blocks_that_are_compiled_run_again_in_backward(how: str) -> None:
    plain, hooked = unhooked(how), Run(how, {"activation_checkpointing": RECOMPUTED})
    assert hooked.facts == {}
    assert hooked.losses == plain.losses
    assert hooked.backend.n_graphs == plain.n_graphs
    assert plain.n_calls == 3 * N_STEPS
    assert hooked.backend.n_calls == 5 * N_STEPS  # two of three, once more


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("how", ["blocks, then FSDP2", "FSDP2, then the model", "FSDP2, then the model in place"])
def test_fsdp2_is_set_as_asked_before_and_after_compilation(how: str) -> None:
    plain, hooked = unhooked(how), Run(how, {"fsdp": SHARDING})
    assert hooked.facts == {}
    assert hooked.losses == plain.losses
    units = [each for each in hooked.model.modules() if getattr(type(each), "_get_fsdp_state", None)]
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    assert [group.post_forward_mesh_info is not None for group in groups if group] == [False, True, True]
    cast = Run(how, {"fsdp_precision": FORMATS})
    assert cast.facts == {}
    assert cast.losses != plain.losses
    assert cast.losses == pytest.approx(plain.losses, rel=0.02)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("how", ["blocks, then FSDP2", "FSDP2, then blocks in place", "FSDP2, then the model"])
def test_a_hook_leaves_nothing_to_compile_again(how: str) -> None:
    plain, hooked = unhooked(how), Run(how, {"fsdp_precision": "fp32"})
    assert hooked.facts == {}
    assert hooked.backend.n_graphs == plain.n_graphs


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("how", ["FSDP2, then the model", "FSDP2, then the model in place"])
def test_autocast_within_a_compiled_forward_is_found(how: str) -> None:
    hooked = Run(how, {"fsdp_precision": ("fp32", "bf16", "fp32")}, kind=CastingModel)
    reason = str(hooked.facts["fsdp_precision_hook"])
    assert reason.startswith("refused: the script runs the layers under autocast to bf16")


@pytest.mark.usefixtures("_alone")
def test_fsdp1_around_a_compiled_block_belongs_to_the_model() -> None:
    hooked = Run("FSDP1 around compiled blocks", {"fsdp_precision": FORMATS, "fsdp": "NO_SHARD"})
    assert hooked.facts == {}
    policies = [each.mixed_precision.param_dtype for each in hooked.model.layers]
    assert policies == [torch.bfloat16] * 3


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("FSDP2, then the model", WHOLE),
        (
            "FSDP2, then the model in place",
            "refused: the program compiles what calls the layers, so that they cannot be checkpointed one by one",
        ),
        ("compiled FSDP1 layers", "refused: the layers are compiled together with their wrappers"),
        ("some blocks", "refused: 1 of the 3 layers are compiled, and the others are not"),
    ],
)
def test_what_is_compiled_as_a_whole_is_not_checkpointed(how: str, why: str) -> None:
    plain, hooked = unhooked(how), Run(how, {"activation_checkpointing": "full"})
    assert hooked.facts == {"activation_checkpointing_hook": why}
    assert hooked.losses == plain.losses
    assert hooked.backend.n_calls == plain.n_calls


@pytest.mark.launch
def test_two_ranks_lose_as_much_as_without_the_hooks(tmp_path: Path) -> None:
    requested: dict[str, Value] = {
        "fsdp": ("SHARD_GRAD_OP", "FULL_SHARD") * 2,
        "activation_checkpointing": ("full", "none") * 2,
    }
    ended = launch_hooked(*JOB, store=tmp_path, by_torchrun=True, hooks=requested)
    assert ended.warnings == []
    assert len(ended.losses) == 9
    assert ended.losses == pytest.approx(unhooked_losses(*JOB), abs=2e-6)
    assert ended.trial.observed["sharding_strategy"] == requested["fsdp"]
    assert ended.trial.observed["compile"] is True
