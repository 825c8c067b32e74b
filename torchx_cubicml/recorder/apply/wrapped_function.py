"""Wrapping of torch's functions for a while, so that a hook may replace a call of the program.

A wrapper stands wherever torch holds the function. A call within a wrapped call of the same hook passes through, as
torch's functions call each other and themselves, unless the hook asks for these too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Call: TypeAlias = "Callable[[], object]"
Replaced: TypeAlias = "Callable[[Call, inspect.BoundArguments], Call | None]"


class WrappedFunctions:
    """Functions of torch that one hook has wrapped.

    Args:
        guard: wraps code that runs within the program's calls.
        nested: whether a call within a wrapped call is replaced too, as of a class that makes others of its kind.
    """

    def __init__(self, guard: Callable[[Callable[..., object]], Callable[..., None]], *, nested: bool = False) -> None:
        self._guard = guard
        self._nested = nested
        self._is_within = self._is_released = False
        self._undo: list[Callable[[], None]] = []

    def wrap(self, function: Callable[..., object], replaced: Replaced) -> None:
        """Wrap a function in all modules of torch that hold it.

        Args:
            function: to wrap.
            replaced: gets the program's call, which calls with the arguments as they are by then, and its arguments; it
                returns the call to make in its place, or ``None`` to leave it. A call with illegal arguments is left to
                torch.
        """
        name, hooked = function.__name__, self._wrapper(function, replaced)
        for module in [each for each in list(sys.modules.values()) if _holds(each, name, function)]:
            self._place(module, name, hooked)

    def wrap_method(self, owner: type, name: str, replaced: Replaced) -> None:
        """Wrap a method of a class, likewise; nothing if this torch has no such method."""
        kept: Any = inspect.getattr_static(owner, name, None)
        if isinstance(kept, staticmethod):
            self._place(owner, name, staticmethod(self._wrapper(kept.__func__, replaced)))
        elif kept is not None:
            self._place(owner, name, self._wrapper(kept, replaced))

    def release(self) -> None:
        """Restore the functions; a wrapper that a module took meanwhile passes on each call."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._is_released = True

    def _wrapper(self, original: Callable[..., object], replaced: Replaced) -> Callable[..., object]:
        signature = inspect.signature(original)

        def collect(calls: list[Call], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:  # torch itself raises this
                return
            call = replaced(lambda: original(*bound.args, **bound.kwargs), bound)
            if call is not None:
                calls.append(call)

        guarded = self._guard(collect)

        @functools.wraps(original)
        def hooked(*args: object, **kwargs: object) -> object:
            if self._is_within or self._is_released:
                return original(*args, **kwargs)
            self._is_within = not self._nested
            try:
                calls: list[Call] = []
                guarded(calls, args, kwargs)
                return calls[0]() if calls else original(*args, **kwargs)
            finally:
                self._is_within = False

        return hooked

    def _place(self, holder: object, name: str, hooked: object) -> None:
        if self._is_released:
            return
        is_own, kept = name in vars(holder), vars(holder).get(name)

        def undo() -> None:
            if vars(holder).get(name) is not hooked:
                return
            if is_own:
                setattr(holder, name, kept)
            else:  # of a method that a base class has, nothing is to be restored
                delattr(holder, name)

        setattr(holder, name, hooked)
        self._undo.append(undo)


def _holds(module: object, name: str, function: object) -> bool:
    return getattr(module, "__name__", "").startswith("torch.") and vars(module).get(name) is function
