"""Steps that no hook sees, of an optimizer whose ``step`` was compiled: they show in the version of what it steps."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.live_objects import live_instances

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer


def on_every_compilation(call: Callable[[object], None]) -> None:
    """Run ``call``, which must not raise, after each compilation; a torch without that place leaves it out."""
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    register = getattr(handler, "register_end_callback", None)
    if register is not None:
        register(call)


class QuietOptimizers:
    """Finds an optimizer that has stepped, or is about to, where none was seen stepping: one that was compiled."""

    def __init__(self) -> None:
        self._written: list[tuple[weakref.ref[Optimizer], QuietSteps]] = []

    def find(self) -> Optimizer | None:
        """Return such an optimizer; ``None`` without one.

        Its state shows it. Of those without any, as plain SGD is, one has stepped where its parameter was written since
        the last call.
        """
        from torch.optim import Optimizer

        written = [optimizer() for optimizer, quiet in self._written if quiet.has_stepped()]
        found = [each for each in live_instances(Optimizer) if _trained(each)]
        self._written = [(weakref.ref(each), QuietSteps(each)) for each in found if not each.state]
        quiet = [each for each in found if each.state or any(each is other for other in written)]
        return quiet[0] if quiet else None


class QuietSteps:
    """Tells whether an optimizer has stepped since the last look.

    Args:
        optimizer: of which one parameter is looked at.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._parameter = weakref.ref(_trained(optimizer)[0])
        self._version = self._now()

    def has_stepped(self) -> bool:
        """Return whether the parameter was written since the last call."""
        before, self._version = self._version, self._now()
        return self._version != before

    def _now(self) -> int:
        parameter = self._parameter()
        return parameter._version if parameter is not None else -1


def _trained(optimizer: Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
