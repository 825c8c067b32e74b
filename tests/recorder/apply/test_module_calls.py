from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.modules import module as place

from torchx_cubicml.recorder.apply.module_calls import before_every_call


def test_every_call_is_seen_until_the_end() -> None:
    seen: list[nn.Module] = []
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    end = before_every_call(lambda module, args: seen.append(module))
    model(torch.ones(1, 2))
    assert seen == [model, *model]
    end()
    model(torch.ones(1, 2))
    assert len(seen) == 3


def test_a_compiled_module_warns_of_the_hooks_of_others_only() -> None:
    original, model = place._has_any_global_hook, torch.compile(nn.Linear(2, 2), backend="eager")
    ends = [before_every_call(lambda module, args: None) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(1, 2))
    assert not place._has_any_global_hook()
    other = place.register_module_forward_pre_hook(lambda module, args: None)
    assert place._has_any_global_hook()
    other.remove()
    for end in ends:  # in any order
        end()
    assert place._has_any_global_hook is original
