"""The paper's searcher: a policy per parameter, taught by REINFORCE to draw configs of high score.

CubicML (arXiv 2409.04585), section on the searcher: a categorical policy for each parameter, and for each layer of a
layer-wise one, batches of draws scored by the predictor, a baseline, Adam; several searches with seeds of their own,
so that the round that their tops make up is diverse. Here they run side by side as one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.policies import Policies
from torchx_cubicml.searchers.scored_rows import ScoredRows
from torchx_cubicml.space.encoding import config_at, distinct_rows, drawn_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """Several searches, each with a policy of its own.

    The defaults were chosen on the simulated spaces of ``benchmarks/simulator.py``.

    Args:
        searches: independent ones in a round.
        batch: configs drawn from each policy at a time.
        steps: batches.
        learning_rate: of Adam.
        entropy: weight of the policies' entropy beside the advantages, whose spread is 1.
    """

    searches: int = 8
    batch: int = 64
    steps: int = 120
    learning_rate: float = 0.1
    entropy: float = 0.01

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the tops of all searches, best first, filled up with the best of what was drawn; see ``Searcher``."""
        budget = max(self.searches * self.batch * 4, 2 * count)
        if space.size(limit=budget + 1) <= budget:
            return Exhaustive().search(space, score, count=count, rng=rng)
        met = _Drawn(space, score)
        policies = Policies(space, n_searches=self.searches, learning_rate=self.learning_rate)
        for _ in range(self.steps):
            drawn = policies.draw(self.batch, rng)
            policies.learn(drawn, advantages(met.scores(drawn)), entropy=self.entropy)
        known = 0
        while known < len(met) < count:  # policies that settled at once
            known = len(met)
            met.scores(drawn_rows(space, 2 * count, rng=rng)[None])
        return [config_at(space, vector) for vector in met.tops(count, searches=self.searches)]


def advantages(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores against the mean of their batch, in units of its spread, ``[n_searches, batch]``.

    What must not be proposed (``-inf``, NaN) lies as far below the worst of its batch as that below the middle.

    >>> advantages(np.array([[1.0, 2.0, 3.0]])).round(2).tolist()
    [[-1.22, 0.0, 1.22]]
    """
    known = np.isfinite(scores)
    worst = np.where(known, scores, np.inf).min(axis=1, keepdims=True)
    best = np.where(known, scores, -np.inf).max(axis=1, keepdims=True)
    width = np.where(np.isfinite(worst), best, 0.0) - np.where(np.isfinite(worst), worst, 0.0)
    fallen = np.where(np.isfinite(worst), worst, 0.0) - np.where(width > 0, 0.5 * width, 1.0)
    level = np.where(known, scores, fallen)
    centred = level - level.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    return np.asarray(centred / np.where(spread > 0, spread, 1.0), dtype=np.float64)


class _Drawn:
    """All rows drawn so far, and the search that was the first to draw each."""

    def __init__(self, space: SearchSpace, score: Score) -> None:
        self._ranking = ScoredRows(space, score)
        self._finder: list[int] = []

    def __len__(self) -> int:
        return len(self._ranking)

    def scores(self, drawn: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the scores of legal rows ``[n_searches, count, n_dimensions]``, ``[n_searches, count]``."""
        rows, n_known = drawn.reshape(-1, drawn.shape[2]), len(self)
        first, which = distinct_rows(rows)
        numbers = self._ranking.numbers(rows[first])
        self._finder.extend((first[numbers >= n_known] // drawn.shape[1]).tolist())
        return self._ranking.scores(numbers)[which].reshape(drawn.shape[:2])

    def tops(self, count: int, *, searches: int) -> NDArray[np.intp]:
        """Return rows, best first: an equal number of tops of each search, and the best of the rest to make it up."""
        order = self._ranking.order()
        finder = np.array(self._finder, dtype=np.intp)[order]
        share = -(-count // searches)
        own = np.zeros(len(order), dtype=np.bool_)
        for search in range(searches):
            own[np.flatnonzero(finder == search)[:share]] = True
        chosen = np.sort(np.concatenate([np.flatnonzero(own), np.flatnonzero(~own)])[:count])
        return self._ranking.rows(order[chosen])
