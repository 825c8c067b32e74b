"""Activation checkpointing around the forward of a class of layers, for chosen layers of it.

The class's own ``forward`` is replaced, and not a layer's: copies of a layer, and pickles, know nothing of it.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.precision import in_backward, note_recomputed
from torchx_cubicml.recorder.steps.torch_hooks import make_tracing_test

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes)
_PACKAGE = "torch.utils.checkpoint"


class CheckpointedForward:
    """Forward of a class that keeps only its inputs for backward, and computes the rest again there.

    A layer is checkpointed in training mode with gradients only, never within another checkpoint or in backward. State
    that a second forward could change ends the checkpointing of all layers: ``objection`` says what was found.

    Args:
        kind: class of the layers.
        layers: instances of it to checkpoint.
        only_checks: whether nothing is checkpointed: the forward finds out whether it could be.
    """

    def __init__(self, kind: type[nn.Module], layers: Iterable[nn.Module], *, only_checks: bool = False) -> None:
        from torch import is_grad_enabled

        self.objection = ""
        self._kind = kind
        self._only_checks = only_checks
        self._layers = weakref.WeakSet(layers)
        self._unseen = weakref.WeakSet(self._layers)  # layers whose buffers were not compared yet
        self._is_traced = make_tracing_test()
        self._is_grad_enabled = is_grad_enabled
        self._is_inherited = "forward" not in vars(kind)
        self._forward: Callable[..., object] = kind.forward

    @property
    def n_unseen(self) -> int:
        """Number of layers that did not run under the checkpoint yet."""
        return len(self._unseen)

    def install(self) -> None:
        """Replace ``forward`` of the class."""
        original, is_traced, checkpointed = self._forward, self._is_traced, self._checkpointed

        @functools.wraps(original)
        def forward(layer: nn.Module, *args: object, **kwargs: object) -> object:
            # This test comes first, so that a compiler that traces a layer finds nothing else.
            if is_traced() or not self._applies_to(layer, args, kwargs):
                return original(layer, *args, **kwargs)
            return checkpointed(functools.partial(original, layer), layer, args, kwargs)

        self._kind.forward = forward

    def remove(self) -> None:
        """Restore ``forward`` of the class."""
        if self._is_inherited:
            del self._kind.forward
        else:
            self._kind.forward = self._forward

    def _applies_to(self, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        if self.objection or not layer.training or not self._is_grad_enabled():
            return False
        try:
            if layer in self._layers and not in_backward():
                self.objection = _objection([*args, *kwargs.values()])
                return not self.objection
        except Exception as error:  # noqa: BLE001 - the arguments are the program's, which must run on
            self.objection = f"the arguments of a layer cannot be read: {type(error).__name__}"
        return False

    def _checkpointed(
        self, call: Callable[..., object], layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Return the result of ``call``, and keep only its arguments for backward.

        Args:
            call: computes the layer.
            layer: module that it computes.
            args: positional arguments of the call.
            kwargs: its named arguments.
        """
        from torch.utils.checkpoint import checkpoint

        names, n_args = tuple(kwargs), len(args)

        def run(*values: object) -> object:
            if in_backward():
                note_recomputed(layer)
            return call(*values[:n_args], **dict(zip(names, values[n_args:], strict=True)))

        before = _buffer_versions(layer) if layer in self._unseen else {}
        values = (*args, *kwargs.values())
        output = run(*values) if self._only_checks else checkpoint(run, *values, use_reentrant=False)
        if layer in self._unseen:
            self._unseen.discard(layer)
            after = _buffer_versions(layer)
            written = [name for name in before if before[name] != after.get(name)]
            if written:
                self.objection = f"the forward of a layer writes its buffer {written[0]}, and would do so twice"
        return output


def _objection(values: Iterable[object]) -> str:
    """Return the reason why a layer with these arguments is not checkpointed, in words; empty if it can be."""
    if _is_within_checkpoint():
        return "the script checkpoints layers itself"
    for value in values:
        if (name := _changeable(value)) and name:
            return f"a layer is called with an object of class {name}, which a second forward could change"
    return ""


def _changeable(value: object) -> str:
    """Return the class of a value, or of a part of it, that is no tensor and can be changed; empty without one."""
    from torch import Tensor, device, dtype

    if value is None or isinstance(value, (*_PLAIN, Tensor, device, dtype)):
        return ""
    if isinstance(value, tuple):
        return next(filter(None, map(_changeable, value)), "")
    return type(value).__name__


def _is_within_checkpoint() -> bool:
    """Return whether a checkpoint of the script is running its forward; false if this torch does not expose it."""
    from torch import _C

    top = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(True) if top is not None else None
    return hooks is not None and getattr(hooks[0], "__module__", "") == _PACKAGE


def _buffer_versions(layer: nn.Module) -> dict[str, int]:
    try:
        return {name: buffer._version for name, buffer in layer.named_buffers()}
    except RuntimeError:  # a tensor of inference mode has none
        return {}
