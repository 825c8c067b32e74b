"""A climb from configs that are known to be good: all their neighbours, again and again from the best met.

For scores whose summits lie near what was measured, such as expected improvement under a Gaussian process.
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

_LISTED = 2000  # legal configs that are rather listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Climbs to the summits near ``start``.

    Args:
        start: configs known to be good; legal ones count.
        draws: random configs among which the climb begins too, and thrice as many with layers mixed anew.
        rounds: steps at most.
        climbers: best configs from which each step is made.
        strays: random changes of each climber, besides its neighbours.
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
        """Return the best configs met; see ``Searcher``."""
        most = max(_LISTED, 2 * count)
        if space.size(limit=most + 1) <= most:
            return Exhaustive().search(space, score, count=count, rng=rng)
        ranking = ScoredRows(space, score)
        moves = Neighbourhood(space.dimensions)
        begin = rows_of(space, self.start)
        ranking.add(begin)
        ranking.draw(self.draws, rng)
        tops = begin if len(begin) else ranking.best(self.climbers)
        if len(tops):
            ranking.add(moves.mixed(tops[rng.integers(len(tops), size=3 * self.draws)], rng))
        climbed: set[bytes] = set()
        for _ in range(self.rounds):
            if not len(tops):
                break
            climbed.update(row.tobytes() for row in tops)
            ranking.add(np.vstack([self._around(top, tops, moves, rng) for top in tops]))
            best = ranking.best(self.climbers)
            tops = best[[row.tobytes() not in climbed for row in best]]
        ranking.fill(count, rng)
        return ranking.configs(count)

    def _around(self, top: Vectors, tops: Vectors, moves: Neighbourhood, rng: np.random.Generator) -> Vectors:
        strays = moves.mutated(np.repeat(top[None], self.strays, axis=0), rng)
        children = moves.crossed(np.repeat(top[None], len(tops), axis=0), tops, rng)
        return np.vstack([moves.neighbours(top, rng), strays, children])
