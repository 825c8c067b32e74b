"""Activation checkpointing around layers that are compiled one by one: outside of the compiled call.

The compiler sees nothing of it, so its graphs are those of the program. Backward runs the compiled call once more.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.apply.checkpointed_forward import CheckpointedForward
from torchx_cubicml.recorder.model.kernels import compiled_modules
from torchx_cubicml.recorder.model.layers import unwrap, user_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

_IN_PLACE = "_compiled_call_impl"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLayers:
    """Compiled parts of a model by the layers in them.

    Args:
        parts: layer by its id -> module that holds its compiled call; the layer itself where it is compiled in place.
        obstacle: why the layers cannot be checkpointed, in words; empty if they can be.
    """

    parts: Mapping[int, nn.Module] = field(default_factory=dict)
    obstacle: str = ""


def compiled_layers(root: nn.Module, layers: Sequence[nn.Module]) -> CompiledLayers:
    """Return the way in which the layers of a model are compiled: one by one, together, or not at all."""
    ids = {id(layer) for layer in layers}
    parts: dict[int, nn.Module] = {}
    for part in compiled_modules(root):
        inside = unwrap(part)
        if id(inside) not in ids:
            if any(id(module) in ids for module in part.modules()):
                return CompiledLayers(obstacle="the model is compiled as a whole, and not layer by layer")
            continue  # a part of a layer, or beside the layers
        if part is not inside and part._modules.get("_orig_mod") is not inside:
            return CompiledLayers(obstacle="the layers are compiled together with their wrappers")
        if id(inside) in parts:
            return CompiledLayers(obstacle="a layer is compiled twice")
        parts[id(inside)] = part
    if parts and len(parts) < len(ids):
        return CompiledLayers(obstacle=f"{len(parts)} of the {len(ids)} layers are compiled, and the others are not")
    return CompiledLayers(parts=parts)


class CheckpointedCompiled(CheckpointedForward):
    """Compiled calls of layers that keep only their inputs for backward, and run once more there.

    Args:
        layers: layers to checkpoint, of one class.
        parts: layer by its id -> module that holds its compiled call.
        only_checks: whether nothing is checkpointed: the calls find out whether they could be.
    """

    def __init__(
        self, layers: Sequence[nn.Module], parts: Mapping[int, nn.Module], *, only_checks: bool = False
    ) -> None:
        super().__init__(user_class(layers[0]), layers, only_checks=only_checks)
        self._parts = [(layer, parts[id(layer)]) for layer in layers]
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace the compiled call of each layer."""
        for layer, part in self._parts:
            name = _IN_PLACE if part is layer else "forward"
            original = getattr(part, name)
            call = self._around(layer, original)
            setattr(part, name, call)
            self._undo.append(functools.partial(_restore, part, name, call, original))
        self._parts.clear()

    def remove(self) -> None:
        """Restore the compiled calls."""
        while self._undo:
            self._undo.pop()()

    def _around(self, layer: nn.Module, original: Callable[..., object]) -> Callable[..., object]:
        is_traced, checkpointed = self._is_traced, self._checkpointed

        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            if is_traced() or not self._applies_to(layer, args, kwargs):
                return original(*args, **kwargs)
            return checkpointed(original, layer, args, kwargs)

        call.of_torchx_cubicml_around = original  # type: ignore[attr-defined]  # a mark on a function
        return call


def _restore(part: Any, name: str, call: object, original: object) -> None:
    if getattr(part, name) is call:
        setattr(part, name, original)
