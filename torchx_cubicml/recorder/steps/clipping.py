"""Gradient clipping limits, read from calls of torch's own clipping functions, which most trainers use."""

from __future__ import annotations

import math
import sys
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.values import Value

_MODULES = ("torch.nn.utils", "torch.nn.utils.clip_grad")
_FSDP_METHOD = "clip_grad_norm_"
_WRAPPED_MARK = "__wrapped_by_torchx_cubicml__"
_LIMITS = {
    "clip_grad_norm_": ("max_norm", "max_grad_norm"),
    "clip_grads_with_norm_": ("max_norm", "max_grad_norm"),
    "clip_grad_value_": ("clip_value", "max_grad_value"),
}


class Clipping:
    """Gradient clipping limits of the latest calls.

    Args:
        guard: makes a hook harmless.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._facts: dict[str, Value] = {}

    def facts(self) -> dict[str, Value]:
        """Return ``max_grad_norm`` or ``max_grad_value``; empty if no call was seen (not proof of none)."""
        return dict(self._facts)

    def install(self) -> None:
        """Wrap torch's clipping functions, for all code that imports them from now on."""
        for name, (limit, fact) in _LIMITS.items():
            holders = [holder for module in _MODULES if (holder := sys.modules.get(module)) is not None]
            original = next((vars(holder)[name] for holder in holders if name in vars(holder)), None)
            if original is not None:
                self._wrap_in_modules(holders, name, original, self._guard(self._make_note(limit, fact)))

    def watch_fsdp(self) -> None:
        """Wrap the clipping method of FSDP1, if the program has imported FSDP1."""
        kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
        if not isinstance(kind, type):
            return
        original = vars(kind).get(_FSDP_METHOD)
        if original is not None and not hasattr(original, _WRAPPED_MARK):
            note = self._guard(self._make_note("max_norm", "max_grad_norm"))
            setattr(kind, _FSDP_METHOD, _wrapped(original, note))

    def _wrap_in_modules(
        self, holders: list[ModuleType], name: str, original: Callable[..., object], note: Callable[..., None]
    ) -> None:
        wrapper = _wrapped(original, note)
        for holder in holders:
            if vars(holder).get(name) is original:
                setattr(holder, name, wrapper)

    def _make_note(self, limit: str, fact: str) -> Callable[..., None]:
        def note(*args: object, **kwargs: object) -> None:
            value = kwargs.get(limit, args[1] if len(args) > 1 else None)
            if isinstance(value, int | float) and math.isfinite(value):  # an infinite limit only queries the norm
                self._facts[fact] = float(value)

        return note


def _wrapped(original: Callable[..., object], note: Callable[..., None]) -> Callable[..., object]:
    @wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(call, _WRAPPED_MARK, True)
    return call
