"""How wide a live language model is, read from the attributes of its modules: they hold whatever shards it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import repeated_blocks, unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from torchx_cubicml.records.trial import Value

_HEADS = ("n_heads", "num_heads", "n_head", "num_attention_heads")
_KV_HEADS = ("n_kv_heads", "num_kv_heads", "num_key_value_heads", "n_kv_head")


def read_widths(root: nn.Module) -> dict[str, Value]:
    """Return vocabulary, widths and heads under their standard names, as far as the modules tell.

    The width is that of the largest embedding, where a layer of the first repeated block takes it in.

    Args:
        root: a model whose batches are tokens.
    """
    from torch.nn import Embedding, Linear

    blocks = repeated_blocks(root)
    tables = [module for module in root.modules() if isinstance(module, Embedding)]
    if not blocks or not tables:
        return {}
    table = max(tables, key=lambda each: each.num_embeddings)
    width, layers = table.embedding_dim, [layer for layer in blocks[0].modules() if isinstance(layer, Linear)]
    if not any(layer.in_features == width for layer in layers):
        return {}
    inner = [layer.in_features for layer in layers if layer.out_features == width != layer.in_features]
    places = [vars(module) for module in blocks[0].modules()]
    places.append(getattr(vars(unwrap(root)).get("config"), "__dict__", {}))
    heads = _first(places, _HEADS)
    known: dict[str, Value | None] = {
        "vocab_size": table.num_embeddings,
        "d_model": width,
        "d_ff": max(inner, default=None),
        "n_heads": heads,
        "n_kv_heads": _first(places, _KV_HEADS) if heads is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _first(places: Iterable[Mapping[str, object]], names: Iterable[str]) -> int | None:
    found = (place[name] for place in places for name in names if name in place)
    counts = (value for value in found if isinstance(value, int) and not isinstance(value, bool))
    return next((count for count in counts if count > 0), None)
