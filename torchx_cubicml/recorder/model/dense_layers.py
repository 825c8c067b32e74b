"""Dense layers of a recommender: sizes of all that is no embedding table, as wrapped or else per module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.embedding_modules import embedding_modules, table_configs, table_parameters
from torchx_cubicml.recorder.model.layers import own_parameters
from torchx_cubicml.recorder.model.size import count_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


def dense_layer_sizes(
    root: nn.Module, wrapped: Sequence[nn.Module], *, n_params: int | None, is_one: bool = False
) -> tuple[int, ...]:
    """Return the number of parameters of each dense layer of a recommender; empty for other models.

    The layers are the wrapped parts, if each has a sharding strategy of its own, or else the modules that hold
    parameters themselves. They are left out unless they hold exactly the parameters that the tables do not.

    Args:
        root: the model.
        wrapped: the parts with strategies of their own, in order; none of them contains another.
        n_params: of the whole model with its tables; ``None`` if unknown.
        is_one: whether one wrapper shards the whole dense part at once.
    """
    modules = embedding_modules(root)
    if not modules or n_params is None:
        return ()
    tables = sum(each.num_embeddings * each.embedding_dim for module in modules for each in table_configs(module))
    if is_one:
        return (n_params - tables,)
    sizes = [count_parameters(part)[0] or 0 for part in wrapped] if wrapped else _own_sizes(root)
    return tuple(sizes) if sum(sizes) == n_params - tables else ()


def _own_sizes(root: nn.Module) -> list[int]:
    """Return the parameters that each module holds itself, without tables; each parameter counts once."""
    seen = {id(table) for table in table_parameters(root)}
    sizes: list[int] = []
    for module in root.modules():
        own = {id(each): each for each in own_parameters(module) if id(each) not in seen}
        seen |= set(own)
        if own:
            sizes.append(sum(each.numel() for each in own.values()))
    return sizes
