from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps.clipping import Clipping

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clipping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clipping]:
    for module in (nn.utils, nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    made = Clipping(bare)
    made.install()
    return made


def with_gradient() -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 3.0)
    return [parameter]


def test_a_norm_is_seen_and_clipped_to(clipping: Clipping) -> None:
    assert clipping.facts() == {}
    parameters = with_gradient()
    total = torch.nn.utils.clip_grad_norm_(parameters, 1.5)
    assert (total.item(), clipping.facts()) == (6.0, {"max_grad_norm": 1.5})
    assert parameters[0].grad.norm().item() == pytest.approx(1.5, rel=1e-4)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm=2)
    assert clipping.facts() == {"max_grad_norm": 2.0}


def test_a_limit_on_each_value_is_seen(clipping: Clipping) -> None:
    parameters = with_gradient()
    torch.nn.utils.clip_grad_value_(parameters, clip_value=0.5)
    assert parameters[0].grad.max().item() == 0.5
    assert clipping.facts() == {"max_grad_value": 0.5}


def test_the_two_halves_of_clipping_are_seen(clipping: Clipping) -> None:
    parameters = with_gradient()
    total = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, 3.0, total)
    assert clipping.facts() == {"max_grad_norm": 3.0}


def test_a_norm_without_clipping_is_no_limit(clipping: Clipping) -> None:
    torch.nn.utils.clip_grad_norm_(with_gradient(), float("inf"))
    assert clipping.facts() == {}


def test_the_function_stays_what_it_was_to_its_users(clipping: Clipping) -> None:
    assert torch.nn.utils.clip_grad_norm_ is torch.nn.utils.clip_grad.clip_grad_norm_
    assert pickle.loads(pickle.dumps(torch.nn.utils.clip_grad_norm_)) is torch.nn.utils.clip_grad_norm_
    compiled = torch.compile(lambda ps: torch.nn.utils.clip_grad_norm_(ps, 1.0), backend="eager", fullgraph=True)
    parameters = with_gradient()
    assert compiled(parameters).item() == 6.0
    with pytest.raises(TypeError, match="max_norm"):
        torch.nn.utils.clip_grad_norm_(with_gradient())
