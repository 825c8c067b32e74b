"""Evolutionary search: crossover and mutation of high-scoring parents, then hill climbing from the best.

It resembles the evolution of Real et al. (arXiv 1802.01548), but without ageing: the best configs of all generations
stay parents. Mutations treat layers of one parameter as a group (``neighbourhood``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.searchers.base import has_at_most
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.neighbourhood import Neighbourhood
from torchx_cubicml.searchers.scored_rows import ScoredRows, rows_of

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.searchers.neighbourhood import Vectors
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """Evolves a population, then climbs to the nearest maxima.

    Args:
        population: parents kept.
        children: configs made in each generation.
        generations: number of generations.
        climbers: best configs from which a climb starts.
        climbs: maximum steps of a climb, each to the best neighbour.
        start: configs known to be good; the legal ones join the first population.
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
        """Return the best configs scored; see ``Searcher``."""
        budget = max(self.children * self.generations, 2 * count)
        if has_at_most(space, budget):
            return Exhaustive().search(space, score, count=count, rng=rng)
        scored = ScoredRows(space, score)
        moves = Neighbourhood(space.dimensions)
        scored.add(rows_of(space, self.start))
        scored.draw(self.population, rng)
        for _ in range(self.generations):
            scored.add(self._children(scored.best(self.population), moves, rng))
        for _ in range(self.climbs):
            tops, n_before = scored.best(self.climbers), len(scored)
            if len(tops):
                scored.add(np.vstack([moves.neighbours(top, rng) for top in tops]))
            if len(scored) == n_before:
                break
        scored.fill(count, rng)
        return scored.configs(count)

    def _children(self, parents: Vectors, moves: Neighbourhood, rng: np.random.Generator) -> Vectors:
        if not len(parents):
            return parents
        # Tournament selection: the better of two random ranks, so that better parents have more children.
        ones, others = (parents[rng.integers(len(parents), size=(self.children, 2)).min(axis=1)] for _ in range(2))
        crossed = moves.crossed(ones, others, rng)
        return moves.mutated(np.where(rng.random((self.children, 1)) < 0.5, crossed, ones), rng)
