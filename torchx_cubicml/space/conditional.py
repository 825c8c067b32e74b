"""Parameters that count only while a condition holds, as ``when = "tp_degree > 1"`` says in a space file.

While it does not hold such a parameter is idle: it has one value, whatever was chosen for it, so that configs which
differ only there are one config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.space.arithmetic import truth
from torchx_cubicml.space.unknown import Unknown, postponed

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from torchx_cubicml.records.trial import Value
    from torchx_cubicml.space.expression import Expression


@dataclass(frozen=True, slots=True)
class Conditional:
    """What a parameter is: the value chosen or derived for it while a condition holds, else its idle value.

    Args:
        name: of the parameter.
        when: the condition.
        derive: expression of its value; ``None`` where it is chosen.
        idle: its value while the condition does not hold.
    """

    name: str
    when: Expression
    derive: Expression | None
    idle: Value

    @property
    def chosen(self) -> str:
        """The name under which the value chosen for it stands; no expression can read it."""
        return f"{self.name}, if used"

    @property
    def names(self) -> frozenset[str]:
        """The names that it reads."""
        return self.when.names | (self.derive.names if self.derive is not None else {self.chosen})

    @property
    def where(self) -> str:
        """Its place in a space file, for messages."""
        return self.when.where

    @property
    def source(self) -> str:
        """What it says, for messages."""
        then = self.derive.source if self.derive is not None else self.name
        return f"{then} while {self.when.source}"

    def counts(self, values: Mapping[str, Value | Unknown]) -> bool | Unknown:
        """Return whether the condition holds, or what is known of it while some of ``values`` are unknown.

        Raises:
            SpaceError: it cannot be calculated, or is neither true nor false.
        """
        holds = self.when.evaluate_partly(values)
        return holds if isinstance(holds, Unknown) else truth(holds, self.when.source)

    def evaluate_partly(self, values: Mapping[str, Value | Unknown]) -> Value | Unknown:
        """Return the value, or what is known of it.

        Raises:
            SpaceError: the condition, or the derived value while it holds, cannot be calculated.
        """
        counts = self.counts(values)
        if isinstance(counts, Unknown):
            then = Unknown(self.name) if self.derive is not None else values[self.chosen]
            return postponed("when", counts, then) or counts
        if not counts:
            return self.idle
        return values[self.chosen] if self.derive is None else self.derive.evaluate_partly(values)


@dataclass(frozen=True, slots=True)
class OneIdleChoice:
    """Of the choices for an idle parameter only the first is legal, so that each config is counted and drawn once.

    Args:
        conditional: the parameter, which is chosen.
        first: its value at the first choices.
    """

    conditional: Conditional
    first: Value

    def broken(self, values: Mapping[str, Value]) -> bool:
        """Whether the parameter is idle and has another than the first choice.

        Raises:
            SpaceError: the condition cannot be calculated.
        """
        return self.conditional.counts(values) is False and values[self.conditional.chosen] != self.first

    def remainder(self, values: Mapping[str, Value | Unknown]) -> Hashable | None:
        """Return what is left to decide while some of ``values`` are unknown, ``None`` where it is broken anyway.

        Raises:
            SpaceError: the condition cannot be calculated.
        """
        counts, chosen = self.conditional.counts(values), values[self.conditional.chosen]
        if counts is True:
            return ()
        if isinstance(chosen, Unknown):
            entry = self.first[0] if isinstance(self.first, tuple) else self.first
            differs = any(known != entry for known in chosen.entries)
        else:
            differs = chosen != self.first
        if isinstance(counts, Unknown):
            return (counts.key, differs)
        return None if differs else ("idle",)
