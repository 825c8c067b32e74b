"""FSDP precision hook: sets the number format in which each repeated layer computes (mixed precision of FSDP).

It wraps the same functions as the hook for the sharding strategy. Each changes an argument of its own, so a script can
have both, and one of them may refuse. Autocast chooses the format of each operation, whatever that of the parameters:
where a layer runs under it, the hook refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from torchx_cubicml.recorder.apply.fsdp_hook import WrapperKind
    from torchx_cubicml.records.values import Value


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
        from torchx_cubicml.recorder.apply.fsdp_precision_calls import Fsdp1Precision, Fsdp2Precision

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
