"""Interface of a binding, and the query for the value at one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space import Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingQuery:
    """Query for the value at a binding.

    Args:
        owner: the parameter or fact that has the value, for messages.
        choices: legal values; for a per-layer value, of one entry.
        default: the script's value if the command states none; ``None`` if unknown.
        count: entries of a per-layer value; ``None`` for a single value.
        is_conditional: whether the value counts only while a condition holds.
        flags: every flag that the space declares, so that none is taken for an abbreviation of another.
    """

    owner: str
    choices: tuple[Scalar, ...] = ()
    default: Value | None = None
    count: int | None = None
    is_conditional: bool = False
    flags: frozenset[str] = frozenset()


class BindingIO(Protocol):
    """Reader and writer of one kind of binding, without state of its own."""

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether a launch states a value at the binding, or a default is known."""

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value that a launch has at the binding.

        Raises:
            LaunchError: there is neither a value nor a default, or the value is of an illegal kind.
        """

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with another value at the binding, and all else unchanged.

        Raises:
            LaunchError: the binding cannot express the value.
        """
