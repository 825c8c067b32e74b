"""Arithmetic in a space file: parsed to a syntax tree, evaluated exactly over a whitelist of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.trial import Scalar, Value


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Args:
        source: the text as the user wrote it.
        names: names that it reads.
    """

    source: str
    names: frozenset[str]

    def evaluate(self, values: Mapping[str, Value]) -> Scalar:
        """Return the exact value; an integral quotient is an ``int``.

        Raises:
            SpaceError: a name is missing, or an operation is not legal for the values.
        """
        raise NotImplementedError


def parse_expression(source: str, *, where: str) -> Expression:
    """Return the parsed expression; ``where`` names its place in messages.

    Raises:
        SpaceError: not an expression of the whitelist.
    """
    raise NotImplementedError
