"""Uniform draws: the baseline that every other searcher must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.scored_rows import ScoredRows

if TYPE_CHECKING:
    import numpy as np

    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Scores configs drawn uniformly from the legal ones.

    Args:
        draws: how many; a space that holds no more is listed instead.
    """

    draws: int = 1000

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best of the draws; see ``Searcher``."""
        draws = max(self.draws, 2 * count)
        if space.size(limit=draws + 1) <= draws:
            return Exhaustive().search(space, score, count=count, rng=rng)
        ranking = ScoredRows(space, score)
        ranking.fill(draws // 2, rng, at_once=draws)  # repeats are rare in a space larger than the draws
        return ranking.configs(count)
