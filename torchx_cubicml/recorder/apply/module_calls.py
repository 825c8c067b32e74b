"""Global forward pre-hook on every module call of a process, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_own: set[int] = set()  # ids of our global hooks


def before_every_call(hook: Callable[..., None]) -> Callable[[], None]:
    """Run ``hook(module, args)`` before each call of a module, and return a function that ends it.

    A compiled module warns of global hooks, if this torch has the test for them: it is told of all others only. Hooks
    may end in any order.
    """
    from torch.nn.modules import module as place

    handle = place.register_module_forward_pre_hook(hook)
    _own.add(handle.id)
    original = getattr(place, "_has_any_global_hook", None)
    if original is not None and not hasattr(original, "of_torchx_cubicml_around"):
        place._has_any_global_hook = _told_of_others(original)

    def end() -> None:
        handle.remove()
        _own.discard(handle.id)
        before = getattr(getattr(place, "_has_any_global_hook", None), "of_torchx_cubicml_around", None)
        if not _own and before is not None:
            place._has_any_global_hook = before

    return end


def _told_of_others(original: Callable[[], object]) -> Callable[[], object]:
    """Return a test for global hooks that does not count ours."""
    from torch.nn.modules import module as place

    def has_other_hook() -> object:
        hooks = place._global_forward_pre_hooks
        own = {each: hooks.pop(each) for each in _own if each in hooks}
        try:
            return original()
        finally:
            hooks.update(own)

    has_other_hook.of_torchx_cubicml_around = original  # type: ignore[attr-defined]  # a mark on a function
    return has_other_hook
