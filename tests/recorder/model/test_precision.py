from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.recorder.bare import bare
from torchx_cubicml.recorder.model.precision import PrecisionProbe


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.part = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = checkpoint(self.up, x, use_reentrant=False) if self.part else self.up(x)
        return self.down(torch.relu(inside))


def train(blocks: nn.ModuleList, recomputed: set[int], *, reentrant: bool = False) -> None:
    x = torch.randn(2, 4, requires_grad=True)
    for index, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=reentrant) if index in recomputed else block(x)
    x.sum().backward()


@pytest.mark.parametrize(
    ("recomputed", "part", "expected"),
    [(set(), False, "none"), ({1}, False, "selective"), (set(), True, "selective"), ({0, 1, 2}, False, "full")],
    ids=["none", "one block", "a part of each", "all"],
)
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing_shows_in_backward(recomputed: set[int], part: bool, expected: str, reentrant: bool) -> None:
    blocks = nn.ModuleList(Block() for _ in range(3))
    for block in blocks:
        block.part = part
    probe = PrecisionProbe(list(blocks), bare)
    train(blocks, recomputed, reentrant=reentrant)
    assert probe.activation_checkpointing == expected
    assert probe.autocast_type == ""
    probe.release()
    assert not any(module._forward_pre_hooks for module in blocks.modules())


@pytest.mark.parametrize(("recomputed", "expected"), [(3, "full"), (2, "selective")], ids=["all", "two of three"])
def test_layers_with_their_own_recomputation_are_recognised(recomputed: int, expected: str) -> None:
    class Own(Block):  # as layers of transformers do
        own = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False) if self.own else super().forward(x)

    blocks = nn.ModuleList(Own() for _ in range(3))
    for block in blocks[:recomputed]:
        block.own = True
    probe = PrecisionProbe(list(blocks), bare)
    train(blocks, set())
    assert probe.activation_checkpointing == expected


def test_autocast_shows_within_a_layer() -> None:
    blocks = nn.ModuleList(Block() for _ in range(2))
    probe = PrecisionProbe(list(blocks), bare)
    with torch.autocast("cpu", torch.bfloat16):
        train(blocks, set())
    assert probe.autocast_type == "torch.bfloat16"
    assert probe.layer_autocast == ("torch.bfloat16",) * 2


def test_autocast_of_a_layer_that_has_not_run_is_unknown() -> None:
    blocks = nn.ModuleList(Block() for _ in range(2))
    probe = PrecisionProbe(list(blocks), bare)
    train(nn.Sequential(blocks[0]), set())
    assert probe.layer_autocast == ()
    train(blocks, set())
    assert probe.layer_autocast == ("", "")


def test_an_older_torch_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = nn.ModuleList(Block() for _ in range(2))
    probe = PrecisionProbe(list(blocks), bare)
    train(blocks, {0, 1})
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    assert probe.activation_checkpointing == ""


@pytest.mark.parametrize(("recomputed", "calls"), [(set(), 0), ({1}, 0), ({0, 1}, 1)], ids=["none", "another", "first"])
def test_the_graph_of_a_recomputed_layer_is_passed_once(recomputed: set[int], calls: int) -> None:
    blocks, names = nn.ModuleList(Block() for _ in range(2)), []
    probe = PrecisionProbe(list(blocks), bare, on_recomputed=lambda node: names.append(node.name()))
    for _ in range(2):
        train(blocks, recomputed, reentrant=True)
    assert names == ["AddmmBackward0"] * calls
    probe.release()
    assert not any(module._forward_hooks for module in blocks.modules())
