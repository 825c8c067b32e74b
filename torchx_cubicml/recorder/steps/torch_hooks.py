"""Hooks on torch: optimizers, modules and compiled or scripted models."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from torch import nn
    from torch.utils.hooks import RemovableHandle


def keep_out_of_scripts() -> None:
    """Let scripts be compiled from modules as if they had no hooks of ours; a torch without that place stays as is."""
    place = sys.modules.get("torch.jit._recursive")
    original = getattr(place, "get_hook_stubs", None)
    if original is None:
        return

    @wraps(original)
    def get_hook_stubs(nn_module: nn.Module) -> object:
        with _without_ours(nn_module):
            return original(nn_module)

    place.get_hook_stubs = get_hook_stubs  # type: ignore[union-attr]  # it was just found there


@contextmanager
def _without_ours(module: nn.Module) -> Iterator[None]:
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
    """Makes a hook harmless: what it raises is told once and ends the recording, never the training."""

    def __call__(self, hook: Callable[..., object]) -> Callable[..., None]:
        """Return ``hook`` such that it never raises and returns nothing."""


class ModuleHook:
    """A hook around a forward that a pickled or copied module leaves behind, and that no other process must import.

    Args:
        tell: what it does; it must not raise.
    """

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell

    def __call__(self, module: nn.Module, args: Sequence[object], other: object = None) -> None:
        """Tell of one forward, with its keyword arguments before it and its output after it.

        A hook that another one has just taken off is called once more, without its last argument.
        """
        self._tell(module, args, other)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Stand as something of the standard library that takes the same arguments and does nothing."""
        return getattr, (nullcontext(), "__exit__")


def make_lookout() -> Callable[[], bool]:
    """Return what tells whether a compiler, an exporter or a tracer is looking on: our hooks do nothing then."""
    from torch import compiler

    is_compiling, is_tracing = compiler.is_compiling, tracing_test()

    def is_looked_at() -> bool:
        return is_compiling() or is_tracing()  # in this order: a compiler does not look into the second

    return is_looked_at


def tracing_test() -> Callable[[], bool]:
    """Return torch's own test for ``torch.jit.trace``; one that is never met where this torch has none."""
    from torch import _C

    test: Callable[[], bool] = getattr(_C, "_is_tracing", bool)
    return test


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
