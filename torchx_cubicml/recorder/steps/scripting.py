"""Keeps our hooks out of ``torch.jit.script``, which compiles the hooks of a module along with it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.module_hook import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


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
