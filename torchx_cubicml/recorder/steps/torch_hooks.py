"""Waits for the program to import torch, and hooks into its optimizers then: the recorder itself never imports it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from torch.utils.hooks import RemovableHandle


def once_torch_is_imported(call: Callable[[], None]) -> None:
    """Run ``call``, which must not raise, when the program has imported torch; at once where it is loaded already."""
    once_imported("torch", call)


def once_imported(name: str, call: Callable[[], None]) -> None:
    """Run ``call``, which must not raise, when a module was imported; at once where it is loaded already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _TorchFinder(name, call))


def on_every_step(hook: Callable[..., None]) -> RemovableHandle:
    """Run ``hook(optimizer, args, kwargs)`` after each step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(hook)


# Neither class has its abstract base: importlib.abc alone would cost every launch 10 ms.
class _TorchFinder:
    """Finds a module where it always was, and leaves word with its loader; it is gone once that was asked for."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _TellingLoader(spec.loader, self._call)  # type: ignore[assignment]  # as above
        return spec


class _TellingLoader:
    """Loads as the loader within does, which takes its place again before the module runs."""

    def __init__(self, within: Loader, call: Callable[[], None]) -> None:
        self._within = within
        self._call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._within.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._within
        if module.__spec__ is not None:
            module.__spec__.loader = self._within
        self._within.exec_module(module)
        self._call()
