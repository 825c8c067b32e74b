"""Searchers: one Protocol in ``base``, one file per method, and the dict that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import Score, Searcher, WarmStartable
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.random import Random
from torchx_cubicml.searchers.reinforce import Reinforce

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.records.values import Config

SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "random": Random,
    "exhaustive": Exhaustive,
    "reinforce": Reinforce,
    "evolution": Evolution,
}
"""Name of a method -> factory with its default settings."""


def searcher_named(name: str, *, start: tuple[Config, ...] = ()) -> Searcher:
    """Return the searcher ``name`` with its default settings.

    Args:
        name: key of ``SEARCHERS``.
        start: configs known to be good, for a warm-started searcher.

    Raises:
        SpaceError: the name is unknown.
    """
    if name not in SEARCHERS:
        raise SpaceError(f"unknown searcher {name!r}; choose from {', '.join(SEARCHERS)}")
    searcher = SEARCHERS[name]()
    return searcher.with_start(start) if isinstance(searcher, WarmStartable) else searcher


__all__ = ["SEARCHERS", "Score", "Searcher", "searcher_named"]
