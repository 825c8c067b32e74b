"""What is looked for at a place of a command, and the interface of a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Scalar, Value
    from torchx_cubicml.space import Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingQuery:
    """What is looked for at a place.

    Args:
        owner: whose value it is, for messages.
        choices: legal values, of one entry where there are several.
        default: what the script does where the command does not say; ``None`` where unknown.
        count: entries of a per-layer value; ``None`` for a single value.
        may_be_idle: whether it counts only while a condition holds.
        flags: every flag that the space declares, so that none is taken for an abbreviation of another.
    """

    owner: str
    choices: tuple[Scalar, ...] = ()
    default: Value | None = None
    count: int | None = None
    may_be_idle: bool = False
    flags: frozenset[str] = frozenset()


class BindingIO(Protocol):
    """A kind of place where a value stands, without state of its own."""

    def says(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> bool:
        """Whether a launch says a value there, or what it means that it does not is known."""

    def read(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> Value:
        """Return the value that a launch has there.

        Raises:
            LaunchError: none is there and no default is known, or it is no legal kind of value.
        """

    def write(self, launch: Launch, binding: Binding, wanted: BindingQuery, value: Value) -> Launch:
        """Return the launch with another value there, everything else as it was.

        Raises:
            LaunchError: the place cannot say the value.
        """
