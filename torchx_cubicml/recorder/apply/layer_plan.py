"""Plan of one value per repeated layer of a model: the model around a module, and the digest that ranks compare."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import ancestors, repeated_blocks, unwrap, user_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from torchx_cubicml.records.values import Value


def whole_model(module: nn.Module) -> nn.Module:
    """Return the largest live module around a module, or the module itself.

    A wrapper that is not in the model yet, as of a layer that is compiled first, has the model around what it wraps.
    """
    inside = unwrap(module)
    around: list[nn.Module] = [module, *ancestors(module), *(ancestors(inside) if inside is not module else ())]
    return max(around, key=lambda each: sum(1 for _ in each.modules()))


def per_layer(root: nn.Module, requested: Value, *, when: str) -> tuple[Sequence[nn.Module], tuple[Value, ...], str]:
    """Return the repeated layers of a model, their values, and how the numbers of both differ, in words.

    Args:
        root: the model.
        requested: one value per layer, or one for all.
        when: when the model is looked at, in words.
    """
    layers = repeated_blocks(root)
    values = requested if isinstance(requested, tuple) else (requested,) * len(layers)
    if not layers:
        return layers, values, f"the model has no repeated layers {when}"
    is_other = len(values) != len(layers)
    wrong = f"{len(values)} layers were requested, but the model repeats {len(layers)}" if is_other else ""
    return layers, values, wrong


def plan_digest(layers: Sequence[nn.Module], requested: Sequence[Value], *, is_sharded: bool = False) -> str:
    """Return a hash of the layers' classes and shapes and of their values; it must be equal on all ranks.

    Args:
        layers: the repeated layers.
        requested: value of each.
        is_sharded: whether the parameters may be shards, whose shapes differ between the ranks.
    """
    shapes = [
        (
            user_class(layer).__qualname__,
            [() if is_sharded else tuple(parameter.shape) for parameter in layer.parameters()],
        )
        for layer in layers
    ]
    return hashlib.sha256(repr((shapes, list(requested))).encode()).hexdigest()
