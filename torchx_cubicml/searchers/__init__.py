"""Searchers: one Protocol in ``base``, one file per method, and the dict that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.searchers.base import Score, Searcher
from torchx_cubicml.searchers.climb import Climb
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.random import Random
from torchx_cubicml.searchers.reinforce import Reinforce

if TYPE_CHECKING:
    from collections.abc import Callable

SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "random": Random,
    "exhaustive": Exhaustive,
    "reinforce": Reinforce,
    "evolution": Evolution,
    "climb": Climb,
}
"""Name of a method -> how to make one with its default settings."""

__all__ = ["SEARCHERS", "Score", "Searcher"]
