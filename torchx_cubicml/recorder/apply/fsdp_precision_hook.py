"""FSDP precision hook: sets the number format in which each repeated layer computes (mixed precision of FSDP).

A layer casts its inputs to its format, and its outputs to the format that the script computes in. So layers of several
formats follow each other, and what is not wrapped with them sees what it would see without the hook.

It wraps the same functions as the hook for the sharding strategy. Each changes an argument of its own, so a script can
have both, and one of them may refuse. Autocast chooses the format of each operation, whatever that of the parameters:
where a layer runs under it, the hook refuses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook, WrapperKind, modules_of

if TYPE_CHECKING:
    import inspect
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn

    from torchx_cubicml.records.values import Value


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

        from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

        cast = partial(_with_outputs_cast, getattr(own, "param_dtype", None) or torch.float32)
        wrapper.register_forward_hook(ModuleHook(cast))  # type: ignore[attr-defined]  # FSDP1's wrapper is a module


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


class FsdpPrecisionHook(FsdpHook):
    """Hook around the wrapping functions of FSDP that sets ``mixed_precision`` or ``mp_policy``.

    Its value: one per repeated layer, or one for all.
    """

    name = "fsdp_precision"
    sets = "number format in which each layer that the script wraps in FSDP computes"
    values = (("fp32", "bf16"),)
    offered = ()  # another format changes the training
    fact = "precision"
    rivals: ClassVar = {"autocast": "autocast may choose the format in place of the parameters"}

    def _prepare(self, formats: Value) -> None:
        super()._prepare(formats)
        self._uncalled: dict[int, nn.Module] = {}  # planned layers by id, until each has run once
        self._model: nn.Module | None = None  # of these layers

    @classmethod
    def kinds(cls) -> tuple[WrapperKind, WrapperKind]:
        """Return the argument of the number format, of FSDP1 and of FSDP2."""
        return Fsdp1Precision(), Fsdp2Precision()

    def release(self) -> None:
        """Restore FSDP's functions, and stop looking at the calls of layers."""
        from torchx_cubicml.recorder.model.compiled_autocast import compiled_autocast_type

        super().release()
        self._stop()
        if self._model is not None and not self._refusal:
            self._refuse_autocast(compiled_autocast_type(self._model))
        self._model = None

    def planned(self, layers: Iterable[nn.Module]) -> None:
        """Look at the first call of each layer of the plan."""
        from torchx_cubicml.recorder.apply.layer_plan import whole_model

        self._uncalled = {id(layer): layer for layer in layers}
        self._model = whole_model(next(iter(self._uncalled.values())))
        self._look_at_calls(self._before_forward)

    def _before_forward(self, module: nn.Module, args: Sequence[object]) -> None:
        from torch import is_grad_enabled

        from torchx_cubicml.recorder.model.kernels import compiled_modules
        from torchx_cubicml.recorder.model.layers import unwrap
        from torchx_cubicml.recorder.model.precision import autocast_type

        inside = unwrap(module)
        if not inside.training or not is_grad_enabled() or not self._concerns(inside):
            return
        found = self._refuse_autocast(autocast_type(module))
        self._uncalled.pop(id(inside), None)
        # A compiler would compile again once the global hook is gone, so the first call must tell.
        if found or not self._uncalled or any(True for _ in compiled_modules(module)):
            self._stop()

    def _refuse_autocast(self, dtype: str) -> str:
        """Refuse if the layers run under autocast, and return its format in a word; empty where it is off."""
        from torchx_cubicml.recorder.model.size import short_format

        found = short_format(dtype)
        if found:
            done = "" if self._only_checks else "; their parameters alone have the requested one"
            self._refusal = (
                f"the script runs the layers under autocast to {found}, which chooses the format that counts{done}"
            )
        return found

    def _concerns(self, inside: nn.Module) -> bool:
        """Return whether a module is a layer that has not run, or holds one."""
        return any(id(part) in self._uncalled for part in inside.modules())

    def _stop(self) -> None:
        self._stop_looking()
        self._uncalled.clear()


hook = FsdpPrecisionHook


def _with_outputs_cast(dtype: torch.dtype, module: nn.Module, args: object, outputs: object) -> object:
    """Return the outputs of a layer with its floating-point tensors in a format."""
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(Tensor, cast, outputs)


def _dtype(value: str) -> torch.dtype:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16}[value]


def _reduced(own: Any) -> torch.dtype | None:
    """Return the format in which gradients are reduced: the script's, or fp32 if it has no policy."""
    import torch

    return own.reduce_dtype if own.param_dtype is not None else own.reduce_dtype or torch.float32


def _check_stored(wrapped: object) -> None:
    from torchx_cubicml.recorder.model.size import short_format

    formats = {short_format(str(each.dtype)) for module in modules_of(wrapped) for each in module.parameters()}
    if others := formats - {"fp32"}:
        raise ValueError(f"the parameters are stored as {min(others)}; the formats of FSDP's policies need fp32")
