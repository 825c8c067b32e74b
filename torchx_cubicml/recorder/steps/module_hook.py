"""The shape of all our hooks on the user's modules: they raise nothing, return nothing and are copied as nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn


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
