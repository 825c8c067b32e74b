"""Evolution of configs: parents of high score, children by crossing and mutation, then a climb from the best.

After the evolution of Real et al. (arXiv 1802.01548) in kind, but nothing ages: the best ever met stay parents. The
moves know that layers of one parameter belong together (``neighbourhood``).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """Evolves a population, then climbs to the nearest summits.

    Args:
        population: parents kept.
        children: configs made in each generation.
        generations: how many.
        climbers: best configs from which a climb starts.
        climbs: steps of a climb at most, each to the best neighbour.
        start: configs known to be good, which the first population holds where they are legal.
    """

    population: int = 60
    children: int = 150
    generations: int = 12
    climbers: int = 4
    climbs: int = 5
    start: tuple[Config, ...] = ()

    def with_start(self, start: tuple[Config, ...]) -> Self:
        """Return this searcher with another start."""
        return replace(self, start=start)

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best configs met; see ``Searcher``."""
        budget = max(self.children * self.generations, 2 * count)
        if space.size(limit=budget + 1) <= budget:
            return Exhaustive().search(space, score, count=count, rng=rng)
        ranking = ScoredRows(space, score)
        moves = Neighbourhood(space.dimensions)
        ranking.add(rows_of(space, self.start))
        ranking.draw(self.population, rng)
        for _ in range(self.generations):
            ranking.add(self._children(ranking.best(self.population), moves, rng))
        for _ in range(self.climbs):
            tops, known = ranking.best(self.climbers), len(ranking)
            if len(tops):
                ranking.add(np.vstack([moves.neighbours(top, rng) for top in tops]))
            if len(ranking) == known:
                break
        ranking.fill(count, rng)
        return ranking.configs(count)

    def _children(self, parents: Vectors, moves: Neighbourhood, rng: np.random.Generator) -> Vectors:
        if not len(parents):
            return parents
        # The lower of two draws: the better a parent stands, the more children it has.
        ones, others = (parents[rng.integers(len(parents), size=(self.children, 2)).min(axis=1)] for _ in range(2))
        crossed = moves.crossed(ones, others, rng)
        return moves.mutated(np.where(rng.random((self.children, 1)) < 0.5, crossed, ones), rng)
