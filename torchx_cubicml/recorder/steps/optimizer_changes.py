"""Changes of optimizer within a run: replaced optimizers and those beside the trained model's."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.inspection import parameters_of
from torchx_cubicml.recorder.model.layers import holds_all
from torchx_cubicml.recorder.model.live_objects import live_instances

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.steps.forwards import Forwards


def on_every_compilation(call: Callable[[object], None]) -> None:
    """Run ``call``, which must not raise, after each compilation; a torch without that place leaves it out."""
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    register = getattr(handler, "register_end_callback", None)
    if register is not None:
        register(call)


class UnhookedOptimizers:
    """Finds an optimizer that has stepped, or is about to, where none was seen stepping: one that was compiled."""

    def __init__(self) -> None:
        self._written: list[tuple[weakref.ref[Optimizer], UnhookedSteps]] = []

    def find(self) -> Optimizer | None:
        """Return such an optimizer; ``None`` without one.

        Its state shows it. Of those without any, as plain SGD is, one has stepped where its parameter was written since
        the last call.
        """
        from torch.optim import Optimizer

        written = [optimizer() for optimizer, quiet in self._written if quiet.has_stepped()]
        found = [each for each in live_instances(Optimizer) if _trained(each)]
        self._written = [(weakref.ref(each), UnhookedSteps(each)) for each in found if not each.state]
        quiet = [each for each in found if each.state or any(each is other for other in written)]
        return quiet[0] if quiet else None


class UnhookedSteps:
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


_STEPS_OF_A_STRANGER = 8  # without one of the leading optimizer: it leads no more
_STEPS_UNTIL_LOOK = 64  # of a training that is counted alone, which is long then; each time twice as many


class OtherOptimizers:
    """Steps of other optimizers since the last of the leading one, in ``steps``."""

    def __init__(self) -> None:
        self.steps = 0
        self._first: weakref.ref[Optimizer] | None = None
        self._steps_of_first = 0

    def saw(self, stranger: Optimizer) -> bool:
        """Note a step; return whether this optimizer has taken over."""
        self.steps += 1
        if self._first is None or self._first() is None:
            self._first, self._steps_of_first = weakref.ref(stranger), 0
        if self._first() is not stranger:
            return False
        self._steps_of_first += 1
        return self._steps_of_first >= _STEPS_OF_A_STRANGER

    def forget(self) -> None:
        """Begin anew: another optimizer leads."""
        self._first, self._steps_of_first = None, 0

    def end(self) -> int:
        """Note a step of the leading optimizer; return how many there were of others."""
        steps, self.steps = self.steps, 0
        self.forget()
        return steps


class OptimizerIdentity:
    """What an optimizer trains, and of which class it is; keeps neither alive."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._class = type(optimizer)
        self._parameters = [weakref.ref(parameter) for parameter in parameters_of(optimizer)]

    def is_also_of(self, other: Optimizer, forwards: Forwards) -> bool:
        """Whether what is known of the training holds for what another optimizer trains.

        Args:
            other: that may lead the same training.
            forwards: that show the model, where it was seen.
        """
        if type(other) is not self._class:
            return False
        parameters, model = parameters_of(other), forwards.model
        ids = set(map(id, parameters))
        living = (reference() for reference in self._parameters)
        known = {id(each) for each in living if each is not None}
        if ids <= known or model is None or not forwards.is_whole:
            return bool(ids & known)
        return holds_all(model, parameters)


class CountedAlone:
    """Whether the training under way is one of too many: its steps are counted and nothing else is known of it."""

    def __init__(self) -> None:
        self.is_on = False
        self._steps = 0
        self._until_look = _STEPS_UNTIL_LOOK

    def begin(self) -> None:
        """Count the steps of a training that begins."""
        self.is_on, self._steps = True, 0

    def is_long(self) -> bool:
        """Count a step; return whether the training has become worth a look, and is counted alone no more."""
        self._steps += 1
        if self._steps < self._until_look:
            return False
        self._until_look *= 2
        self.is_on = False
        return True
