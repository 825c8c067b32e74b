from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.recorder.bare import Counter, bare
from torchx_cubicml.recorder.steps.deferred_hooks import BufferedStep, DeferredForwardHook, StepBuffer, make_step_hook
from torchx_cubicml.recorder.steps.pauses import Pauses
from torchx_cubicml.recorder.steps.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


def open_notes(optimizer: object, *, left: int = 100, strangers: int = 0) -> StepBuffer:
    notes = StepBuffer(Pauses(bare))
    notes.open(lambda: optimizer, Counter(), strangers=strangers)
    notes.left = left
    return notes


def test_noted_steps_are_taken_once() -> None:
    leading = object()
    notes = open_notes(leading)
    model = nn.Linear(2, 1)
    step, forward = make_step_hook(notes, print, bare), DeferredForwardHook(notes, (0,), bare)
    forward(model, (torch.zeros(3, 2),), {})
    forward(model, (torch.zeros(4, 2),), {})
    step(leading, (), {})
    step(leading, (), {})
    forward(model, (None,), {})
    assert list(notes.take()) == [
        BufferedStep(end=2.0, began=1.0, shapes=((3, 2), (4, 2))),
        BufferedStep(end=3.0, began=None, shapes=()),
    ]
    assert list(notes.take()) == []
    step(leading, (), {})
    assert list(notes.take()) == [BufferedStep(end=5.0, began=4.0, shapes=(None,))]


@pytest.mark.parametrize(
    ("place", "args", "kwargs", "shape"),
    [
        ((0,), (torch.zeros(3, 2),), {}, (3, 2)),
        ((1, "ids"), (None, {"ids": torch.zeros(5)}), {}, (5,)),
        (("batch", 0), (), {"batch": [torch.zeros(1, 7)]}, (1, 7)),
        ((0, ".x"), (SimpleNamespace(x=torch.zeros(6, 2)),), {}, (6, 2)),
        ((0, ".y"), (SimpleNamespace(x=torch.zeros(6, 2)),), {}, None),
        ((), (torch.zeros(3, 2),), {}, None),
        ((2,), (torch.zeros(3, 2),), {}, None),
        (("batch",), (), {"batch": 3}, None),
    ],
    ids=["first", "within", "named", "field", "no such field", "unknown", "absent", "no tensor"],
)
def test_the_batch_is_looked_for_in_its_place(
    place: tuple[int | str, ...], args: tuple[object, ...], kwargs: dict[str, object], shape: object
) -> None:
    notes = open_notes(None)
    DeferredForwardHook(notes, place, bare)(nn.Linear(2, 1), args, kwargs)
    assert list(notes.entries) == [(1.0, shape)]


def test_possible_training_forwards_are_noted() -> None:
    notes = open_notes(None)
    hook, model = DeferredForwardHook(notes, (0,), bare), nn.Linear(2, 1)
    with torch.no_grad():
        hook(model, (torch.zeros(3, 2),), {})
    assert not notes.entries
    hook(model.eval(), (torch.zeros(3, 2),), {})
    hook(model, (torch.zeros(3, 2),), {})
    assert list(notes.entries) == [()]
    notes.end_step()
    assert [step.shapes for step in notes.take()] == [None]


def test_steps_are_handed_on_when_it_is_time_to_look() -> None:
    leading, other = object(), object()
    handed: list[object] = []
    notes = open_notes(leading, left=3, strangers=1)
    hook = make_step_hook(notes, lambda optimizer, *_: handed.append(optimizer), bare)
    for optimizer in (leading, other, leading, other):
        hook(optimizer, (), {})
    assert handed == []
    hook(leading, (), {})
    assert handed == [leading]
    for _ in range(15):
        hook(other, (), {})
    assert handed == [leading, other]
    notes.left = 0
    hook(leading, (), {})
    assert handed == [leading, other, leading]


def test_a_failing_clock_is_reported_and_harmless() -> None:
    errors: list[Exception] = []

    def guard(hook: Callable[..., object]) -> Callable[..., None]:
        def call(*args: object) -> None:
            try:
                hook(*args)
            except Exception as error:  # noqa: BLE001 - as around every hook
                errors.append(error)

        return call

    def fail() -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")

    leading = object()
    notes = open_notes(leading)
    notes.now = fail
    make_step_hook(notes, print, guard)(leading, (), {})
    DeferredForwardHook(notes, (0,), guard)(nn.Linear(2, 1), (torch.zeros(3, 2),), {})
    assert [str(error) for error in errors] == ["CUDA error: device-side assert triggered"] * 2


def test_forwards_without_steps_take_bounded_memory() -> None:
    leading = object()
    notes = open_notes(leading)
    hook, model, inputs = DeferredForwardHook(notes, (0,), bare), nn.Linear(2, 1), (torch.zeros(3, 2),)
    for _ in range(70_000):
        hook(model, inputs, {})
    assert len(notes.entries) == 1 << 16
    make_step_hook(notes, print, bare)(leading, (), {})
    assert list(notes.take()) == []  # how many forwards there were is not known


def test_a_copied_or_pickled_model_leaves_the_hook_behind() -> None:
    model = nn.Linear(2, 1)
    model.register_forward_pre_hook(DeferredForwardHook(open_notes(None), (0,), bare), with_kwargs=True)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin(torch.zeros(3, 2)).shape == (3, 1)
        assert "torchx_cubicml" not in repr(twin._forward_pre_hooks)


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training(bare, world_size=1)
    yield made
    made.release()


def run(training: Training, model: nn.Module, optimizer: Optimizer, batches: list[int]) -> list[bool]:
    hook, news = make_step_hook(training.notes, lambda *args: news.append(training.step(args[0])), bare), []
    for batch in batches:
        model(torch.randn(batch, 8)).sum().backward()
        optimizer.step()
        hook(optimizer, (), {})
    return news


def test_a_settled_training_counts_every_step_and_sample(training: Training) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    news = run(training, model, optimizer, [4] * 300)
    assert training.notes.left > 0
    assert len(news) < 50  # of 300 steps, these were looked at
    assert [type(hook) for hook in model._forward_pre_hooks.values()] == [DeferredForwardHook]
    assert not model._forward_hooks
    measured = training.measurement()
    assert training.steps == 300
    assert measured is not None
    assert measured.samples_per_second == pytest.approx(4 / measured.mean_step_time_s)
    assert measured.steps_counted + measured.warmup_steps == 300
    assert measured.share_outside_steps is not None


def test_batches_that_change_later_count_as_they_are(training: Training) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(training, model, optimizer, [4] * 20 + [6] * 40)
    training.conclude()
    assert [step.samples for step in training._times._blocks.all()] == [4] * 19 + [6] * 40


def test_forwards_that_begin_to_share_a_backward_are_not_counted(training: Training) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = make_step_hook(training.notes, lambda *args: training.step(args[0]), bare)
    for step in range(70):
        loss = model(torch.randn(4, 8)).sum()
        if step > 20:
            loss = loss + model(torch.randn(4, 8)).sum()
        loss.backward()
        optimizer.step()
        hook(optimizer, (), {})
    measured = training.measurement()
    assert measured is not None
    assert measured.samples_per_second is None


def test_a_step_limit_is_met_exactly() -> None:
    training = Training(bare, world_size=1, step_limit=23)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    hook = make_step_hook(training.notes, lambda *args: (training.step(args[0]), seen.append(training.steps)), bare)
    for _ in range(23):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        hook(optimizer, (), {})
    training.release()
    assert seen[-1] == 23


def test_two_optimizers_stay_settled_and_a_new_one_is_followed(training: Training) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    hook = make_step_hook(training.notes, lambda *args: training.step(args[0]), bare)

    def go(steps: int, *optimizers: Optimizer) -> None:
        for _ in range(steps):
            model(torch.randn(4, 8)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                hook(optimizer, (), {})

    go(40, first, second)
    assert training.notes.left > 0
    go(60, torch.optim.Adam(model.parameters()))
    training.conclude()
    assert 40 + 60 - 30 < training.steps < 100
