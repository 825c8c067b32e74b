"""Calls of FSDP1's constructor and of FSDP2's ``fully_shard``: the arguments of a layer's number format.

A layer casts its inputs to its format, and its outputs to the format that the script computes in. So layers of several
formats follow each other, and what is not wrapped with them sees what it would see without the hook.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.apply.fsdp_hook import WrapperKind
from torchx_cubicml.recorder.model.size import short_format
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence

    import torch
    from torch import nn


class Fsdp1Precision(WrapperKind):
    """``mixed_precision`` of ``FullyShardedDataParallel``, which lays out the parameters for it as it wraps them."""

    def changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the ``mixed_precision`` of ``strategy``; raise ``ValueError`` if the layer has no fp32 parameters."""
        from torch.distributed.fsdp import MixedPrecision

        _check_stored(call.arguments["module"])
        own = call.arguments.get("mixed_precision") or MixedPrecision()
        policy = replace(own, param_dtype=_dtype(strategy), reduce_dtype=_reduced(own), cast_forward_inputs=True)
        return {"mixed_precision": policy}

    def finish(self, wrapper: object, own: object) -> None:
        """Cast the outputs of a wrapped layer to the format of the script's own policy."""
        import torch

        dtype = getattr(own, "param_dtype", None) or torch.float32
        wrapper.register_forward_hook(_OutputCast(dtype))  # type: ignore[attr-defined]  # FSDP1's wrapper is a module


class Fsdp2Precision(WrapperKind):
    """``mp_policy`` of ``fully_shard``, which casts the outputs itself, and cannot change that of a wrapped layer."""

    def changes(self, call: inspect.BoundArguments, strategy: str) -> dict[str, object]:
        """Return the ``mp_policy`` of ``strategy``; raise ``ValueError`` if the layer has no fp32 parameters."""
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy

        _check_stored(call.arguments["module"])
        own: Any = call.arguments.get("mp_policy") or MixedPrecisionPolicy()
        policy = replace(
            own,
            param_dtype=_dtype(strategy),
            reduce_dtype=_reduced(own),
            output_dtype=own.output_dtype or own.param_dtype or torch.float32,
            cast_forward_inputs=True,
        )
        return {"mp_policy": policy}


class _OutputCast(ModuleHook):
    """Forward hook that casts the floating-point outputs of a layer.

    Args:
        dtype: format to cast to.
    """

    __slots__ = ("_dtype",)

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, module: nn.Module, args: Sequence[object], other: object = None) -> Any:
        """Return the outputs in the format."""
        from torch import Tensor
        from torch.utils._pytree import tree_map_only

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

        return tree_map_only(Tensor, cast, other)


def _dtype(value: str) -> torch.dtype:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16}[value]


def _reduced(own: Any) -> torch.dtype | None:
    """Return the format in which gradients are reduced: the script's, or fp32 if it has no policy."""
    import torch

    return own.reduce_dtype if own.param_dtype is not None else own.reduce_dtype or torch.float32


def _check_stored(wrapped: nn.Module | Sequence[nn.Module]) -> None:
    modules: list[nn.Module] = list(wrapped) if isinstance(wrapped, list | tuple) else [wrapped]  # type: ignore[list-item]
    formats = {short_format(str(each.dtype)) for module in modules for each in module.parameters()}
    if others := formats - {"fp32"}:
        raise ValueError(f"the parameters are stored as {min(others)}; the formats of FSDP's policies need fp32")
