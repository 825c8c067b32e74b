"""Global forward pre-hook on every module call of a process, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def before_every_call(hook: Callable[..., None]) -> Callable[[], None]:
    """Run ``hook(module, args)`` before each call of a module, and return a function that ends it.

    A compiled module warns of global hooks, if this torch has the test for them: it is told of all others only.
    """
    from torch.nn.modules import module as place

    handle = place.register_module_forward_pre_hook(hook)
    original = getattr(place, "_has_any_global_hook", None)

    def has_other_hook() -> object:
        hooks = place._global_forward_pre_hooks
        own = hooks.pop(handle.id, None)
        try:
            return original() if original is not None else False
        finally:
            if own is not None:
                hooks[handle.id] = own

    def end() -> None:
        handle.remove()
        if original is not None and place._has_any_global_hook is has_other_hook:
            place._has_any_global_hook = original

    if original is not None:
        place._has_any_global_hook = has_other_hook
    return end
