"""Evaluation detection without permanent hooks: by switches of the model's mode and by entries into ``no_grad``.

A training also enters ``no_grad`` within its steps, for example to clip gradients. An entry from a code location that
the preceding step did not use may begin evaluation. Only then are hooks put on the model, to inspect the next forward.
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


_MAX_LOCATIONS = 1000  # code locations remembered
_FREQUENT = 8  # steps: hooks needed again within so few stay, as putting them on costs more than running them


class EvaluationWatch:
    """Hooks on a model and its wrappers from when evaluation may begin until training resumes.

    Args:
        pauses: recorder of evaluation.
        guard: makes a hook harmless.
    """

    def __init__(self, pauses: Pauses, guard: Guard) -> None:
        self.may_hook = True  # false after a compilation: the model may be compiled for the hooks that it has
        self.has_missed = False  # a mode switch announced evaluation while hooks were not allowed
        self._pauses = pauses
        self._guard = guard
        self._attach_guarded = pauses.on_begin = guard(self._attach_hooks)
        self._note_entry, self.on_grad = guard(pauses.enter), guard(pauses.leave)
        self._last_entries: dict[tuple[int, int], tuple[int, bool]] = {}  # code location -> last step, was it usual
        self._needed_at, self._needed_after = (
            -2 * _FREQUENT,
            2 * _FREQUENT,
        )  # last step that may evaluate, and its distance
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        self._removers: list[Callable[[], None]] = []

    def follow(self, module: nn.Module) -> None:
        """Follow ``module``: the model or one of its wrappers."""
        self._modules[id(module)] = weakref.ref(module)

    def forget(self) -> None:
        """Stop following all modules."""
        self.release()
        self._modules.clear()

    def release(self) -> None:
        """Remove all hooks."""
        while self._removers:
            self._removers.pop()()

    def switched(self, module: nn.Module, mode: object) -> None:
        """Note that the mode of a module was set; ``True`` is training mode."""
        known = self._modules.get(id(module))
        if known is None or known() is not module:
            return
        if mode:
            self._pauses.left_evaluation()
            return
        self.has_missed = self.has_missed or not self.may_hook
        self._attach_hooks()

    def on_no_grad(self, frame: FrameType) -> None:
        """Note that the code at ``frame`` entered ``no_grad``. Never raises."""
        if not self._pauses.is_in_its_thread:
            return
        step, location = self._pauses.steps, (id(frame.f_code), frame.f_lasti)
        last_step, was_usual = self._last_entries.get(location, (-2, False))
        is_usual = was_usual if last_step == step else last_step == step - 1
        self._last_entries[location] = step, is_usual
        self._pauses.is_usual = is_usual
        if not is_usual:
            self._note_entry()
            if len(self._last_entries) > _MAX_LOCATIONS:
                self._last_entries.clear()
            if step != self._needed_at:
                self._needed_at, self._needed_after = step, step - self._needed_at
            self._attach_guarded()

    def _note_end(self, _module: nn.Module, _args: object, _output: object) -> None:
        self._pauses.evaluated()

    def _resume(self) -> None:
        """Note a training forward: remove the hooks, unless they are needed every few steps."""
        if max(self._needed_after, self._pauses.steps - self._needed_at) > _FREQUENT:
            self.release()

    def _attach_hooks(self) -> None:
        if self._removers or not self._modules or not self.may_hook or not self._pauses.is_in_its_thread:
            return
        hook = _EvaluationHook(self._pauses, self._resume, self._guard)
        after = ModuleHook(self._guard(self._note_end))
        for reference in self._modules.values():
            each = reference()
            if each is not None and each._compiled_call_impl is None:
                self._removers.append(each.register_forward_pre_hook(hook).remove)
                self._removers.append(each.register_forward_hook(after).remove)


class _EvaluationHook(ModuleHook):
    """Forward pre-hook from the possible start of evaluation to the next training forward."""

    __slots__ = ("_is_grad_enabled", "_pauses", "_resume")

    def __init__(self, pauses: Pauses, resume: Callable[[], None], guard: Guard) -> None:
        from torch import is_grad_enabled

        super().__init__(guard(self._note))
        self._pauses, self._resume = pauses, resume
        self._is_grad_enabled = is_grad_enabled

    def _note(self, module: nn.Module, args: Sequence[object], other: object) -> None:
        in_training_mode = unwrap(module).training
        if in_training_mode and self._is_grad_enabled():
            self._resume()
            self._pauses.train()
        else:
            self._pauses.evaluate(in_training_mode=in_training_mode)


def on_every_mode_switch(call: Callable[[object, object], None]) -> None:
    """Run ``call(module, mode)``, which must not raise, after each switch of any module's mode."""
    from torch.nn import Module

    original = Module.train

    @wraps(original)
    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        switched = original(self, mode)
        call(self, mode)
        return switched

    Module.train = train  # type: ignore[assignment, method-assign]  # replaces the original


def on_every_no_grad(call: Callable[[FrameType], object], leave: Callable[[], object]) -> None:
    """Run ``call(frame)`` after entries into ``torch.no_grad`` or ``inference_mode``, ``leave()`` after their ends.

    Neither may raise. Entries while gradients are already off do not count. ``frame`` is that of the program: frames of
    ``ExitStack`` and of decorators are skipped.
    """
    from torch import inference_mode, no_grad

    skipped_files = {each.__code__.co_filename for each in (contextlib.ExitStack.enter_context, no_grad.__call__)}
    for manager in (no_grad, inference_mode):
        _wrap_manager(manager, call, leave, skipped_files)


def _wrap_manager(
    manager: type, call: Callable[[FrameType], object], leave: Callable[[], object], skipped_files: set[str]
) -> None:
    from torch import is_grad_enabled

    original, original_exit = manager.__enter__, manager.__exit__  # type: ignore[attr-defined]

    @wraps(original)
    def enter(self: object) -> None:
        is_outermost = is_grad_enabled()
        original(self)
        if not is_outermost:  # nested, as in a layer of the model: the outermost entry counts
            return
        frame = sys._getframe(1)
        while frame.f_code.co_filename in skipped_files and frame.f_back is not None:
            frame = frame.f_back
        call(frame)

    @wraps(original_exit)
    def exit_(self: object, *error: object) -> None:
        original_exit(self, *error)
        if is_grad_enabled():
            leave()

    manager.__enter__, manager.__exit__ = enter, exit_  # type: ignore[attr-defined]  # in place of the originals
