"""Replacements of the optimizer, with their steps counted by hand."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.steps import optimizer_changes
from torchx_cubicml.recorder.steps.optimizer_changes import (
    OptimizerIdentity,
    OtherOptimizers,
    UnhookedOptimizers,
    UnhookedSteps,
    UninspectedTraining,
    on_every_compilation,
)


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1)


def test_eight_steps_alone_replace_the_leading_one() -> None:
    others, one, another = OtherOptimizers(), sgd(nn.Linear(1, 1)), sgd(nn.Linear(1, 1))
    assert others.steps == 0
    assert [others.saw(one) for _ in range(9)] == [False] * 7 + [True] * 2
    assert [others.saw(another), others.saw(one)] == [False, True]
    assert others.steps == 11
    assert (others.end(), others.steps) == (11, 0)
    assert [others.saw(another) for _ in range(8)][-2:] == [False, True]


def test_another_one_counts_once_the_candidate_is_gone() -> None:
    others, one, another = OtherOptimizers(), sgd(nn.Linear(1, 1)), sgd(nn.Linear(1, 1))
    for _ in range(7):
        others.saw(one)
    del one
    gc.collect()
    assert [others.saw(another) for _ in range(8)] == [False] * 7 + [True]
    others.forget()
    assert others.steps == 15
    assert [others.saw(another) for _ in range(8)] == [False] * 7 + [True]


def test_a_long_training_is_inspected_ever_later() -> None:
    training = UninspectedTraining()
    assert not training.is_on
    for length in (64, 128, 256):
        training.begin()
        assert training.is_on
        assert [training.is_long() for _ in range(length)] == [False] * (length - 1) + [True]
        assert not training.is_on
    training.begin()
    training.is_long()
    training.begin()
    assert not any(training.is_long() for _ in range(511))


def forwards(model: nn.Module | None, *, is_whole: bool = True) -> Any:
    return SimpleNamespace(model=model, is_whole=is_whole)


def test_an_optimizer_of_the_same_parameters_continues() -> None:
    first, second, other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(first, second)
    identity = OptimizerIdentity(sgd(first))
    for seen in (forwards(None), forwards(model), forwards(model, is_whole=False)):
        assert identity.is_also_of(sgd(first), seen)
        assert not identity.is_also_of(sgd(other), seen)
        assert not identity.is_also_of(torch.optim.Adam(first.parameters()), seen)
    assert identity.is_also_of(sgd(second), forwards(model))
    assert not identity.is_also_of(sgd(second), forwards(model, is_whole=False))
    assert not identity.is_also_of(sgd(second), forwards(None))
    assert not identity.is_also_of(sgd(first, other), forwards(model))
    assert identity.is_also_of(sgd(first, other), forwards(model, is_whole=False))


def test_parameters_that_are_gone_are_no_identity() -> None:
    model = nn.Linear(2, 2)
    identity = OptimizerIdentity(sgd(model))
    del model
    assert not identity.is_also_of(sgd(nn.Linear(2, 2)), forwards(None))


def test_a_step_shows_in_the_first_trained_parameter() -> None:
    frozen, model = nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)
    watched = UnhookedSteps(sgd(frozen, model))
    with torch.no_grad():
        frozen.weight.mul_(2)
        model.bias.mul_(2)
    assert not watched.has_stepped()
    with torch.no_grad():
        model.weight.mul_(2)
        model.weight.mul_(2)
    assert [watched.has_stepped(), watched.has_stepped()] == [True, False]
    del model
    assert [watched.has_stepped(), watched.has_stepped()] == [True, False]


def test_state_shows_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = sgd(nn.Linear(2, 2).requires_grad_(False))
    stateless, stateful = sgd(nn.Linear(2, 2)), sgd(nn.Linear(2, 2))
    stateful.state["a parameter"] = {"step": 1}
    frozen.state["a parameter"] = {"step": 1}
    living = [frozen, stateless]
    monkeypatch.setattr(optimizer_changes, "live_instances", lambda kind: living)
    search = UnhookedOptimizers()
    assert search.find() is None
    with torch.no_grad():
        stateless.param_groups[0]["params"][0].mul_(2)
    living.append(stateful)
    assert search.find() is stateless
    assert search.find() is stateful


@pytest.mark.parametrize("has_handler", [True, False])
def test_a_compiler_calls_where_it_can(has_handler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    module = ModuleType("torch._dynamo.callback")
    module.callback_handler = SimpleNamespace(register_end_callback=calls.append) if has_handler else None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    on_every_compilation(print, print)
    assert calls == [print] * has_handler
    monkeypatch.delitem(sys.modules, module.__name__)
    on_every_compilation(print, print)
    assert len(calls) == has_handler
