"""Placements that the hook gives to modules of a plan, in one process that takes itself for two.

Launches are in ``test_mesh_hook_launches.py``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from tests.recorder.apply.hooked_launch import PLACED
from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.apply.hooks import hook_facts, installed
from torchx_cubicml.recorder.apply.parallelize_module_hook import ParallelizeModuleHook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.records.values import Value

PAIR = PLACED[0]
NO_PLAN = "the program calls parallelize_module with no plan of named modules"


class Ranks:
    """The other ranks of a job, which all answer alike."""

    def __init__(self, *, agree: bool = True) -> None:
        self.answer = agree
        self.words: list[str] = []

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        assert (name, within_s) in {("parallelize_module/0", 30.0), ("sequence_parallel/0", 30.0)}
        self.words.append(word)
        return self.answer and bool(word)


@pytest.fixture(autouse=True)
def mesh() -> Iterator[DeviceMesh]:
    """Make torch take this process for the first of two, and return their mesh."""
    with fake_ranks(2):
        yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def plan() -> dict[str, ParallelStyle]:
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.norm": SequenceParallel(),
        "layers.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


@contextmanager
def hooked(
    value: dict[str, Value], ranks: Ranks | None = None, *, only_checks: bool = False
) -> Iterator[ParallelizeModuleHook]:
    hook = ParallelizeModuleHook(value, peers=ranks or Ranks(), guard=lambda call: call, only_checks=only_checks)
    hook.install()
    try:
        yield hook
    finally:
        hook.release()


@contextmanager
def taken_plans() -> Iterator[list[dict[str, ParallelStyle]]]:
    """Yield the plans that a stand-in for ``parallelize_module`` gets."""
    taken: list[dict[str, ParallelStyle]] = []

    def parallelize_module(module: nn.Module, device_mesh: object = None, parallelize_plan: object = None) -> nn.Module:
        taken.append(parallelize_plan)
        return module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_parallel, "parallelize_module", parallelize_module)
        yield taken


def weights(model: nn.Module) -> dict[str, str]:
    """Return the placement of each weight."""
    return {
        name.removesuffix(".weight"): str(*parameter.placements)
        for name, parameter in model.named_parameters()
        if name.endswith("weight") and hasattr(parameter, "placements")
    }


def parallelized(mesh: DeviceMesh, own: object = None, model: nn.Module | None = None) -> nn.Module:
    return torch_parallel.parallelize_module(model or Model(), mesh, own or plan())


def test_modules_are_placed_otherwise_and_keep_their_layouts(mesh: DeviceMesh) -> None:
    original, own, ranks = torch_parallel.parallelize_module, plan(), Ranks()
    placements = weights(parallelized(mesh))
    assert (placements["embedding"], placements["layers.0.up"], placements["head"]) == ("S(0)", "S(0)", "S(0)")
    with hooked({"embedding": "colwise", "layers.*.up": "rowwise", "layers.*.down": "plan"}, ranks) as hook:
        model = parallelized(mesh, own)
    changed = {"embedding": "S(1)", "layers.0.up": "S(1)", "layers.1.up": "S(1)"}
    assert weights(model) == placements | changed
    assert model.layers[0].up.bias.placements == (Replicate(),)
    assert type(own["embedding"]) is RowwiseParallel
    assert ranks.words == ["embedding,layers.*.up,layers.*.down [('embedding', 'colwise'), ('layers.*.up', 'rowwise')]"]
    assert hook_facts("parallelize_module", hook) == {}
    assert torch_parallel.parallelize_module is original


@pytest.mark.parametrize(
    ("value", "between"),
    [({PAIR: "replicated"}, Replicate()), (dict.fromkeys(PAIR.split(","), "replicated"), Shard(-1))],
    ids=["one group", "two groups"],
)
def test_what_lies_between_replicated_modules_of_a_group_stays_whole(
    value: dict[str, Value], between: object, mesh: DeviceMesh
) -> None:
    with taken_plans() as plans, hooked(value) as hook:
        parallelized(mesh)
    up, down = plans[0]["layers.*.up"], plans[0]["layers.*.down"]
    assert (up.input_layouts, up.output_layouts) == ((Shard(1),), (between,))
    assert (down.input_layouts, down.output_layouts) == ((between,), (Shard(1),))
    assert up.desired_input_layouts == down.desired_input_layouts == (Replicate(),)
    assert hook.refusal().startswith("after the change, layers.*.up is not replicated")  # nothing was parallelised


def test_plans_of_single_blocks_are_served(mesh: DeviceMesh) -> None:
    ranks = Ranks()
    with hooked({"up,down": "replicated"}, ranks) as hook:
        for _ in range(2):
            block = parallelized(mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}, Block())
            assert weights(block) == {"up": "R", "down": "R"}
        parallelized(mesh, ColwiseParallel(), nn.Linear(2, 2))
        assert hook.refusal() == ""
    assert len(ranks.words) == 1


class Own(ParallelStyle):
    def _apply(self, module: nn.Module, _mesh: object) -> nn.Module:
        return module


def tied() -> nn.Module:
    model = Model()
    model.head = nn.Linear(4, 6, bias=False)
    model.head.weight = model.embedding.weight
    return model


def with_padding() -> nn.Module:
    model = Model()
    model.embedding.padding_idx = 0
    return model


def distributed() -> nn.Module:
    model = Model()
    mesh = init_device_mesh("cpu", (2,))
    model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Replicate()]))
    return model


@pytest.mark.parametrize(
    ("key", "change", "model", "why"),
    [
        ("layers.*.norm", {}, Model, "its style is SequenceParallel, and neither ColwiseParallel nor RowwiseParallel"),
        ("head", {"head": Own()}, Model, "its style is Own, and neither"),
        ("head", {}, lambda: nn.ModuleDict({"head": nn.Bilinear(2, 2, 2)}), "it is a Bilinear, and neither Linear nor"),
        ("x", {"x": ColwiseParallel()}, Model, "it names no module of the model"),
        ("head", {"head": ColwiseParallel(input_layouts=Partial())}, Model, "its style has layouts besides Shard"),
        ("head", {}, tied, "its weight is shared with another module"),
        ("embedding", {}, with_padding, "it is an Embedding with padding_idx, max_norm"),
        ("head", {}, lambda: Model().to("meta"), "its parameters have no values yet (device meta)"),
        ("head", {}, distributed, "its parameters are distributed already"),
    ],
)
@pytest.mark.parametrize("only_checks", [False, True])
def test_a_module_that_may_not_be_changed_stays_as_it_is(
    key: str, change: dict[str, ParallelStyle], model: type[nn.Module], why: str, only_checks: bool, mesh: DeviceMesh
) -> None:
    own = {**plan(), **change}
    with (
        taken_plans() as plans,
        hooked({key: "plan" if only_checks else "replicated"}, only_checks=only_checks) as hook,
    ):
        parallelized(mesh, own, model())
    assert plans == [own]
    refused = f"refused: {key} cannot be placed otherwise: {why}"
    assert str(hook_facts("parallelize_module", hook)["parallelize_module_hook"]).startswith(refused)


def test_a_placement_with_unequal_shards_is_illegal(mesh: DeviceMesh) -> None:
    own = {"head": RowwiseParallel(input_layouts=Replicate())}
    for value, refusal in (
        ("colwise", "values refused: colwise does not divide head equally among 2 ranks"),
        ("plan", ""),
    ):
        with hooked({"head": value}, only_checks=value == "plan") as hook:
            assert weights(parallelized(mesh, own))["head"] == "S(1)"
        facts = hook_facts("parallelize_module", hook)
        assert facts.pop("parallelize_module_hook", "") == refusal
        assert facts == {"parallelize_module_hook_illegal": ("colwise",)}


def test_a_placement_that_is_illegal_for_one_module_is_legal_for_another(mesh: DeviceMesh) -> None:
    own = {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": RowwiseParallel(input_layouts=Replicate())}
    with hooked({"embedding": "colwise", "head": "plan"}) as hook:
        assert weights(parallelized(mesh, own)) == {"embedding": "S(1)", "head": "S(1)"}
        assert (hook.refusal(), hook.illegal_values()) == ("", ("colwise",))


def test_names_that_are_in_no_plan_are_told(mesh: DeviceMesh) -> None:
    with hooked({"layers.*.up": "replicated", "layers.*.w1,w2": "replicated"}) as hook:
        assert hook.refusal() == NO_PLAN
        parallelized(mesh, SequenceParallel(), nn.LayerNorm(2))
        assert hook.refusal() == NO_PLAN
        parallelized(mesh)
    assert hook.refusal() == (
        "the script's plans name no layers.*.w1 and no w2; they name embedding, layers.*.norm, layers.*.up, "
        "layers.*.down, head"
    )


def test_ranks_that_disagree_and_meshes_that_are_not_stated_change_nothing(mesh: DeviceMesh) -> None:
    with hooked({"head": "replicated"}, Ranks(agree=False)) as hook:
        assert weights(parallelized(mesh))["head"] == weights(parallelized(mesh))["head"] == "S(0)"
        assert hook.refusal() == "the ranks do not make the same plan"
    with hooked({"head": "replicated"}) as hook, mesh:
        assert weights(torch_parallel.parallelize_module(Model(), parallelize_plan=plan()))["head"] == "S(0)"
        assert hook.refusal().startswith("the script's plan is for a mesh that its call does not state")


def test_a_later_plan_out_of_rule_is_told_with_what_was_changed(mesh: DeviceMesh) -> None:
    with hooked({"head": "replicated"}) as hook:
        parallelized(mesh)
        parallelized(mesh, {"head": Own()})
    assert hook.refusal().endswith("; 1 plans were changed before that was known")


def test_both_hooks_of_a_plan_change_it(mesh: DeviceMesh) -> None:
    requested: dict[str, Value] = {"sequence_parallel": False, f"parallelize_module.{PAIR}": "replicated"}
    hooks = installed(requested, {}, peers=Ranks(), guard=lambda call: call)
    model = parallelized(mesh)
    for name, hook in reversed(hooks.items()):
        hook.release()
        assert hook_facts(name, hook) == {}
    assert weights(model)["layers.0.up"] == "R"
    (hook,) = model.layers[0].norm._forward_pre_hooks.values()
    assert (Replicate(),) in [getattr(cell.cell_contents, "args", [None])[0] for cell in hook.__closure__]
