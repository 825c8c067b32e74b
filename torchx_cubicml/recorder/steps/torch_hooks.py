"""Hooks on torch: optimizer steps, module forwards, imports, and compiled or scripted models."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from torch import nn
    from torch.utils.hooks import RemovableHandle


def hide_hooks_from_torchscript() -> None:
    """Hide our hooks from TorchScript compilation, if this torch has the function that collects hooks."""
    place = sys.modules.get("torch.jit._recursive")
    original = getattr(place, "get_hook_stubs", None)
    if original is None:
        return

    @wraps(original)
    def get_hook_stubs(nn_module: nn.Module) -> object:
        with _hooks_hidden(nn_module):
            return original(nn_module)

    place.get_hook_stubs = get_hook_stubs  # type: ignore[union-attr]  # the module was found above


@contextmanager
def _hooks_hidden(module: nn.Module) -> Iterator[None]:
    places = [vars(module).get(name) for name in ("_forward_hooks", "_forward_pre_hooks")]
    kept = [(place, dict(place)) for place in places if place is not None]
    for place, hooks in kept:
        for key, hook in hooks.items():
            if isinstance(hook, ModuleHook):
                del place[key]
    try:
        yield
    finally:
        for place, hooks in kept:
            place.clear()
            place.update(hooks)


class Guard(Protocol):
    """Wrapper that makes a hook harmless: an error is reported once and ends the recording, never the training."""

    def __call__(self, hook: Callable[..., object]) -> Callable[..., None]:
        """Return ``hook`` such that it never raises and returns nothing."""


class ModuleHook:
    """Forward hook that is dropped from pickled or copied modules, so that no other process needs this package.

    Args:
        call: function to run; it must not raise.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, module: nn.Module, args: Sequence[object], other: object = None) -> Any:
        """Report one forward; ``other`` is its keyword arguments in a pre-hook, and its output in a post-hook.

        What the call returns, if anything, replaces the output, as torch has it. A hook that another hook has just
        removed is called once more, without its last argument.
        """
        return self._call(module, args, other)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Reduce to a no-op of the standard library that takes the same arguments."""
        return getattr, (nullcontext(), "__exit__")


def make_tracing_test() -> Callable[[], bool]:
    """Return a test for a running compiler, exporter or tracer, during which our hooks do nothing."""
    from torch import compiler

    is_compiling, is_tracing = compiler.is_compiling, tracing_test()

    def is_looked_at() -> bool:
        return is_compiling() or is_tracing()  # in this order: a compiler does not trace the second

    return is_looked_at


def tracing_test() -> Callable[[], bool]:
    """Return torch's own test for ``torch.jit.trace``; if this torch has none, one that is always false."""
    from torch import _C

    test: Callable[[], bool] = getattr(_C, "_is_tracing", bool)
    return test


def once_torch_is_imported(call: Callable[[], None]) -> None:
    """Run ``call``, which must not raise, once torch is imported; at once if it is already."""
    once_imported("torch", call)


def once_imported(name: str, call: Callable[[], None]) -> None:
    """Run ``call``, which must not raise, once a module is imported; at once if it is already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _CallbackFinder(name, call))


def on_every_step(hook: Callable[..., None]) -> RemovableHandle:
    """Run ``hook(optimizer, args, kwargs)`` after each step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(hook)


# Neither class derives from its abstract base: importing importlib.abc would cost every launch 10 ms.
class _CallbackFinder:
    """Meta path finder that wraps one module's loader; it stays until the module is imported: others may only ask."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)  # for this search
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, self._imported)  # type: ignore[assignment]  # as above
        return spec

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._call()


class _CallbackLoader:
    """Loader that calls back after the import; the original loader is restored before the module runs."""

    def __init__(self, original: Loader, call: Callable[[], None]) -> None:
        self._original = original
        self._call = call

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._call()
