"""Sees evaluation where no hook is on the model: by switches of its mode, and by entries into ``no_grad``.

A training enters ``no_grad`` within its steps, too, as where gradients are clipped. An entry from a line of the program
that the step before did not come by may begin evaluation. Hooks are put on the model then: the next forward tells.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from functools import wraps
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import unwrap
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from torch import nn

    from torchx_cubicml.recorder.steps.pauses import Pauses
    from torchx_cubicml.recorder.steps.torch_hooks import Guard


_MOST_PLACES = 1000  # that are remembered


class EvaluationWatch:
    """Puts hooks on a model and its wrappers when evaluation may begin, and takes them off when training goes on.

    Args:
        pauses: to which evaluation goes.
        guard: for what may fail.
    """

    def __init__(self, pauses: Pauses, guard: Guard) -> None:
        self.may_hook = True  # a compiler may have compiled for a model with the hooks that it has
        self.has_missed = False  # evaluation that a switch of mode announced
        self._pauses = pauses
        self._guard = guard
        self._expect_guarded = guard(self._expect)
        self._entered: dict[tuple[int, int], tuple[int, bool]] = {}  # place in the program -> last step, was it usual
        self._followed: dict[int, weakref.ref[nn.Module]] = {}
        self._let_go: list[Callable[[], None]] = []

    def follow(self, module: nn.Module) -> None:
        """Take ``module`` for the model, or for one around it."""
        self._followed[id(module)] = weakref.ref(module)

    def forget(self) -> None:
        """Follow no module any more."""
        self.release()
        self._followed.clear()

    def release(self) -> None:
        """Take every hook away."""
        while self._let_go:
            self._let_go.pop()()

    def switched(self, module: nn.Module, mode: object) -> None:
        """Note that the mode of any module was set: ``True`` is training."""
        followed = self._followed.get(id(module))
        if not mode and followed is not None and followed() is module:
            self.has_missed = self.has_missed or not self.may_hook
            self._expect()

    def entered_no_grad(self, frame: FrameType) -> None:
        """Note that code at the place where ``frame`` is entered ``no_grad``; it never raises."""
        if not self._pauses.is_in_its_thread:
            return
        step, place = self._pauses.steps, (id(frame.f_code), frame.f_lasti)
        before, was_usual = self._entered.get(place, (-2, False))
        is_usual = was_usual if before == step else before == step - 1
        self._entered[place] = step, is_usual
        self._pauses.is_usual = is_usual
        if not is_usual:
            if len(self._entered) > _MOST_PLACES:
                self._entered.clear()
            self._expect_guarded()

    def _expect(self) -> None:
        if self._let_go or not self._followed or not self.may_hook or not self._pauses.is_in_its_thread:
            return
        hook = _EvaluationHook(self._pauses, self.release, self._guard)
        for reference in self._followed.values():
            each = reference()
            if each is not None and each._compiled_call_impl is None:
                self._let_go.append(each.register_forward_pre_hook(hook, with_kwargs=True).remove)


class _EvaluationHook(ModuleHook):
    """Runs before each forward from where evaluation may begin to the next training forward."""

    __slots__ = ("_is_grad_enabled", "_pauses", "_release")

    def __init__(self, pauses: Pauses, release: Callable[[], None], guard: Guard) -> None:
        from torch import is_grad_enabled

        super().__init__(guard(self._note))
        self._pauses, self._release = pauses, release
        self._is_grad_enabled = is_grad_enabled

    def _note(self, module: nn.Module, args: Sequence[object], other: object) -> None:
        in_training_mode = unwrap(module).training
        if in_training_mode and self._is_grad_enabled():
            self._release()
            self._pauses.train()
        else:
            self._pauses.evaluate(in_training_mode=in_training_mode)


def on_every_mode_switch(call: Callable[[object, object], None]) -> None:
    """Run ``call(module, mode)``, which must not raise, after each switch of any module between modes."""
    from torch.nn import Module

    original = Module.train

    @wraps(original)
    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        switched = original(self, mode)
        call(self, mode)
        return switched

    Module.train = train  # type: ignore[assignment, method-assign]  # in its own place


def on_every_no_grad(call: Callable[[FrameType], object]) -> None:
    """Run ``call(frame)``, which must not raise, after each entry into ``torch.no_grad`` or ``torch.inference_mode``.

    Entries where gradients are off already do not count.

    ``frame`` is that of the program, not of what calls a decorated function or enters several contexts for it.
    """
    from torch import inference_mode, no_grad

    between = {each.__code__.co_filename for each in (contextlib.ExitStack.enter_context, no_grad.__call__)}
    for manager in (no_grad, inference_mode):
        _call_after_entry(manager, call, between)


def _call_after_entry(manager: type, call: Callable[[FrameType], object], between: set[str]) -> None:
    from torch import is_grad_enabled

    original = manager.__enter__  # type: ignore[attr-defined]

    @wraps(original)
    def enter(self: object) -> None:
        is_outermost = is_grad_enabled()
        original(self)
        if not is_outermost:  # as in a layer of the model, which is evaluated by whoever entered first
            return
        frame = sys._getframe(1)
        while frame.f_code.co_filename in between and frame.f_back is not None:
            frame = frame.f_back
        call(frame)

    manager.__enter__ = enter  # type: ignore[attr-defined]  # in its own place
