from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from tests.recorder.apply.hooked_launch import launch_hooked
from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.apply.activation_checkpointing_hook import ActivationCheckpointingHook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = "train_wrapped.py"
MIXED = ("full", "none", "full", "none")


class Block(nn.Module):
    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.up, self.down, self.dropout = nn.Linear(4, 8), nn.Linear(8, 4), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4) if kind == "statistics" else nn.LayerNorm(4)
        self.register_buffer("calls", torch.zeros(()))
        self.computed = 0

    def forward(self, x: torch.Tensor, cache: object = None, *, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
        self.computed += 1
        if self.kind == "count":
            self.calls += 1
        inside = checkpoint(self.up, x, use_reentrant=False) if self.kind == "own" else self.up(x)
        return self.norm(x + scale * self.dropout(self.down(torch.relu(inside))))


class Model(nn.Module):
    def __init__(self, n_layers: int = 4, kind: str = "", **arguments: object) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(kind) for _ in range(n_layers))
        self.kind, self.arguments = kind, arguments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            is_own = self.kind == "around"
            x = checkpoint(layer, x, use_reentrant=False) if is_own else layer(x, **self.arguments)
        return x


class Ranks:
    """The other ranks, which answer as they are told."""

    def __init__(self, answer: bool | None = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        self.asked.append((name, word))
        return bool(word) if self.answer is None else self.answer


INSTALLED: list[ActivationCheckpointingHook] = []


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    forward = Block.forward
    yield
    while INSTALLED:
        INSTALLED.pop().release()
    Block.forward = forward


def hooked(requested: object, ranks: Ranks | None = None, *, only_checks: bool = False) -> ActivationCheckpointingHook:
    hook = ActivationCheckpointingHook(
        requested, peers=ranks or Ranks(), guard=lambda call: call, only_checks=only_checks
    )
    hook.install()
    INSTALLED.append(hook)
    return hook


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Return the gradients of one training step on a fixed batch with fixed random numbers."""
    model.zero_grad()
    torch.manual_seed(1)
    model(torch.randn(3, 4)).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def calls(model: Model) -> list[int]:
    counts = [layer.computed for layer in model.layers]
    for layer in model.layers:
        layer.computed = 0
    return counts


@pytest.mark.parametrize(
    ("requested", "computed"), [(MIXED, [2, 1, 2, 1]), ("full", [2] * 4), ("none", [1] * 4)], ids=str
)
def test_chosen_layers_run_twice_with_the_same_gradients(requested: object, computed: list[int]) -> None:
    model = Model(scale=torch.tensor(0.5))
    expected = gradients(model)
    assert calls(model) == [1] * 4
    hook = hooked(requested)
    assert all(map(torch.equal, gradients(model), expected))
    assert calls(model) == computed
    hook.release()
    assert hook.refusal() == ""
    assert hook.illegal_values() == ()
    assert all(map(torch.equal, gradients(model), expected))
    assert calls(model) == computed  # the layers stay as they are


def test_nothing_is_kept_for_a_backward_that_does_not_come() -> None:
    model = Model()
    hooked("full")
    gradients(model)
    calls(model)
    with torch.no_grad():
        model(torch.randn(3, 4))
    model.eval()
    model(torch.randn(3, 4)).sum().backward()
    assert calls(model) == [2] * 4  # one forward each


def test_copies_pickles_and_other_models_of_the_class_are_as_before() -> None:
    model = Model()
    hooked("full")
    gradients(model)
    calls(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), Model()):
        gradients(other)
        assert calls(other) == [1] * 4
    assert "forward" not in vars(model.layers[0])


def test_a_model_that_does_not_train_is_not_looked_at() -> None:
    ranks, teacher, student = Ranks(), Model(3), Model()
    hook = hooked(MIXED, ranks)
    with torch.no_grad():
        teacher(torch.randn(3, 4))
    teacher.requires_grad_(requires_grad=False)(torch.randn(3, 4))
    student.eval()(torch.randn(3, 4))
    assert ranks.asked == []
    gradients(student.train())
    hook.release()
    assert calls(student) == [3, 2, 3, 2]
    assert hook.refusal() == ""


def test_another_model_may_fit() -> None:
    ranks, small, fitting = Ranks(), Model(3), Model()
    hook = hooked(MIXED, ranks)
    gradients(small)
    gradients(small)
    assert hook.refusal() == "4 layers were requested, but the model repeats 3"
    assert ranks.asked == [("activation_checkpointing/0", "")]
    gradients(fitting)
    assert calls(fitting) == [2, 1, 2, 1]
    hook.release()
    assert hook.refusal() == ""


def test_no_model_is_told() -> None:
    hook = hooked("full")
    hook.release()
    assert hook.refusal() == "the program trains no model with repeated layers"
    gradients(Model())
    assert hook.refusal() == "the program trains no model with repeated layers"


def test_ranks_that_disagree_change_nothing() -> None:
    model, hook = Model(), hooked("full", Ranks(answer=False))
    gradients(model)
    hook.release()
    assert calls(model) == [1] * 4
    assert hook.refusal() == "the ranks do not train the same layers"


REFUSED = [
    ("statistics", {}, "the layers keep running statistics, which a second forward would change"),
    ("count", {}, "the forward of a layer writes its buffer calls, and would do so twice"),
    ("own", {}, "the script checkpoints layers itself"),
    ("around", {}, "the script checkpoints layers itself"),
    ("", {"cache": []}, "a layer is called with an object of class list, which a second forward could change"),
    ("", {"cache": (1, {})}, "a layer is called with an object of class dict, which a second forward could change"),
]


@pytest.mark.parametrize("only_checks", [False, True], ids=["requested", "checked"])
@pytest.mark.parametrize(("kind", "arguments", "reason"), REFUSED)
def test_what_a_second_forward_would_change_is_told(
    kind: str, arguments: dict[str, Any], reason: str, only_checks: bool
) -> None:
    model = Model(kind=kind, **arguments)
    expected = gradients(model)
    hook = hooked(("none",) * 4 if only_checks else MIXED, only_checks=only_checks)
    assert all(map(torch.equal, gradients(model), expected))
    hook.release()
    assert hook.refusal() == reason


@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", ["compiled", "compiled in place", "replaced", "switched on", "scripted"])
def test_layers_that_others_handle_are_left_alone(kind: str) -> None:
    model: nn.Module = Model()
    if kind == "compiled":
        model = torch.compile(model, backend="eager")
    elif kind == "compiled in place":
        model.layers[0].compile(backend="eager")
    elif kind == "replaced":
        model.layers[0].forward = model.layers[0].forward
    elif kind == "scripted":
        model.layers = nn.ModuleList(torch.jit.script(nn.Sequential(nn.Linear(4, 4))) for _ in range(4))
    else:
        model.gradient_checkpointing = True
    hook = hooked(MIXED)
    gradients(model)
    hook.release()
    reason = {
        "replaced": "another library has replaced the forward of a layer",
        "switched on": "the script checkpoints layers itself",
        "compiled": "the model is compiled as a whole, and not layer by layer",
        "compiled in place": "1 of the 4 layers are compiled, and the others are not",
        "scripted": "the layers are compiled by TorchScript",
    }[kind]
    assert hook.refusal() == reason
    assert kind == "scripted" or calls(getattr(model, "_orig_mod", model)) == [1] * 4


def test_wrappers_that_fsdp_shards_are_the_scripts_own() -> None:
    model = Model()
    with fake_ranks(2):
        for index, layer in enumerate(model.layers):
            model.layers[index] = fully_shard(checkpoint_wrapper(layer))
        hook = hooked(MIXED)
        gradients(model)
        hook.release()
    assert hook.refusal() == "the script checkpoints layers itself"


def test_a_check_changes_nothing_and_leaves_nothing() -> None:
    forward, model = Block.forward, Model()
    hook = hooked(("none",) * 4, only_checks=True)
    gradients(model)
    hook.release()
    assert calls(model) == [1] * 4
    assert hook.refusal() == ""
    assert Block.forward is forward


def test_another_model_of_the_class_can_be_compiled_in_one_graph() -> None:
    hooked("full")
    gradients(Model())
    other = torch.compile(Model(), backend="eager", fullgraph=True)
    assert other(torch.randn(3, 4)).shape == (3, 4)


@pytest.mark.launch
def test_each_layer_is_observed_as_asked_and_the_loss_is_the_same(tmp_path: Path, unhooked: list[float]) -> None:
    """Other ways to wrap are in ``test_fsdp_hook.py``."""
    ended = launch_hooked(JOB, "ddp", store=tmp_path, by_torchrun=True, hooks={"activation_checkpointing": MIXED})
    observed = ended.trial.observed
    assert observed["activation_checkpointing"] == MIXED
    assert observed["checkpointed_modules"] == 2
    assert "activation_checkpointing_hook" not in observed
    assert ended.warnings == []
    assert len(ended.losses) == 9
    assert ended.losses == unhooked


@pytest.mark.launch
def test_a_launch_with_the_own_values_finds_out_that_the_script_checkpoints(tmp_path: Path) -> None:
    own = {"activation_checkpointing": ("none",) * 4}
    ended = launch_hooked(JOB, "script-in-layers", store=tmp_path, n_ranks=1, checked_hooks=own)
    assert ended.trial.observed["activation_checkpointing"] == ("selective",) * 4
    assert ended.trial.observed["activation_checkpointing_hook"] == "refused: the script checkpoints layers itself"
    assert ended.warnings == []
