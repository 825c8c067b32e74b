"""Sees evaluation where no hook is on the model: switches of its mode, and the first forward after one."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.layers import unwrap
from torchx_cubicml.recorder.module_hook import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from torchx_cubicml.recorder.module_hook import Guard
    from torchx_cubicml.recorder.pauses import Pauses


class EvaluationWatch:
    """Puts hooks on a model and its wrappers when they enter evaluation mode, and takes them off when training goes on.

    Args:
        pauses: to which evaluation goes.
        guard: for what may fail.
    """

    def __init__(self, pauses: Pauses, guard: Guard) -> None:
        self.may_hook = True  # a compiler may have compiled for a model with the hooks that it has
        self._pauses = pauses
        self._guard = guard
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
        if mode or followed is None or followed() is not module or self._let_go or not self.may_hook:
            return
        hook = _EvaluationHook(self._pauses, self.release, self._guard)
        for reference in self._followed.values():
            each = reference()
            if each is not None and each._compiled_call_impl is None:
                self._let_go.append(each.register_forward_pre_hook(hook, with_kwargs=True).remove)


class _EvaluationHook(ModuleHook):
    """Runs before each forward from a switch to evaluation mode to the next training forward."""

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
