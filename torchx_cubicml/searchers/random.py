"""Random search: uniform samples, the baseline that every other searcher must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.searchers.base import has_at_most
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.scored_rows import ScoredRows

if TYPE_CHECKING:
    import numpy as np

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Scores configs sampled uniformly from the legal ones.

    Args:
        draws: number of samples; a space with no more legal configs is listed instead.
    """

    draws: int = 1000

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best of the samples; see ``Searcher``."""
        draws = max(self.draws, 2 * count)
        if has_at_most(space, draws):
            return Exhaustive().search(space, score, count=count, rng=rng)
        scored = ScoredRows(space, score)
        scored.fill(draws // 2, rng, at_once=draws)  # repeats are rare in a space larger than the draws
        return scored.configs(count)
