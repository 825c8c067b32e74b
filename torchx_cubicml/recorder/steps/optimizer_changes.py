"""Changes of the optimizer within a run: replacements, additional optimizers, and optimizers without a hook."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.inspection import parameters_of
from torchx_cubicml.recorder.model.keyed_optimizers import KeyedOptimizers
from torchx_cubicml.recorder.model.layers import contains_all
from torchx_cubicml.recorder.model.live_objects import live_instances

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.steps.forwards import Forwards


def on_every_compilation(begin: Callable[..., None], end: Callable[..., None]) -> None:
    """Run ``begin`` before and ``end`` after each compilation, if this torch has such callbacks; neither may raise.

    Newer torch passes them an event, older torch nothing.
    """
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    for name, call in (("register_start_callback", begin), ("register_end_callback", end)):
        register = getattr(handler, name, None)
        if register is not None:
            register(call)


class UnhookedOptimizers:
    """Search for an optimizer that has stepped, or is about to, without calling a hook: a compiled one."""

    def __init__(self) -> None:
        self._stateless: list[tuple[weakref.ref[Optimizer], UnhookedSteps]] = []

    def find(self) -> Optimizer | None:
        """Return such an optimizer; ``None`` without one.

        State shows that an optimizer has stepped or is about to. A stateless one, such as plain SGD, has stepped if its
        parameter was written since the last call.
        """
        from torch.optim import Optimizer

        written = [optimizer() for optimizer, quiet in self._stateless if quiet.has_stepped()]
        keyed = KeyedOptimizers()
        plain = [each for each in live_instances(Optimizer) if not keyed[type(each)]]
        found = [each for each in plain if _trained_parameters(each)]
        self._stateless = [(weakref.ref(each), UnhookedSteps(each)) for each in found if not each.state]
        quiet = [each for each in found if each.state or any(each is other for other in written)]
        return quiet[0] if quiet else None


class UnhookedSteps:
    """Step detector for an optimizer without a hook, by the version of one parameter.

    Args:
        optimizer: owner of the parameter.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._parameter = weakref.ref(_trained_parameters(optimizer)[0])
        self._version = self._now()

    def has_stepped(self) -> bool:
        """Return whether the parameter was written since the last call."""
        before, self._version = self._version, self._now()
        return self._version != before

    def _now(self) -> int:
        parameter = self._parameter()
        return parameter._version if parameter is not None else -1


def _trained_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


_STEPS_TO_REPLACE = 8  # of another optimizer, without one of the leading optimizer in between
_TURNS = 3  # after which a second optimizer belongs to the training
_STEPS_UNTIL_INSPECTION = 64  # steps of a count-only training until it is inspected; doubles each time


class _Turns:
    """Turns of one optimizer: its steps between two of the leading one are one turn."""

    def __init__(self, optimizer: weakref.ref[Optimizer]) -> None:
        self.optimizer = optimizer
        self._count, self._latest, self.steps = 0, -1, 0

    def note(self, turn: int) -> None:
        self.steps = self.steps + 1 if turn == self._latest else 1
        self._count += turn != self._latest
        self._latest = turn

    def has_just_begun(self, count: int) -> bool:
        return self._count == count and self.steps == 1

    def is_first(self, turn: int) -> bool:
        return self._count == 1 and self._latest == turn


class OtherOptimizers:
    """Steps of other optimizers since the last step of the leading one; ``steps`` is their number."""

    def __init__(self) -> None:
        self.steps = 0
        self._candidate: weakref.ref[Optimizer] | None = None
        self._candidate_steps = 0
        self._turn = 0
        self._turns: dict[int, _Turns] = {}

    def saw(self, optimizer: Optimizer) -> bool:
        """Note a step; return whether this optimizer has replaced the leading one."""
        self.steps += 1
        self._note_turn(optimizer)
        if self._candidate is None or self._candidate() is None:
            self._candidate, self._candidate_steps = weakref.ref(optimizer), 0
        if self._candidate() is not optimizer:
            return False
        self._candidate_steps += 1
        return self._candidate_steps >= _STEPS_TO_REPLACE

    def takes_turns(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has just begun the third of its turns, each after a step of the leading one."""
        known = self._turns.get(id(optimizer))
        return known is not None and known.optimizer() is optimizer and known.has_just_begun(_TURNS)

    def _note_turn(self, optimizer: Optimizer) -> None:
        known = self._turns.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            living = {key: each for key, each in self._turns.items() if each.optimizer() is not None}
            self._turns = {**living, id(optimizer): _Turns(weakref.ref(optimizer))}
        self._turns[id(optimizer)].note(self._turn)

    @property
    def short_steps(self) -> int:
        """Steps since the last one of the leading optimizer by optimizers that had not stepped before it.

        They are too few for another training, and a single one of an optimizer shows none.
        """
        return sum(each.steps for each in self._turns.values() if each.is_first(self._turn) and each.steps > 1)

    def forget(self) -> None:
        """Reset the candidate: another optimizer leads."""
        self._candidate, self._candidate_steps = None, 0

    def end(self) -> int:
        """Note a step of the leading optimizer; return the number of other steps since the last one."""
        steps, self.steps = self.steps, 0
        self._turn += 1
        self.forget()
        return steps


class OptimizerIdentity:
    """Class and parameters of an optimizer, held by weak references."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._class = type(optimizer)
        self._parameters = [weakref.ref(parameter) for parameter in parameters_of(optimizer)]

    def is_also_of(self, other: Optimizer, forwards: Forwards) -> bool:
        """Return whether another optimizer continues the same training.

        Args:
            other: optimizer that may have replaced this one.
            forwards: source of the model, where it was found.
        """
        if type(other) is not self._class:
            return False
        parameters, model = parameters_of(other), forwards.model
        ids = set(map(id, parameters))
        living = (reference() for reference in self._parameters)
        known = {id(each) for each in living if each is not None}
        if ids <= known or model is None or not forwards.is_whole:
            return bool(ids & known)
        return contains_all(model, parameters)


class UninspectedTraining:
    """State of a training beyond the inspection limit, of which only the steps are counted."""

    def __init__(self) -> None:
        self.is_on = False
        self.begun = 0  # trainings, without those that were inspected in the end
        self._steps = 0
        self._until_inspection = _STEPS_UNTIL_INSPECTION

    def begin(self) -> None:
        """Start to count the steps of a new training."""
        self.is_on, self._steps = True, 0
        self.begun += 1

    def is_long(self) -> bool:
        """Count a step; return whether the training is now long enough to be inspected."""
        self._steps += 1
        if self._steps < self._until_inspection:
            return False
        self._until_inspection *= 2
        self.is_on = False
        self.begun -= 1
        return True


def has_nonzero_rate(optimizer: Optimizer) -> bool:
    """Return whether a learning rate may be nonzero: a loader that fills the state by a step sets all to zero."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return any(not isinstance(rate, int | float) or rate != 0 for rate in rates)
