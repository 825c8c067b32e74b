"""Optimizers of TorchRec ("keyed" by parameter name), whose steps are not those of the training."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

_ROUNDS = 2  # of TorchRec's optimizers, without a step of any other, until one of them counts


class KeyedOptimizers(dict[type, bool]):
    """Class of an optimizer -> whether TorchRec defines it: its step runs others, or ran within backward already.

    An optimizer of torch within it has hooks of its own, which count the steps. The optimizer of a fused kernel writes
    within backward. In a model of tables alone no other optimizer steps: there the outermost one counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_others = False
        self._round: list[weakref.ref[Optimizer]] = []  # in the order of their first steps
        self._rounds = 0

    def __missing__(self, kind: type) -> bool:
        """Find out for a class that has not stepped before."""
        bases = (each for each in kind.__mro__ if each.__name__ == "KeyedOptimizer")
        self[kind] = found = any(each.__module__.startswith("torchrec.") for each in bases)
        self._has_others = self._has_others or not found
        return found

    def skips(self, optimizer: Optimizer) -> bool:
        """Note a step of an optimizer of TorchRec; return whether it does not count.

        The outermost optimizer ends its step last, after those within it.
        """
        if self._has_others:
            return True
        living = [reference() for reference in self._round]
        if None in living:
            self._round, self._rounds, living = [], 0, []
        if not any(each is optimizer for each in living):
            self._round.append(weakref.ref(optimizer))
            return True
        self._rounds += optimizer is living[0] and self._rounds < _ROUNDS
        return self._rounds < _ROUNDS or optimizer is not living[-1]


def is_sharded_tensor(parameter: object) -> bool:
    """Return whether a parameter of a fused optimizer is a view of all shards, which no module holds."""
    return type(parameter).__name__ == "ShardedTensor"
