"""Layers that the constructor of a model wraps, before they are part of the model."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import ancestors, repeated_blocks, unwrap, user_class

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from torch import nn

    from torchx_cubicml.records.values import Value


class ConstructorLayers:
    """Layers wrapped within a constructor, counted by their class in the order of wrapping.

    Their number is compared with the model's once that is whole: a layer is taken for a repeated one before that is
    certain.

    Args:
        strategies: one per repeated layer, or one for all.
    """

    def __init__(self, strategies: Value) -> None:
        self._strategies = strategies
        self._classes: set[type] = set()  # of modules that a constructor wraps before they are part of it
        self._counts: Counter[type] = Counter()
        self._layers: dict[int, nn.Module] = {}  # by id, kept alive so that no id is reused

    @property
    def count(self) -> int:
        """Number of layers that were wrapped in a constructor."""
        return len(self._layers)

    def is_early(self, module: nn.Module) -> bool:
        """Return whether a constructor wraps a module before that is part of its model.

        The module has submodules, but no repeated ones. Live modules are searched once per class, as that takes tens of
        milliseconds.
        """
        inside = unwrap(module)
        has_children = any(any(True for _ in child.parameters()) for child in inside.children())
        if not has_children or repeated_blocks(inside) or not _is_in_constructor(inside):
            return False
        kind = user_class(inside)
        if kind not in self._classes and ancestors(module):
            return False
        self._classes.add(kind)
        return True

    def strategy_of_next(self, module: nn.Module) -> str:
        """Return the strategy of the next layer of the module's class; empty if there are as many as requested."""
        if not isinstance(self._strategies, tuple):
            return str(self._strategies)
        index = self._counts[user_class(unwrap(module))]
        return str(self._strategies[index]) if index < len(self._strategies) else ""

    def add(self, module: nn.Module) -> None:
        """Add a wrapped layer."""
        self._counts[user_class(unwrap(module))] += 1
        self._layers[id(unwrap(module))] = unwrap(module)

    def has(self, layer: nn.Module) -> bool:
        """Return whether a layer of the model was wrapped in its constructor."""
        return id(layer) in self._layers

    def model(self) -> nn.Module | None:
        """Return the largest module around the wrapped layers; ``None`` where the constructor wrapped none."""
        if not self._layers:
            return None
        first = next(iter(self._layers.values()))
        return max([first, *ancestors(first)], key=lambda around: sum(1 for _ in around.modules()))

    def mismatch(self, layers: Sequence[nn.Module]) -> str:
        """Return in words how the wrapped modules differ from repeated layers of the model, in order; empty if not."""
        expected = [id(layer) for layer in layers if id(layer) in self._layers]
        if list(self._layers) == expected:
            return ""
        return "the constructor wraps other modules than the repeated layers, or in another order"


def _is_in_constructor(module: nn.Module) -> bool:
    """Return whether a function called by another module's constructor is running."""
    from torch.nn import Module

    frame: FrameType | None = sys._getframe(1)  # only this tells a constructor that has not returned
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
        if isinstance(owner, Module) and owner is not module and not _wraps(owner):
            return True
        frame = frame.f_back
    return False


def _wraps(owner: nn.Module) -> bool:
    return type(owner).__name__ == "FullyShardedDataParallel"
