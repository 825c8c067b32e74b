"""When hooks are put on a model to see its evaluation, and when they are taken off again."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import evaluation_passes
from torchx_cubicml.recorder.steps.evaluation_passes import EvaluationWatch, on_every_no_grad
from torchx_cubicml.recorder.steps.pauses import EVAL_MODE, NO_GRAD, Pauses

INPUT = torch.zeros(3, 2)


@pytest.fixture
def pauses() -> Pauses:
    made = Pauses(bare)
    made.begin(iter(range(10_000)).__next__)
    return made


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def watch(pauses: Pauses, model: nn.Module) -> EvaluationWatch:
    made = EvaluationWatch(pauses, bare)
    made.follow(model)
    return made


def place(number: int) -> Any:
    """Return what stands for one place in the program's code."""
    return SimpleNamespace(f_code=evaluation_passes, f_lasti=number)


def enter_at_step(watch: EvaluationWatch, pauses: Pauses, step: int, *numbers: int) -> None:
    pauses.steps = step
    for number in numbers:
        watch.on_no_grad(place(number))


def test_only_followed_modules_announce_evaluation(watch: EvaluationWatch, model: nn.Module) -> None:
    watch.switched(nn.Linear(2, 1), False)
    watch.switched(model, True)
    assert not model._forward_pre_hooks
    watch.switched(model, False)
    assert len(model._forward_pre_hooks) == 1
    watch.switched(model, False)
    assert len(model._forward_pre_hooks) == 1
    watch.release()
    assert not model._forward_pre_hooks
    watch.switched(model, False)
    watch.forget()
    assert not model._forward_pre_hooks
    watch.switched(model, False)
    assert not model._forward_pre_hooks


def test_a_module_that_is_gone_announces_nothing(watch: EvaluationWatch, pauses: Pauses) -> None:
    gone = nn.Linear(2, 1)
    watch.follow(gone)
    watch._modules[id(gone)] = lambda: None  # type: ignore[assignment]  # another module has its id now
    watch.switched(gone, False)
    assert not gone._forward_pre_hooks
    watch.on_no_grad(place(1))
    assert not gone._forward_pre_hooks


def test_evaluation_without_hooks_is_missed(watch: EvaluationWatch, model: nn.Module) -> None:
    assert (watch.may_hook, watch.has_missed) == (True, False)
    watch.switched(model, False)
    assert not watch.has_missed
    watch.may_hook = False
    watch.release()
    watch.switched(model, True)
    assert not watch.has_missed
    watch.switched(model, False)
    assert watch.has_missed
    assert not model._forward_pre_hooks
    watch.may_hook = True
    watch.switched(model, False)
    assert watch.has_missed


def test_compiled_modules_get_no_hook(watch: EvaluationWatch, model: nn.Module) -> None:
    other = nn.Linear(2, 1)
    watch.follow(other)
    model._compiled_call_impl = model.forward
    watch.switched(model, False)
    assert (len(model._forward_pre_hooks), len(other._forward_pre_hooks)) == (0, 1)


def test_hooks_are_put_on_by_the_thread_that_trains(watch: EvaluationWatch, model: nn.Module, pauses: Pauses) -> None:
    for call in (lambda: watch.switched(model, False), lambda: watch.on_no_grad(place(1))):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert not model._forward_pre_hooks
    assert pauses.is_usual


def test_a_forward_in_another_mode_is_a_pause(watch: EvaluationWatch, model: nn.Module, pauses: Pauses) -> None:
    watch.switched(model, False)
    with torch.no_grad():
        model(input=INPUT)  # by name
    assert (pauses.kind, len(model._forward_pre_hooks)) == (NO_GRAD, 1)
    model.eval()
    model(INPUT)
    assert (pauses.kind, len(model._forward_pre_hooks)) == (EVAL_MODE, 1)
    model.train()
    model(INPUT)
    assert (pauses.kind, len(model._forward_pre_hooks)) == ("", 0)


def test_places_of_the_step_before_are_usual(watch: EvaluationWatch, model: nn.Module, pauses: Pauses) -> None:
    enter_at_step(watch, pauses, 0, 1)
    assert (pauses.is_usual, len(model._forward_pre_hooks)) == (False, 1)
    watch.release()
    enter_at_step(watch, pauses, 1, 1, 1)
    assert (pauses.is_usual, len(model._forward_pre_hooks)) == (True, 0)
    enter_at_step(watch, pauses, 2, 1)
    assert pauses.is_usual
    enter_at_step(watch, pauses, 2, 2, 2)
    assert (pauses.is_usual, len(model._forward_pre_hooks)) == (False, 1)
    watch.release()
    enter_at_step(watch, pauses, 4, 1)  # the step before did not enter there
    assert not pauses.is_usual
    assert len(model._forward_pre_hooks) == 1


def test_an_early_step_is_not_usual(watch: EvaluationWatch, pauses: Pauses) -> None:
    for step in (0, 1):
        watch._last_entries.clear()
        enter_at_step(watch, pauses, step, 1)
        assert not pauses.is_usual


@pytest.mark.parametrize(
    ("steps", "stays"),
    [([20], False), ([20, 28], True), ([20, 29], False), ([0], False), ([20, 24, 24], True), ([20, 24, 40], False)],
)
def test_hooks_needed_every_few_steps_stay(
    steps: list[int], stays: bool, watch: EvaluationWatch, model: nn.Module, pauses: Pauses
) -> None:
    for number, step in enumerate(steps):
        enter_at_step(watch, pauses, step, number)
    model(INPUT)
    assert bool(model._forward_pre_hooks) is stays


@pytest.mark.parametrize(("after", "stays"), [(8, True), (9, False)])
def test_hooks_that_stay_leave_when_not_needed(
    after: int, stays: bool, watch: EvaluationWatch, model: nn.Module, pauses: Pauses
) -> None:
    enter_at_step(watch, pauses, 20, 1)
    enter_at_step(watch, pauses, 22, 2)
    pauses.steps = 22 + after
    model(INPUT)
    assert bool(model._forward_pre_hooks) is stays


def test_many_places_are_forgotten(watch: EvaluationWatch, pauses: Pauses) -> None:
    enter_at_step(watch, pauses, 5, *range(1000))
    assert len(watch._last_entries) == 1000
    enter_at_step(watch, pauses, 5, 1000)
    assert len(watch._last_entries) == 0


@pytest.mark.parametrize("manager", [torch.no_grad, torch.inference_mode])
def test_the_programs_own_frame_is_told(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (torch.no_grad, torch.inference_mode):
        for name in ("__enter__", "__exit__"):
            monkeypatch.setattr(each, name, getattr(each, name))
    frames: list[FrameType] = []
    on_every_no_grad(frames.append, bool)

    @torch.no_grad()
    def decorated() -> None:
        return

    def plain() -> None:
        with manager(), manager(), torch.no_grad():  # the outermost alone counts
            return

    def stacked() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(manager())

    for call in (plain, stacked, decorated):
        call()
    own = sys._getframe().f_code
    assert [frame.f_code for frame in frames] == [plain.__code__, stacked.__code__, own]
