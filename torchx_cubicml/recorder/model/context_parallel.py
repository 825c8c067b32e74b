"""Device meshes that torch's own context parallelism was enabled on.

Two forms leave a trace: ``_ContextParallel``, a parallel style, leaves hooks on the modules of attention, and the
``context_parallel`` context leaves its replacement of ``scaled_dot_product_attention`` in a table of torch.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_MODULES = (
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._attention",  # torch before 2.9
)
_STYLE = "_ContextParallel"
_CLOSED_OVER = "device_mesh"
_METHODS = {"ALL_GATHER": "all_gather", "ALL_TO_ALL": "p2p"}
"""Torch's way to rotate keys and values -> standard word; its all-to-all passes them on in a ring."""


def context_meshes(root: nn.Module) -> list[object]:
    """Return the meshes that attention of a model shares its sequences over; empty without torch's API for it."""
    if not any(name in sys.modules for name in _MODULES):
        return []
    found = [*_meshes_of_hooks(root), *_meshes_of_replacements()]
    return [*{id(mesh): mesh for mesh in found}.values()]


def context_method(root: nn.Module) -> str:
    """Return the way in which ranks exchange keys and values: ``all_gather``, or ``p2p`` in a ring; empty if unknown.

    FlexAttention always gathers them. For other kernels torch's option counts, one for the whole process.
    """
    if any(getattr(getattr(style, "attention_type", None), "name", "") == "FLEX" for style, _ in _styles(root)):
        return _METHODS["ALL_GATHER"]
    options = (getattr(sys.modules.get(name), "_cp_options", None) for name in _MODULES)
    methods = (getattr(getattr(each, "rotate_method", None), "name", "") for each in options)
    return next((_METHODS[method] for method in methods if method in _METHODS), "")


def _meshes_of_hooks(root: nn.Module) -> Iterator[object]:
    return (mesh for _, mesh in _styles(root))


def _styles(root: nn.Module) -> Iterator[tuple[object, object]]:
    """Yield torch's parallel styles of context parallelism in the hooks of a model, each with its mesh."""
    for module in root.modules():
        for hook in vars(module).get("_forward_pre_hooks", {}).values():
            owner = getattr(hook.func, "__self__", None) if isinstance(hook, functools.partial) else None
            if type(owner).__name__ == _STYLE and "mesh" in hook.keywords:
                yield owner, hook.keywords["mesh"]


def _meshes_of_replacements() -> Iterator[object]:
    for name in _MODULES:
        replaced = getattr(sys.modules.get(name), "_replaced_functions", None)
        for function in replaced if isinstance(replaced, dict) else ():
            code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
            names = getattr(code, "co_freevars", ())
            yield from (
                cell.cell_contents for each, cell in zip(names, cells or (), strict=False) if each == _CLOSED_OVER
            )
