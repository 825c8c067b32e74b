"""What the probe tells of layers that are called within a backward pass, or not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.model import precision
from torchx_cubicml.recorder.model.precision import PrecisionProbe, autocast_type, in_backward

INPUT = torch.zeros(1, 2)


class Block(nn.Module):
    """A layer whose parts the test calls itself; one of them has no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.relu, self.down = nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the number of the backward pass that this thread seems to run: -1 without one."""
    state = SimpleNamespace(number=-1)
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: state.number)
    return state


def call(*modules: nn.Module) -> None:
    for module in modules:
        module(INPUT)


@pytest.mark.parametrize(("number", "is_within"), [(-1, False), (0, True), (7, True)])
def test_a_backward_pass_has_a_number(number: int, is_within: bool, task: SimpleNamespace) -> None:
    task.number = number
    assert in_backward() is is_within


def test_without_numbers_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    probe = PrecisionProbe([Block()], bare)
    assert (in_backward(), probe.activation_checkpointing, probe.n_checkpointed) == (False, "", None)


Calls = list[tuple[int, tuple[str, ...]]]


@pytest.mark.parametrize(
    ("run", "recomputed", "kind", "count"),
    [
        ([(0, ("up", "down")), (1, ("up", "down"))], [], "none", 0),
        ([(0, ("up", "down")), (1, ("up", "down"))], [(0, ("",))], "selective", 1),
        ([(0, ("up", "down")), (1, ("up", "down"))], [(0, ("",)), (1, ("",))], "full", 2),
        ([(0, ("up", "down")), (1, ("up", "down"))], [(1, ("up",))], "selective", 1),
        ([(0, ("up", "down")), (1, ("up", "down"))], [(0, ("",)), (1, ("up", "down"))], "full", 2),
        ([(0, ("up", "relu", "down")), (1, ("",))], [(0, ("up", "down")), (1, ("",))], "full", 2),
        ([(0, ("up",)), (1, ("",))], [(0, ("up",)), (1, ("",))], "selective", 2),
        ([(0, ()), (1, ())], [(0, ("relu",))], "selective", 1),
    ],
    ids=["none", "one", "both", "a part", "by its parts", "parts without parameters", "one part", "no forward"],
)
def test_layers_called_again_are_recomputed(
    run: Calls, recomputed: Calls, kind: str, count: int, task: SimpleNamespace
) -> None:
    blocks = [Block(), Block()]
    probe = PrecisionProbe(blocks, bare)
    for number, calls in ((-1, run), (3, recomputed)):
        task.number = number
        for index, names in calls:
            call(*(blocks[index].get_submodule(name) for name in names))
    assert (probe.activation_checkpointing, probe.n_checkpointed) == (kind, count)


@pytest.mark.parametrize("name", ["", "up"])
def test_the_first_format_of_the_layers_counts(name: str, task: SimpleNamespace) -> None:
    blocks = [Block(), Block()]
    probe = PrecisionProbe(blocks, bare)
    first, second = (block.get_submodule(name) for block in blocks)
    task.number = 3
    with torch.autocast("cpu", torch.float16):
        call(first)  # in backward
    task.number = -1
    call(first)
    assert probe.autocast_type == ""
    with torch.autocast("cpu", torch.bfloat16):
        call(second)
    with torch.autocast("cpu", torch.float16):
        call(first)
    assert probe.autocast_type == "torch.bfloat16"


def test_hooks_are_gone_after_their_release() -> None:
    block = Block()
    probe = PrecisionProbe([block], bare)
    assert [len(each._forward_pre_hooks) for each in block.modules()] == [1] * 4
    probe.release()
    assert [len(each._forward_pre_hooks) for each in block.modules()] == [0] * 4


def test_the_format_is_that_of_the_modules_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_type(nn.Linear(2, 2)) == "torch.bfloat16"
        assert autocast_type(nn.Linear(2, 2, device="meta")) == ""
        assert autocast_type(nn.ReLU()) == ""
    assert autocast_type(nn.Linear(2, 2)) == ""


def test_arguments_by_name_reach_the_probe(task: SimpleNamespace) -> None:
    block = Block()
    probe = PrecisionProbe([block], bare)
    task.number = 3
    block(x=INPUT)
    assert precision.in_backward()
    assert probe.n_checkpointed == 1
