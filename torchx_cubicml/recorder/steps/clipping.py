"""Sees gradients being clipped: the calls of torch's own functions, which stand behind those of most trainers."""

from __future__ import annotations

import math
import sys
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.trial import Value

_MODULES = ("torch.nn.utils", "torch.nn.utils.clip_grad")
_OF_FSDP = "clip_grad_norm_"
_OURS = "__wrapped_by_torchx_cubicml__"
_LIMITS = {
    "clip_grad_norm_": ("max_norm", "max_grad_norm"),
    "clip_grads_with_norm_": ("max_norm", "max_grad_norm"),
    "clip_grad_value_": ("clip_value", "max_grad_value"),
}


class Clipping:
    """What the latest calls were told to clip to.

    Args:
        guard: for what may fail.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._facts: dict[str, Value] = {}

    def facts(self) -> dict[str, Value]:
        """Return ``max_grad_norm`` or ``max_grad_value``; empty where no call was seen, which is not to say none."""
        return dict(self._facts)

    def install(self) -> None:
        """Stand in the place of the functions, for whoever imports them from now on."""
        for name, (limit, fact) in _LIMITS.items():
            places = [place for module in _MODULES if (place := sys.modules.get(module)) is not None]
            original = next((vars(place)[name] for place in places if name in vars(place)), None)
            if original is not None:
                self._stand_in(places, name, original, self._guard(self._noting(limit, fact)))

    def watch_fsdp(self) -> None:
        """Stand in the place of FSDP1's own, where the program has imported that."""
        kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
        if not isinstance(kind, type):
            return
        original = vars(kind).get(_OF_FSDP)
        if original is not None and not hasattr(original, _OURS):
            note = self._guard(self._noting("max_norm", "max_grad_norm"))
            setattr(kind, _OF_FSDP, _wrapped(original, note))

    def _stand_in(
        self, places: list[ModuleType], name: str, original: Callable[..., object], note: Callable[..., None]
    ) -> None:
        wrapper = _wrapped(original, note)
        for place in places:
            if vars(place).get(name) is original:
                setattr(place, name, wrapper)

    def _noting(self, limit: str, fact: str) -> Callable[..., None]:
        def note(*args: object, **kwargs: object) -> None:
            value = kwargs.get(limit, args[1] if len(args) > 1 else None)
            if isinstance(value, int | float) and math.isfinite(value):  # without a limit only the norm is asked for
                self._facts[fact] = float(value)

        return note


def _wrapped(original: Callable[..., object], note: Callable[..., None]) -> Callable[..., object]:
    @wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(call, _OURS, True)
    return call
