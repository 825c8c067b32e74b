"""Optimizers that step beside the leading one, or come in its place: whether they take over, and of what training."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.inspection import parameters_of
from torchx_cubicml.recorder.model.layers import holds_all

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.steps.forwards import Forwards

_STEPS_OF_A_STRANGER = 8  # without one of the leading optimizer: it leads no more
_STEPS_UNTIL_LOOK = 64  # of a training that is counted alone, which is long then; each time twice as many


class Strangers:
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


class Trained:
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
