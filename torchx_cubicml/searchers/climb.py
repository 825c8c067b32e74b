"""Hill climbing (local search) from configs known to be good: score all neighbours, and repeat from the best.

It suits scores whose maxima are near the measured configs, such as expected improvement under a Gaussian process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.neighbourhood import Neighbourhood
from torchx_cubicml.searchers.scored_rows import ScoredRows, rows_of

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.searchers.neighbourhood import Vectors
    from torchx_cubicml.space import SearchSpace

_MAX_LISTED = 2000  # legal configs up to which a space is listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Local search for the maxima near ``start``.

    Args:
        start: configs known to be good; illegal ones are ignored.
        draws: random configs that also start the climb; three times as many are starts with resampled layers.
        rounds: maximum number of steps.
        climbers: best configs from which each step is made.
        strays: random mutations of each climber, besides its neighbours.
    """

    start: tuple[Config, ...] = ()
    draws: int = 100
    rounds: int = 6
    climbers: int = 4
    strays: int = 40

    def with_start(self, start: tuple[Config, ...]) -> Self:
        """Return this searcher with another start."""
        return replace(self, start=start)

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best configs scored; see ``Searcher``."""
        max_listed = max(_MAX_LISTED, 2 * count)
        if space.size(limit=max_listed + 1) <= max_listed:
            return Exhaustive().search(space, score, count=count, rng=rng)
        scored = ScoredRows(space, score)
        moves = Neighbourhood(space.dimensions)
        start = rows_of(space, self.start)
        scored.add(start)
        scored.draw(self.draws, rng)
        tops = start if len(start) else scored.best(self.climbers)
        if len(tops):
            scored.add(moves.mixed(tops[rng.integers(len(tops), size=3 * self.draws)], rng))
        expanded: set[bytes] = set()
        for _ in range(self.rounds):
            if not len(tops):
                break
            expanded.update(row.tobytes() for row in tops)
            scored.add(np.vstack([self._around(top, tops, moves, rng) for top in tops]))
            best = scored.best(self.climbers)
            tops = best[[row.tobytes() not in expanded for row in best]]
        scored.fill(count, rng)
        return scored.configs(count)

    def _around(self, top: Vectors, tops: Vectors, moves: Neighbourhood, rng: np.random.Generator) -> Vectors:
        strays = moves.mutated(np.repeat(top[None], self.strays, axis=0), rng)
        children = moves.crossed(np.repeat(top[None], len(tops), axis=0), tops, rng)
        return np.vstack([moves.neighbours(top, rng), strays, children])
