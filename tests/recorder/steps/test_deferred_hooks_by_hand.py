"""The buffer of a settled training, entry by entry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.recorder.bare import Counter, bare
from torchx_cubicml.recorder.steps.deferred_hooks import (
    BufferedStep,
    DeferredForwardHook,
    StepBuffer,
    has_rate,
    make_step_hook,
)
from torchx_cubicml.recorder.steps.pauses import EVAL_MODE, NO_GRAD, Pause, Pauses


def optimizer(rate: object = 0.1) -> Any:
    return SimpleNamespace(param_groups=[{"lr": rate}, {"lr": 0.5}])


LEADING = optimizer()
INPUT = (torch.zeros(3, 2),)
SHAPE = torch.Size((3, 2))


@pytest.fixture
def notes() -> StepBuffer:
    pauses, clock = Pauses(bare), Counter()
    pauses.begin(clock)
    made = StepBuffer(pauses)
    made.open(lambda: LEADING, clock, strangers=0)
    made.left = 100
    return made


def test_a_new_buffer_notes_nothing() -> None:
    made, handed = StepBuffer(Pauses(bare)), []
    assert (made.left, made.is_between, made.is_watched, made.strangers, made.patience) == (0, True, True, 0, 0)
    assert (made.leading(), made.now(), made.is_within_step) == (None, None, False)
    make_step_hook(made, lambda *args: handed.append(args), bare)(LEADING, 1, 2)
    assert (handed, list(made.entries)) == ([(LEADING, 1, 2)], [])


def test_a_buffer_opens_anew(notes: StepBuffer) -> None:
    notes.end_step()
    notes.is_watched = notes.is_between = False
    notes.wait_on()
    pauses = notes.pauses
    pauses.note_alone()
    notes.open(lambda: None, lambda: 7.0, strangers=2)
    assert (list(notes.entries), notes.is_between, notes.is_watched, notes.strangers) == ([], True, True, 0)
    assert (notes.patience, notes.leading(), notes.now()) == (24, None, 7.0)
    pauses.evaluate(in_training_mode=False)
    pauses.train()
    assert [entry[0] for entry in notes.entries] == [EVAL_MODE]


def test_others_may_step_eight_times_as_often_as_usual(notes: StepBuffer) -> None:
    assert [notes.wait_on() for _ in range(9)] == [True] * 7 + [False] * 2
    assert not notes.is_between
    notes.end_step()
    assert (notes.strangers, notes.is_between) == (0, True)
    assert notes.wait_on()


def test_the_end_of_a_step_ends_what_was_no_pause(notes: StepBuffer) -> None:
    notes.pauses.evaluate(in_training_mode=True)
    notes.end_step()
    notes.pauses.train()
    assert list(notes.entries) == [(2.0,)]
    assert notes.pauses.steps == 1


def test_steps_are_told_apart_by_their_ends(notes: StepBuffer) -> None:
    first, second = Pause(EVAL_MODE, 0.1, 0.2), Pause(NO_GRAD, 0.3, 0.4)
    notes.entries.extend(
        [first, (1.0, (4,)), (None, None), second, (2.0,), (3.0,), (), (4.0,), (5.0, (6,)), (), (7.0,)]
    )
    assert list(notes.take()) == [
        BufferedStep(end=2.0, began=1.0, shapes=((4,), None), pauses=(first, second)),
        BufferedStep(end=3.0, began=None, shapes=()),
        BufferedStep(end=4.0, began=None, shapes=None),
        BufferedStep(end=7.0, began=5.0, shapes=((6,),)),
    ]
    assert not notes.entries


def test_what_follows_the_last_step_waits(notes: StepBuffer) -> None:
    pause = Pause(EVAL_MODE, 2.0, 3.0)
    notes.entries.extend([(1.0,), (), pause, (4.0, (5,))])
    assert notes.is_within_step
    assert len(list(notes.take())) == 1
    assert list(notes.entries) == [(), pause, (4.0, (5,))]
    notes.entries.append((6.0,))
    assert list(notes.take()) == [BufferedStep(end=6.0, began=4.0, shapes=((5,),), pauses=(pause,))]


def test_unwatched_steps_have_unknown_forwards(notes: StepBuffer) -> None:
    notes.is_watched = False
    notes.entries.extend([(1.0,), (2.0, (4,)), (3.0,)])
    assert [step.shapes for step in notes.take()] == [None, None]


def test_closing_hands_pauses_back(notes: StepBuffer) -> None:
    pause, pauses = Pause(EVAL_MODE, 2.0, 3.0), notes.pauses
    notes.entries.extend([(), (1.0, (4,)), pause, (4.0,)])
    notes.close()
    assert (notes.left, list(notes.entries), notes.is_within_step) == (0, [], False)
    assert pauses.take() == (pause,)
    pauses.evaluate(in_training_mode=False)
    pauses.train()
    assert (len(notes.entries), len(pauses.take())) == (0, 1)


def test_steps_are_counted_down_to_the_last_but_one(notes: StepBuffer) -> None:
    handed: list[object] = []
    hook = make_step_hook(notes, lambda *args: handed.append(args), bare)
    notes.left, notes.strangers, notes.is_between, notes.pauses.kind = 3, 5, False, NO_GRAD
    hook(LEADING, 1, 2)
    assert (notes.left, notes.strangers, notes.is_between, notes.pauses.kind) == (2, 0, True, "")
    hook(LEADING, 1, 2)
    assert (notes.left, notes.pauses.steps, list(notes.entries)) == (1, 2, [(1.0,), (2.0,)])
    assert not handed
    hook(LEADING, 1, 2)
    assert (notes.left, len(notes.entries), handed) == (1, 2, [(LEADING, 1, 2)])


@pytest.mark.parametrize("is_gone", [False, True])
def test_another_optimizer_is_handed_on_if_the_first_is_gone(is_gone: bool, notes: StepBuffer) -> None:
    handed: list[object] = []
    notes.leading = lambda: None if is_gone else LEADING
    make_step_hook(notes, lambda *args: handed.append(args[0]), bare)(other := optimizer(), (), {})
    assert handed == [other] * is_gone
    assert notes.strangers == (not is_gone)
    assert not notes.entries


@pytest.mark.parametrize(
    ("rate", "is_watched", "is_noted"),
    [(0.1, False, True), (0.0, False, False), (0.0, True, True), (torch.zeros(()), False, True), (0, False, True)],
)
def test_unwatched_steps_without_a_rate_are_looked_at(
    rate: object, is_watched: bool, is_noted: bool, notes: StepBuffer
) -> None:
    handed: list[object] = []
    leading = optimizer(rate)
    notes.leading, notes.is_watched = lambda: leading, is_watched
    make_step_hook(notes, lambda *args: handed.append(args[0]), bare)(leading, (), {})
    assert (len(notes.entries), len(handed)) == (is_noted, not is_noted)
    assert notes.left == 100 - is_noted
    assert has_rate(leading) is (is_noted and not (rate == 0.0 and isinstance(rate, float)))


def test_an_optimizer_without_groups_has_no_rate() -> None:
    assert not has_rate(SimpleNamespace(param_groups=[]))  # type: ignore[arg-type]
    assert has_rate(SimpleNamespace(param_groups=[{}]))  # type: ignore[arg-type]


def test_nothing_is_noted_while_a_compiler_looks(notes: StepBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[object] = []
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    make_step_hook(notes, lambda *args: handed.append(args), bare)(LEADING, (), {})
    DeferredForwardHook(notes, (0,), bare)(nn.Linear(2, 1), INPUT, {})
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    monkeypatch.setattr(torch._C, "_is_tracing", lambda: True)
    DeferredForwardHook(notes, (0,), bare)(nn.Linear(2, 1), INPUT, {})
    assert (list(notes.entries), handed) == ([], [])


def test_only_the_first_forward_of_a_step_is_timed(notes: StepBuffer) -> None:
    hook, model = DeferredForwardHook(notes, (0,), bare), nn.Linear(2, 1)
    for args in (INPUT, INPUT, (), (None,)):
        hook(model, args, {})
    assert list(notes.entries) == [(1.0, SHAPE), (None, SHAPE), (None, None), (None, None)]
    notes.is_between = True
    hook(model, (), {})
    assert notes.entries[-1] == (2.0, None)


def test_evaluation_ends_with_the_next_training_forward(notes: StepBuffer) -> None:
    model, hook = nn.Linear(2, 1), DeferredForwardHook(notes, (0,), bare)
    with torch.no_grad():
        hook(model, INPUT, {})
        hook(model.eval(), INPUT, {})  # of another kind
    hook(model.train(), INPUT, {})
    assert list(notes.entries) == [Pause(NO_GRAD, 1.0, 2.0), Pause(EVAL_MODE, 3.0, 4.0), (5.0, SHAPE)]


def test_the_mode_of_the_wrapped_module_counts(notes: StepBuffer) -> None:
    inner = nn.Linear(2, 1)
    outer = nn.Sequential(inner)
    outer.training = False
    hook = DeferredForwardHook(notes, (0,), bare, wrapped=inner)
    hook(outer, INPUT, {})
    assert list(notes.entries) == [(1.0, SHAPE)]
    inner.training, outer.training = False, True
    hook(outer, INPUT, {})
    hook(outer, INPUT, {})
    assert list(notes.entries)[1:] == [()]  # once for both
    notes.end_step()
    hook(outer, INPUT, {})
    assert notes.entries[-1] == ()
