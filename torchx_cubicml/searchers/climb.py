"""A climb from configs that are known to be good: all their neighbours, again and again from the best met.

For scores whose summits lie near what was measured, such as expected improvement under a Gaussian process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.searchers.base import Ranking
from torchx_cubicml.searchers.evolution import decoded, legal
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.moves import Moves, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config

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

    def starting_at(self, start: tuple[Config, ...]) -> Self:
        """Return this searcher with another start."""
        return replace(self, start=start)

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best configs met; see ``Searcher``."""
        if space.size(limit=_LISTED + 1) <= _LISTED:
            return Exhaustive().search(space, score, count=count, rng=rng)
        ranking = Ranking(score)
        moves = Moves(space.dimensions)
        begin = legal(space, self.start)
        ranking.add([*begin, *space.sample(self.draws, rng=rng)])
        climbed: set[Vector] = set()
        tops = [space.encode(config) for config in begin] or self._tops(space, ranking, climbed)
        mixed = (moves.mix(tops[int(rng.integers(len(tops)))], rng) for _ in range(3 * self.draws if tops else 0))
        ranking.add(decoded(space, mixed))
        for _ in range(self.rounds):
            climbed.update(tops)
            ranking.add(decoded(space, (near for top in tops for near in self._around(top, tops, moves, rng))))
            tops = self._tops(space, ranking, climbed)
            if not tops:
                break
        while len(ranking) < count:
            ranking.add(space.sample(count, rng=rng))
        return ranking.best(count)

    def _tops(self, space: SearchSpace, ranking: Ranking, climbed: set[Vector]) -> list[Vector]:
        best = [space.encode(config) for config in ranking.best(self.climbers)]
        return [vector for vector in best if vector not in climbed]

    def _around(self, top: Vector, tops: Sequence[Vector], moves: Moves, rng: np.random.Generator) -> Iterator[Vector]:
        yield from moves.neighbours(top, rng)
        for _ in range(self.strays):
            yield moves.mutate(top, rng)
        for other in tops:
            yield moves.cross(top, other, rng)
