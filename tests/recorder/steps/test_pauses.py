from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import nn

from tests.recorder.bare import Counter, bare
from torchx_cubicml.recorder.steps import checkpoint_calls
from torchx_cubicml.recorder.steps.checkpoint_calls import watch_checkpoints
from torchx_cubicml.recorder.steps.evaluation_passes import EvaluationWatch, on_every_mode_switch, on_every_no_grad
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, NO_GRAD, Pause, Pauses, paused_s

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def pauses() -> Pauses:
    made = Pauses(bare)
    made.now = Counter()
    return made


def seconds(pauses: Pauses) -> dict[str, float]:
    return paused_s(pauses.take(), lambda begin, end: end - begin)


def test_evaluation_lasts_until_the_end_of_its_last_forward(pauses: Pauses) -> None:
    for _ in range(2):
        pauses.evaluate(in_training_mode=False)  # at 1
        pauses.evaluated()  # at 2 and 3
    pauses.left_evaluation()
    pauses.saving(lambda: None)  # from 4 to 5
    pauses.train()
    assert pauses.take() == (Pause(CHECKPOINT, 4.0, 5.0), Pause(EVAL_MODE, 1.0, 3.0))


@pytest.mark.parametrize("is_unusual", [True, False])
def test_a_block_without_gradients_holds_its_evaluation(pauses: Pauses, is_unusual: bool) -> None:
    if is_unusual:
        pauses.enter()  # at 1
    pauses.evaluate(in_training_mode=False)
    pauses.evaluated()  # at 2
    pauses.leave()  # at 3
    pauses.leave()
    pauses.train()
    assert pauses.take() == (Pause(EVAL_MODE, 1.0, 3.0 if is_unusual else 2.0),)


def test_a_save_before_the_first_forward_of_a_block_counts_once(pauses: Pauses) -> None:
    pauses.enter()  # at 1
    pauses.saving(lambda: None)  # from 2 to 3
    pauses.evaluate(in_training_mode=False)
    pauses.leave()  # at 4
    pauses.train()
    found = seconds(pauses)
    assert (found["eval_mode_s"], found["checkpoint_s"]) == (2.0, 1.0)


def test_the_begin_of_a_block_serves_one_evaluation_of_its_step(pauses: Pauses) -> None:
    pauses.enter()  # at 1
    for _ in range(2):  # with a training forward between them, as in test-time training
        pauses.evaluate(in_training_mode=False)  # the second one at 3
        pauses.evaluated()  # at 2 and 4
        pauses.train()
    pauses.leave()
    assert pauses.take() == (Pause(EVAL_MODE, 1.0, 2.0), Pause(EVAL_MODE, 3.0, 4.0))
    pauses.enter()  # at 5
    pauses.drop()
    pauses.evaluate(in_training_mode=False)  # at 6
    pauses.leave()  # at 7
    pauses.train()
    assert pauses.take() == (Pause(EVAL_MODE, 6.0, 7.0),)


def test_a_moment_that_cannot_be_taken_is_none_of_a_pause(pauses: Pauses) -> None:
    pauses.evaluate(in_training_mode=False)  # at 1
    now, pauses.now = pauses.now, lambda: None  # as while a graph is captured
    pauses.enter()
    pauses.evaluated()
    pauses.now = now
    pauses.left_evaluation()  # at 2
    pauses.train()
    assert pauses.take() == (Pause(EVAL_MODE, 1.0, 2.0),)


def test_a_block_behind_an_evaluation_is_no_part_of_it(pauses: Pauses) -> None:
    pauses.evaluate(in_training_mode=False)  # at 1
    pauses.evaluated()  # at 2
    pauses.enter()
    pauses.leave()
    pauses.train()
    assert pauses.take() == (Pause(EVAL_MODE, 1.0, 2.0),)


def test_without_an_end_a_switch_of_mode_ends_evaluation_or_else_a_training_forward(pauses: Pauses) -> None:
    for ends in ([pauses.left_evaluation], []):
        pauses.evaluate(in_training_mode=False)
        for end in (*ends, pauses.now, pauses.train):
            end()
    assert [pause.end - pause.begin for pause in pauses.take()] == [1.0, 2.0]


def test_evaluation_is_one_pause_until_the_next_training_forward(pauses: Pauses) -> None:
    pauses.evaluate(in_training_mode=False)
    pauses.evaluate(in_training_mode=False)
    pauses.train()
    pauses.train()
    assert pauses.take() == (Pause(EVAL_MODE, 1.0, 2.0),)
    assert pauses.take() == ()


def test_a_passage_of_another_kind_ends_the_one_before(pauses: Pauses) -> None:
    pauses.evaluate(in_training_mode=True)
    pauses.evaluate(in_training_mode=False)
    pauses.train()
    assert [pause.kind for pause in pauses.take()] == [NO_GRAD, EVAL_MODE]


def test_a_passage_ended_by_a_step_is_part_of_it(pauses: Pauses) -> None:
    pauses.evaluate(in_training_mode=True)
    pauses.drop()
    pauses.train()
    assert pauses.take() == ()


def test_saving_within_evaluation_counts_once(pauses: Pauses) -> None:
    pauses.evaluate(in_training_mode=False)  # at 1
    assert pauses.saving(lambda: pauses.saving(lambda: "saved")) == "saved"  # from 2 to 3
    pauses.train()  # at 4
    assert seconds(pauses) == {
        "eval_mode_s": 2.0,
        "eval_mode_steps": True,
        "no_grad_s": 0.0,
        "no_grad_steps": False,
        "checkpoint_s": 1.0,
    }


def test_pauses_count_after_the_first_step_of_this_thread() -> None:
    early = Pauses(bare)
    early.evaluate(in_training_mode=False)
    assert early.saving(lambda: 3) == 3
    early.now = Counter()
    thread = threading.Thread(target=lambda: early.saving(lambda: None))
    thread.start()
    thread.join()
    assert early.take() == ()


def test_a_save_that_fails_is_noted_and_fails(pauses: Pauses) -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        pauses.saving(fail)
    assert [pause.kind for pause in pauses.take()] == [CHECKPOINT]


def test_a_clock_that_fails_fails_no_save() -> None:
    def quiet(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object) -> None:
            with contextlib.suppress(RuntimeError):
                hook(*args)

        return call

    def broken() -> float:
        raise RuntimeError("device lost")

    pauses = Pauses(quiet)
    pauses.now = broken
    assert pauses.saving(lambda: "saved") == "saved"


def test_host_time_of_pauses_is_summed_between_moments(pauses: Pauses) -> None:
    began = time.perf_counter()
    pauses.evaluate(in_training_mode=False)
    pauses.saving(lambda: time.sleep(0.01))
    pauses.train()
    ended = time.perf_counter()
    both = pauses.host_seconds(frozenset({EVAL_MODE, CHECKPOINT}))
    assert 0.01 <= both(began, ended) <= ended - began
    assert both(began, ended) == pytest.approx(both(began - 9, ended + 9))
    assert both(ended, ended + 9) == 0.0
    assert pauses.host_seconds(frozenset({NO_GRAD}))(began, ended) == 0.0


class TestEvaluationWatch:
    @pytest.fixture
    def watched(self, pauses: Pauses) -> tuple[EvaluationWatch, nn.Module, nn.Module]:
        inner = nn.Linear(2, 1)
        outer = nn.Sequential(inner)
        watch = EvaluationWatch(pauses, bare)
        watch.follow(outer)
        watch.follow(inner)
        return watch, outer, inner

    def test_hooks_last_until_the_next_training_forward(
        self, watched: tuple[EvaluationWatch, nn.Module, nn.Module], pauses: Pauses
    ) -> None:
        watch, outer, inner = watched
        inner.eval()
        watch.switched(inner, False)
        assert inner._forward_pre_hooks
        inner(torch.zeros(3, 2))
        pauses.now()
        inner.train()
        watch.switched(inner, True)
        assert pauses.kind == EVAL_MODE
        outer(torch.zeros(3, 2))
        assert not inner._forward_pre_hooks
        assert not outer._forward_pre_hooks
        assert not inner._forward_hooks
        assert pauses.take() == (Pause(EVAL_MODE, 1.0, 2.0),)

    def test_other_modules_and_compiled_ones_get_no_hooks(
        self, watched: tuple[EvaluationWatch, nn.Module, nn.Module]
    ) -> None:
        watch, outer, inner = watched
        watch.switched(nn.Linear(2, 1), False)
        watch.may_hook = False
        watch.switched(outer, False)
        assert not outer._forward_pre_hooks
        assert not inner._forward_pre_hooks

    def test_a_switch_back_ends_what_no_hook_sees(
        self, watched: tuple[EvaluationWatch, nn.Module, nn.Module], pauses: Pauses
    ) -> None:
        watch, outer, _ = watched
        watch.may_hook = False
        pauses.evaluate(in_training_mode=False)  # at 1
        watch.switched(outer, True)  # at 2
        pauses.now()
        pauses.train()
        assert pauses.take() == (Pause(EVAL_MODE, 1.0, 2.0),)

    def test_a_forward_that_nothing_announced_is_seen_to_end(
        self, watched: tuple[EvaluationWatch, nn.Module, nn.Module], pauses: Pauses
    ) -> None:
        watch, outer, inner = watched
        pauses.evaluate(in_training_mode=False)  # as a hook of the settled training does
        assert outer._forward_hooks
        assert inner._forward_hooks
        watch.release()
        assert not outer._forward_hooks

    def test_every_switch_is_seen_and_unchanged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nn.Module, "train", nn.Module.train)
        heard: list[tuple[str, object]] = []
        on_every_mode_switch(lambda module, mode: heard.append((type(module).__name__, mode)))
        model = nn.Sequential(nn.Linear(2, 1))
        assert model.eval() is model
        assert model.train(mode=True) is model
        assert heard == [("Linear", False), ("Sequential", False), ("Linear", True), ("Sequential", True)]
        assert model[0].training
        assert nn.Module.train.__name__ == "train"


class TestNoGrad:
    @pytest.fixture
    def model(self, pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
        for manager in (torch.no_grad, torch.inference_mode):
            for name in ("__enter__", "__exit__"):
                monkeypatch.setattr(manager, name, getattr(manager, name))
        model = nn.Linear(2, 1)
        watch = EvaluationWatch(pauses, bare)
        watch.follow(model)
        on_every_no_grad(watch.on_no_grad, watch.on_grad)
        return model

    def train(self, pauses: Pauses, model: nn.Module, *, steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(1, 2))
            with torch.no_grad():  # as where gradients are clipped
                pass
            pauses.drop()

    @pytest.mark.parametrize("steps", [2, 10])
    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_a_forward_is_evaluation_where_steps_do_not_enter(
        self, pauses: Pauses, model: nn.Module, context: Callable[[], Any], steps: int
    ) -> None:
        for _ in range(3):
            self.train(pauses, model, steps=steps)
            with context():
                assert not pauses.kind
                model(torch.ones(1, 2))
            assert pauses.kind == EVAL_MODE
        self.train(pauses, model, steps=1)
        assert [pause.kind for pause in pauses.take()] == [EVAL_MODE] * 3
        assert bool(model._forward_pre_hooks) == (steps == 2)  # needed every other step, they stay for some
        self.train(pauses, model, steps=10)
        assert not model._forward_pre_hooks

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_evaluation_lasts_from_the_entry_to_the_exit(
        self, pauses: Pauses, model: nn.Module, context: Callable[[], Any]
    ) -> None:
        self.train(pauses, model, steps=3)
        tick = pauses.now
        assert tick is not None
        before = cast("float", tick())
        with contextlib.suppress(ValueError), context():
            tick()  # a loader is opened
            model(torch.ones(1, 2))
            tick()
            raise ValueError
        tick()
        model(torch.ones(1, 2))
        (pause,) = pauses.take()
        assert (pause.begin, pause.end) == (before + 1, before + 5)  # the forward itself ended at 4

    def test_contexts_are_known_by_their_callers(self, pauses: Pauses, model: nn.Module) -> None:
        @torch.no_grad()
        def clip() -> None:
            pass

        @torch.no_grad()
        def evaluate() -> None:
            model(torch.ones(1, 2))

        def evaluate_in_stack() -> None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                model(torch.ones(1, 2))

        def step_in_stack() -> None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.no_grad())

        for evaluation in (evaluate, evaluate_in_stack):
            for _ in range(20):
                self.train(pauses, model, steps=1)
                clip()
                step_in_stack()
            assert not model._forward_pre_hooks
            evaluation()
            assert pauses.kind == EVAL_MODE

    @pytest.mark.parametrize("enters_itself", [False, True])
    def test_steps_may_enter_without_being_evaluation(
        self, pauses: Pauses, model: nn.Module, enters_itself: bool
    ) -> None:
        batch = torch.ones(1, 2)
        if enters_itself:  # as rotary embeddings do
            model.register_forward_hook(lambda *_: doubled_without_gradients(batch).squeeze())

        def train_on_own_targets(steps: int) -> None:
            for _ in range(steps):
                with torch.no_grad():
                    model(batch)
                pauses.evaluate(in_training_mode=True)  # as hooks say it where they watch each step
                pauses.train()
                model(batch)
                pauses.drop()

        train_on_own_targets(10)
        pauses.take()
        with torch.no_grad():
            for _ in range(3):
                model(batch)
        assert pauses.kind == EVAL_MODE
        for _ in range(3):
            with torch.no_grad():  # entered again by each batch of one evaluation
                model(batch)
        assert pauses.kind == EVAL_MODE
        train_on_own_targets(2)
        assert [pause.kind for pause in pauses.take()] == [EVAL_MODE, NO_GRAD, NO_GRAD]

    def test_where_steps_enter_no_hook_is_put_on_the_model(self, pauses: Pauses, model: nn.Module) -> None:
        self.train(pauses, model, steps=2)
        for _ in range(50):
            self.train(pauses, model, steps=1)
            assert not model._forward_pre_hooks

    def test_other_threads_do_not_count(self, pauses: Pauses, model: nn.Module) -> None:
        self.train(pauses, model, steps=2)
        thread = threading.Thread(target=lambda: torch.no_grad().__enter__())
        thread.start()
        thread.join()
        assert not model._forward_pre_hooks

    def test_contexts_and_decorators_are_unchanged(self, model: nn.Module) -> None:
        @torch.no_grad()
        def evaluate(x: torch.Tensor) -> torch.Tensor:
            return cast("torch.Tensor", model(x))

        def within(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return x * 2

        x = torch.ones(1, 2, requires_grad=True)
        assert not evaluate(x).requires_grad
        assert torch.is_grad_enabled()
        assert not torch.compile(within, backend="eager", fullgraph=True)(x).requires_grad
        with torch.inference_mode():
            assert (x * 2).is_inference()
        assert torch.no_grad.__enter__.__name__ == "__enter__"

    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
    def test_scripts_are_compiled_as_ever(self, model: nn.Module) -> None:
        del model  # beside which no_grad is watched
        x = torch.ones(1, 2, requires_grad=True)
        assert not torch.jit.script(doubled_without_gradients)(x).requires_grad


def doubled_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


def test_torch_save_is_timed_and_unchanged(monkeypatch: pytest.MonkeyPatch, pauses: Pauses) -> None:
    for module in (torch, torch.serialization):
        monkeypatch.setattr(module, "save", torch.save)
    watch_checkpoints(pauses.saving, lambda load: load(), bare)
    torch.save({"a": 1}, os.devnull)
    assert [pause.kind for pause in pauses.take()] == [CHECKPOINT]
    assert torch.save is torch.serialization.save
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save


def test_a_trainers_method_is_timed_once_it_is_imported(monkeypatch: pytest.MonkeyPatch, pauses: Pauses) -> None:
    class Trainer:
        def save_model(self, where: str) -> str:
            return where

    module = ModuleType("trainer_of_this_test")
    module.Trainer = Trainer
    monkeypatch.setattr(
        checkpoint_calls, "_FUNCTIONS", {module.__name__: ("Trainer.save_model", "Trainer.gone", "Gone.save")}
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    watch_checkpoints(pauses.saving, lambda load: load(), bare)
    assert Trainer().save_model("here") == "here"
    assert len(pauses.take()) == 1
