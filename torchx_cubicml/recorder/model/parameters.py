"""What the parameters of a live model tell: how many there are, shards counted whole, and in which format."""

from __future__ import annotations

import sys
from collections import Counter
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_SHORT = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float64": "fp64",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
}


def count_parameters(root: nn.Module) -> tuple[int | None, int | None]:
    """Return how many parameters a model has and how many of them are trained; ``None`` where FSDP does not tell.

    A parameter distributed as a DTensor knows its global size. FSDP1 leaves a rank its shards alone, so what it has
    flattened is counted by the shapes from before.
    """
    total, trained, flattened = 0, 0, set()
    for flat in _flat_parameters(root):
        shapes, originals = getattr(flat, "_shapes", None), getattr(flat, "_params", None)
        if shapes is None:
            return None, None
        flattened |= {id(flat), *map(id, originals or ())}
        sizes = list(map(prod, shapes))
        total += sum(sizes)
        flags = [parameter.requires_grad for parameter in originals or [flat] * len(sizes)]
        trained += sum(size for size, is_trained in zip(sizes, flags, strict=True) if is_trained)
    for parameter in root.parameters():
        if id(parameter) not in flattened:
            total += parameter.numel()
            trained += parameter.numel() if parameter.requires_grad else 0
    return total, trained


def parameter_format(root: nn.Module) -> str:
    """Return the format that most of this rank's parameters are kept in, such as ``fp32``; empty without any."""
    sizes: Counter[str] = Counter()
    for parameter in root.parameters():
        sizes[str(parameter.dtype)] += max(parameter.numel(), 1)
    return short_format(sizes.most_common(1)[0][0]) if sizes else ""


def count_float8_modules(root: nn.Module) -> int | None:
    """Return how many modules multiply in eight bits, by the classes of theirs or of their weights (torchao).

    ``None`` where Transformer Engine is at work: what its modules multiply in is decided anew at each call.
    """
    if "transformer_engine" in sys.modules:
        return None
    return sum(any("Float8" in name for name in _class_names(module)) for module in root.modules())


def _class_names(module: nn.Module) -> Iterator[str]:
    yield type(module).__name__
    for value in module.parameters(recurse=False):
        yield type(value).__name__
        yield type(getattr(value, "_local_tensor", None)).__name__  # of this rank, where it is distributed


def short_format(name: str) -> str:
    """Return the usual short name of a number format.

    >>> short_format("torch.bfloat16")
    'bf16'
    """
    return _SHORT.get(name, name.removeprefix("torch."))


def device_kind(root: nn.Module) -> str:
    """Return the kind of device that a model is on, such as ``cpu`` or ``cuda``; empty where it has no parameters."""
    return next((parameter.device.type for parameter in root.parameters()), "")


def _flat_parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    for module in root.modules():
        # Not by getattr: wrappers pass what they lack on to the module within, which would be counted twice.
        flat = getattr(module.__dict__.get("_handle"), "flat_param", None)
        if flat is not None:
            yield flat
