"""Plan of one value per repeated layer of a model: the model around a module, and the digest that ranks compare."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import ancestors, unwrap, user_class

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


def per_layer(requested: Value, n_layers: int) -> tuple[Value, ...]:
    """Return the requested value of each layer: one each, or one for all."""
    return requested if isinstance(requested, tuple) else (requested,) * n_layers


def mismatch(n_requested: int, n_layers: int, *, when: str) -> str:
    """Return in words how the number of values differs from that of the layers; empty if it does not."""
    if not n_layers:
        return f"the model has no repeated layers {when}"
    if n_requested != n_layers:
        return f"{n_requested} layers were requested, but the model repeats {n_layers}"
    return ""


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
