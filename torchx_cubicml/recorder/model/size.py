"""Parameters of a model: their count, number format, and layer widths."""

from __future__ import annotations

import sys
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.recorder.model.embedding_modules import (
    embedding_modules,
    sharded_parameters,
    sharded_size,
    table_parameters,
)
from torchx_cubicml.recorder.model.layers import repeated_blocks, unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from torchx_cubicml.records.values import Value

T = TypeVar("T")

_SHORT = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float64": "fp64",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
}


def count_parameters(*roots: nn.Module) -> tuple[int | None, int | None]:
    """Return the number of parameters of models and the number of trainable ones; ``None`` if FSDP hides them.

    Parameters that models share count once.

    The size of a DTensor is global, and a table that TorchRec shards counts once and whole. FSDP1 leaves a rank only
    its shards, so its flattened parameters are counted by their original shapes.
    """
    total, trained, flattened = 0, 0, {id(shard) for root in roots for shard in sharded_parameters(root)}
    for module in _distinct(module for root in roots for module in embedding_modules(root)):
        size, size_trained = sharded_size(module)
        total, trained = total + size, trained + size_trained
    for flat in _distinct(flat for root in roots for flat in _flat_parameters(root)):
        shapes, originals = getattr(flat, "_shapes", None), getattr(flat, "_params", None)
        if shapes is None:
            return None, None
        flattened |= {id(flat), *map(id, originals or ())}
        sizes = list(map(prod, shapes))
        total += sum(sizes)
        flags = [parameter.requires_grad for parameter in originals or [flat] * len(sizes)]
        trained += sum(size for size, is_trained in zip(sizes, flags, strict=True) if is_trained)
    for parameter in _distinct(parameter for root in roots for parameter in root.parameters()):
        if id(parameter) not in flattened:
            total += parameter.numel()
            trained += parameter.numel() if parameter.requires_grad else 0
    return total, trained


def _distinct(objects: Iterable[T]) -> Iterable[T]:
    return {id(each): each for each in objects}.values()


def parameter_format(root: nn.Module) -> str:
    """Return the number format that most of this rank's parameters have, such as ``fp32``; empty without any.

    Tables of embeddings count only if there is nothing else: no matrix is multiplied in their format.
    """
    sizes: Counter[str] = Counter()
    tables = {id(table) for table in table_parameters(root)}
    parameters = list(root.parameters())
    for parameter in [each for each in parameters if id(each) not in tables] or parameters:
        sizes[str(parameter.dtype)] += max(parameter.numel(), 1)
    return short_format(sizes.most_common(1)[0][0]) if sizes else ""


def count_float8_modules(root: nn.Module) -> int | None:
    """Return the number of modules that multiply in float8, found by the classes of modules and weights (torchao).

    ``None`` if Transformer Engine is loaded, whose modules choose the format at each call.
    """
    if "transformer_engine" in sys.modules:
        return None
    return sum(any("Float8" in name for name in _class_names(module)) for module in root.modules())


def _class_names(module: nn.Module) -> Iterator[str]:
    yield type(module).__name__
    for value in module.parameters(recurse=False):
        yield type(value).__name__
        yield type(getattr(value, "_local_tensor", None)).__name__  # this rank's shard of a DTensor


def short_format(name: str) -> str:
    """Return the usual short name of a number format.

    >>> short_format("torch.bfloat16")
    'bf16'
    """
    return _SHORT.get(name, name.removeprefix("torch."))


def device_kind(root: nn.Module) -> str:
    """Return the kind of device that a model is on, such as ``cpu`` or ``cuda``; empty without parameters."""
    return next((parameter.device.type for parameter in root.parameters()), "")


def _flat_parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    for module in root.modules():
        # Not getattr(module, ...): wrappers forward missing attributes to the inner module, which would count twice.
        flat = getattr(module.__dict__.get("_handle"), "flat_param", None)
        if flat is not None:
            yield flat


_HEADS = ("n_heads", "num_heads", "n_head", "num_attention_heads")
_KV_HEADS = ("n_kv_heads", "num_kv_heads", "num_key_value_heads", "n_kv_head")


def read_widths(root: nn.Module) -> dict[str, Value]:
    """Return vocabulary, widths and heads under their standard names, as far as they are known from the modules.

    The width is that of the largest embedding, if a linear layer of the first repeated block has it as input width.

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
    holders = [vars(module) for module in blocks[0].modules()]
    holders.append(getattr(vars(unwrap(root)).get("config"), "__dict__", {}))
    heads = _first_count(holders, _HEADS)
    known: dict[str, Value | None] = {
        "vocab_size": table.num_embeddings,
        "d_model": width,
        "d_ff": max(inner, default=None),
        "n_heads": heads,
        "n_kv_heads": _first_count(holders, _KV_HEADS) if heads is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _first_count(holders: Iterable[Mapping[str, object]], names: Iterable[str]) -> int | None:
    found = (holder[name] for holder in holders for name in names if name in holder)
    counts = (value for value in found if isinstance(value, int) and not isinstance(value, bool))
    return next((count for count in counts if count > 0), None)
