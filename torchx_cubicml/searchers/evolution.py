"""Evolution of configs: parents of high score, children by crossing and mutation, then a climb from the best.

After regularised evolution (Real et al., arXiv 1802.01548) in kind; the moves know that layers of one parameter belong
together (``moves``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import Ranking
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.moves import Moves, Vector

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config


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

    def starting_at(self, start: tuple[Config, ...]) -> Self:
        """Return this searcher with another start."""
        return replace(self, start=start)

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best configs met; see ``Searcher``."""
        budget = max(self.children * self.generations, 2 * count)
        if space.size(limit=budget + 1) <= budget:
            return Exhaustive().search(space, score, count=count, rng=rng)
        ranking = Ranking(score)
        moves = Moves(space.dimensions)
        ranking.add([*legal(space, self.start), *space.sample(self.population, rng=rng)])
        for _ in range(self.generations):
            parents = [space.encode(config) for config in ranking.best(self.population)]
            ranking.add(decoded(space, self._children(parents, moves, rng)))
        for _ in range(self.climbs):
            tops = [space.encode(config) for config in ranking.best(self.climbers)]
            known = len(ranking)
            ranking.add(decoded(space, (near for top in tops for near in moves.neighbours(top, rng))))
            if len(ranking) == known:
                break
        while len(ranking) < count:
            ranking.add(space.sample(count, rng=rng))
        return ranking.best(count)

    def _children(self, parents: list[Vector], moves: Moves, rng: np.random.Generator) -> list[Vector]:
        if not parents:
            return []
        made = []
        for _ in range(self.children):
            # The lower of two draws: the better a parent stands, the more children it has.
            one, other = (parents[int(rng.integers(len(parents), size=2).min())] for _ in range(2))
            child = moves.cross(one, other, rng) if rng.random() < 0.5 else one
            made.append(moves.mutate(child, rng))
        return made


def legal(space: SearchSpace, configs: Iterable[Config]) -> list[Config]:
    """Return those of ``configs`` that are legal, in the literals of the space."""
    found = []
    for config in configs:
        try:
            vector = space.encode(config)
        except SpaceError:
            continue
        found += decoded(space, [vector])
    return found


def decoded(space: SearchSpace, vectors: Iterable[Vector]) -> list[Config]:
    """Return the configs of those vectors that are legal, each once."""
    return [config for vector in dict.fromkeys(vectors) if (config := space.decode(vector)) is not None]
