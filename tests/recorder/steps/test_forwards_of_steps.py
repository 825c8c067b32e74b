"""Work of a step from its forwards: which of them count, and what is known of their samples."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.model.batch import BatchReader
from torchx_cubicml.recorder.steps import forwards as module
from torchx_cubicml.recorder.steps.deferred_hooks import DeferredForwardHook, StepBuffer
from torchx_cubicml.recorder.steps.forwards import Forwards, Work
from torchx_cubicml.recorder.steps.pauses import EVAL_MODE, NO_GRAD, Pauses

if TYPE_CHECKING:
    from collections.abc import Callable


INPUT = torch.zeros(3, 5)


def watched(*modules: nn.Module, trained: list[nn.Parameter] | None = None, **more: Any) -> Forwards:
    forwards = Forwards(bare, Pauses(bare), **more)
    forwards.watch(modules, trained or [])
    return forwards


def train(model: nn.Module, batch: int = 3) -> None:
    model(torch.zeros(batch, 5)).sum().backward()


def test_a_part_of_the_parameters_is_not_the_whole_model() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    forwards = watched(model[0], model, trained=list(model.parameters()))
    train(model[0])
    assert forwards.model is model[0]
    assert not forwards.is_whole
    assert forwards.batch is None
    assert forwards.take() == Work(forwards=1, samples=None, tokens=None)
    forwards.watch([model], list(model.parameters()))
    assert not forwards.was_found
    train(model)
    assert forwards.is_whole
    assert forwards.take() == Work(forwards=1, samples=3, tokens=None)


def test_a_loaders_batch_serves_a_part_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "loader_batch_size", lambda: 7)
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    forwards = watched(model[0], trained=list(model.parameters()))
    for _ in range(2):
        train(model[0])
    assert forwards.take() == Work(forwards=2, samples=14, tokens=None)
    assert (forwards.samples_per_forward, forwards.tokens_per_forward) == (7, None)
    assert forwards.work_of([None, (9, 9)]) == Work(forwards=2, samples=14, tokens=None)


def test_a_stage_of_a_pipeline_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = nn.Linear(5, 2), nn.Linear(5, 2)
    for stages, work in (
        ({1: other, 2: model}, Work(forwards=2, samples=6, tokens=None)),
        ({1: other}, Work(forwards=None, samples=None, tokens=None)),
    ):
        monkeypatch.setattr(module, "read_pipeline", lambda stages=stages: SimpleNamespace(stages=stages))
        forwards = watched(model, trained=list(model.parameters()))
        outputs = [model(INPUT) for _ in range(2)]
        assert len(model._forward_hooks) == (model not in stages.values())
        sum(output.sum() for output in outputs).backward()
        assert forwards.is_whole
        assert forwards.take() == work
        forwards.release()


def test_each_forward_is_announced_in_its_order() -> None:
    model, heard = nn.Linear(5, 2), []
    forwards = watched(model)
    forwards.on_first = lambda: heard.append("first")
    forwards.before_each = lambda: heard.append("each")
    forwards.on_training = lambda: heard.append("training")
    forwards.on_output = lambda node: heard.append(type(node).__name__)
    for _ in range(2):
        train(model)
    assert heard == ["each", "first", "training", "AddmmBackward0", "each"]
    forwards.take()
    train(model)
    assert heard[5:] == ["each", "first"]


def test_forwards_in_evaluation_mode_are_pauses() -> None:
    model = nn.Linear(5, 2)
    forwards = watched(model)
    pauses = forwards._pauses
    pauses.now = iter(range(99)).__next__
    train(model)
    with torch.no_grad():
        model(INPUT)
    assert (pauses.kind, forwards.may_have_trained()) == (NO_GRAD, False)
    model.eval()
    with torch.no_grad():
        model(INPUT)
    assert (pauses.kind, forwards.may_have_trained()) == (EVAL_MODE, False)
    model(INPUT)
    assert [forwards.may_have_trained(), forwards.may_have_trained()] == [True, False]
    model(INPUT)
    model.train()
    train(model)
    assert (pauses.kind, forwards.may_have_trained()) == ("", False)
    assert forwards.take() == Work(forwards=2, samples=6, tokens=None)


def test_other_modules_in_evaluation_mode_are_no_pauses() -> None:
    model, other = nn.Linear(5, 2), nn.Linear(5, 2).eval()
    forwards = watched(model, other)
    forwards._pauses.now = iter(range(99)).__next__
    other(INPUT)
    assert (forwards._pauses.kind, forwards.may_have_trained()) == ("", False)


def test_a_requested_batch_that_is_not_followed_is_ignored() -> None:
    model = nn.Linear(5, 2)
    for requested, samples in ((3, 3), (5, 5), (4, 3), (None, 3)):
        forwards = watched(model, requested=requested)
        train(model)
        assert forwards.take().samples == samples
        forwards.release()


def test_parts_of_a_loaded_batch_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(5, 2)
    monkeypatch.setattr(module, "loader_batch_size", lambda: 6)
    forwards = watched(model)
    for parts, samples in ((2, 6), (3, 9)):  # once the first step has shown it, parts are believed
        for _ in range(parts):
            train(model)
        assert forwards.take() == Work(forwards=parts, samples=samples, tokens=None)
    forwards = watched(model)
    train(model)
    assert forwards.take() == Work(forwards=1, samples=None, tokens=None)
    assert forwards.samples_per_forward is None
    train(model, 6)
    assert forwards.take() == Work(forwards=1, samples=None, tokens=None)


def test_other_optimizers_of_the_model_drop_no_forward() -> None:
    model, other = nn.Linear(5, 2), nn.Linear(2, 2)
    forwards = watched(model)
    forwards.note_other_optimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    train(model)
    forwards.note_other_optimizer(torch.optim.SGD([model.bias], lr=0.1))
    assert forwards.take() == Work(forwards=1, samples=3, tokens=None)
    train(model)
    forwards.note_other_optimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    assert forwards.take() is None


@pytest.mark.parametrize(
    ("batches", "work"),
    [
        ([4], Work(forwards=1, samples=4, tokens=None)),
        ([4, 4], Work(forwards=1, samples=4, tokens=None)),
        ([4, 3], Work(forwards=None, samples=None, tokens=None)),
        ([4, 4, 4], Work(forwards=None, samples=None, tokens=None)),
    ],
)
def test_a_discriminator_sees_real_and_made_samples(batches: list[int], work: Work) -> None:
    model, generator = nn.Linear(5, 2), nn.Linear(2, 2)
    forwards = watched(model)
    train(model)
    forwards.note_other_optimizer(torch.optim.SGD(generator.parameters(), lr=0.1))
    for batch in batches:
        train(model, batch)
    assert forwards.take() == work
    assert not forwards.settle(StepBuffer(forwards._pauses))


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


Wrapper.__name__ = "DistributedDataParallel"


def test_a_settled_model_has_one_light_hook() -> None:
    model = Wrapper(nn.Linear(5, 2))
    forwards = watched(model, trained=list(model.parameters()))
    notes = StepBuffer(forwards._pauses)
    assert not forwards.settle(notes)  # no model yet
    assert not forwards.rest()
    forwards.look_again()
    train(model)
    assert not forwards.settle(notes)  # within a step
    forwards.take()
    forwards.on_training = lambda: None
    assert not forwards.settle(notes)
    forwards.on_training = None
    assert forwards.settle(notes)
    (hook,) = model._forward_pre_hooks.values()
    assert isinstance(hook, DeferredForwardHook)
    assert not model._forward_hooks
    train(model)
    assert list(notes.entries) == [(None, (3, 5))]
    assert forwards.take() is None
    model.training = False  # the wrapper's own mode has no effect
    train(model)
    assert len(notes.entries) == 2
    assert forwards.rest()
    assert not model._forward_pre_hooks
    forwards.look_again()
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == (1, 1)
    train(model)
    assert forwards.take() == Work(forwards=1, samples=3, tokens=None)


def test_a_compiled_model_keeps_its_hook() -> None:
    model = nn.Linear(5, 2)
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    forwards = watched(model, trained=list(model.parameters()))
    train(model)
    forwards.take()
    notes = StepBuffer(forwards._pauses)
    assert forwards.settle(notes)
    train(model)
    assert list(notes.entries) == [(None, (3, 5))]
    assert not forwards.rest()
    assert model._compiled_call_impl is not compiled
    forwards.release()
    assert model._compiled_call_impl is compiled
    forwards.look_again()
    theirs = model._compiled_call_impl = lambda *args: compiled(*args)  # noqa: PLW0108 - another function
    forwards.release()
    assert model._compiled_call_impl is theirs


@pytest.mark.parametrize(
    ("shapes", "work"),
    [
        ((), None),
        (((4, 16),), Work(forwards=1, samples=4, tokens=64)),
        (((4, 16), (2, 8)), Work(forwards=2, samples=6, tokens=80)),
        (((4, 16), (2, 8, 3)), Work(forwards=2, samples=6, tokens=None)),
        (((4, 16), None), Work(forwards=2, samples=None, tokens=None)),
    ],
)
def test_noted_shapes_are_work(shapes: tuple[tuple[int, ...] | None, ...], work: Work | None) -> None:
    forwards = watched()
    forwards.batch = BatchReader(path=(0,), holds_tokens=True)
    assert forwards.work_of(shapes) == work


def test_noted_forwards_that_share_samples_are_unknown_work() -> None:
    model = nn.Linear(5, 2)
    forwards = watched(model)
    (model(INPUT) + model(INPUT)).sum().backward()
    forwards.take()
    assert forwards.work_of([(4, 16)]) == Work(forwards=None, samples=None, tokens=None)
    assert forwards.work_of([]) is None
    notes = StepBuffer(forwards._pauses)
    assert forwards.settle(notes)
    train(model)
    assert list(notes.entries) == [(None, None)]  # there is no batch to look for


@pytest.mark.parametrize(
    ("name", "variable", "value", "compiles"),
    [
        ("torch._dynamo.config", "compiled_autograd", True, True),
        ("torch._dynamo.compiled_autograd", "compiled_autograd_enabled", True, True),
        ("torch._dynamo.config", "compiled_autograd", False, False),
        ("torch._dynamo.config", "other", True, False),
    ],
)
def test_a_compiled_backward_gets_no_hook(
    name: str, variable: str, value: bool, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("torch._dynamo.config", "torch._dynamo.compiled_autograd"):
        monkeypatch.setitem(sys.modules, each, ModuleType(each))
    setattr(sys.modules[name], variable, value)
    model = nn.Linear(5, 2)
    forwards = watched(model)
    for _ in range(2):
        train(model)  # without a hook, the two may share a backward
    assert (forwards.take().samples is None) is compiles


def test_a_parameter_written_within_a_step_hides_the_work() -> None:
    frozen, model = nn.Linear(5, 5), nn.Linear(5, 2)
    frozen.requires_grad_(False)
    both = nn.Sequential(frozen, model)
    forwards = watched(both, trained=[*frozen.parameters(), *model.parameters()])
    with torch.no_grad():
        model.weight.mul_(2)
    train(both)
    with torch.no_grad():
        frozen.weight.mul_(2)
    train(both)
    assert forwards.take() == Work(forwards=2, samples=6, tokens=None)
    with torch.no_grad():
        model.weight.mul_(2)  # the step itself
    train(both)
    with torch.no_grad():
        model.weight.mul_(2)
    train(both)
    assert forwards.take() == Work(forwards=None, samples=None, tokens=None)


def test_a_whole_loaded_batch_is_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(5, 2)
    monkeypatch.setattr(module, "loader_batch_size", lambda: 6)
    forwards = watched(model)
    train(model, 6)
    train(model, 3)  # the last batch of the data
    assert forwards.take() == Work(forwards=2, samples=9, tokens=None)
    train(model, 6)
    assert forwards.take() == Work(forwards=1, samples=6, tokens=None)


@pytest.mark.parametrize("kind", [lambda: nn.Linear(5, 2), lambda: Wrapper(nn.Linear(5, 2))], ids=["plain", "wrapped"])
def test_a_settled_model_ends_with_its_last_reference(kind: Callable[[], nn.Module]) -> None:
    model = kind()
    forwards = watched(model, trained=list(model.parameters()))
    train(model)
    forwards.take()
    assert forwards.settle(StepBuffer(forwards._pauses))
    remains = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert remains() is None
    finally:
        gc.enable()
