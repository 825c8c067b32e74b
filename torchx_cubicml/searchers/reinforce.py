"""The paper's searcher: one policy per parameter, trained by REINFORCE to sample configs of high score.

CubicML (arXiv 2409.04585), section on the searcher: a categorical policy for each parameter, and for each layer of a
layer-wise one, batches of samples scored by the predictor, a baseline, and Adam. Several searches with their own seeds
make the round of their best configs diverse. Here they run in parallel as one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.searchers.base import has_at_most
from torchx_cubicml.searchers.exhaustive import Exhaustive
from torchx_cubicml.searchers.policies import Policies
from torchx_cubicml.searchers.scored_rows import ScoredRows
from torchx_cubicml.space.encoding import config_at, distinct_rows, drawn_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """Several independent searches, each with its own policy.

    The defaults were chosen on the simulated spaces of ``benchmarks/lib/simulator.py``.

    Args:
        searches: independent ones in a round.
        batch: configs sampled from each policy at a time.
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
        """Return the best configs of all searches, best first; see ``Searcher``.

        The best of the remaining samples fill the rest.
        """
        budget = max(self.searches * self.batch * 4, 2 * count)
        if has_at_most(space, budget):
            return Exhaustive().search(space, score, count=count, rng=rng)
        samples = _Samples(space, score)
        policies = Policies(space, n_searches=self.searches, learning_rate=self.learning_rate)
        for _ in range(self.steps):
            drawn = policies.draw(self.batch, rng)
            policies.learn(drawn, advantages(samples.scores(drawn)), entropy=self.entropy)
        n_before = 0
        while n_before < len(samples) < count:  # policies that converged at once
            n_before = len(samples)
            samples.scores(drawn_rows(space, 2 * count, rng=rng)[None])
        return [config_at(space, vector) for vector in samples.tops(count, searches=self.searches)]


def advantages(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the advantages: scores minus the mean of their batch, in units of its spread, ``[n_searches, batch]``.

    A score that must not be proposed (``-inf``, NaN) counts as the worst of its batch less half the batch's range.

    >>> advantages(np.array([[1.0, 2.0, 3.0]])).round(2).tolist()
    [[-1.22, 0.0, 1.22]]
    """
    some_known = np.isfinite(scores).any(axis=1, keepdims=True)
    scores = np.where(some_known, scores, np.zeros_like(scores))  # where none is known, all are alike
    known = np.isfinite(scores)
    worst = np.where(known, scores, np.inf).min(axis=1, keepdims=True)
    width = np.where(known, scores, -np.inf).max(axis=1, keepdims=True) - worst
    filled = np.where(known, scores, worst - np.where(width > 0, 0.5 * width, 1.0))
    centred = filled - filled.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    return np.asarray(centred / np.where(spread > 0, spread, 1.0), dtype=np.float64)


class _Samples:
    """All rows sampled so far, with the search that first sampled each."""

    def __init__(self, space: SearchSpace, score: Score) -> None:
        self._scored = ScoredRows(space, score)
        self._first_search: list[int] = []

    def __len__(self) -> int:
        return len(self._scored)

    def scores(self, drawn: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the scores, ``[n_searches, count]``, of legal rows ``[n_searches, count, n_dimensions]``."""
        rows, n_known = np.vstack(list(drawn)), len(self)
        first, which = distinct_rows(rows)
        numbers = self._scored.numbers(rows[first])
        self._first_search.extend((first[numbers >= n_known] // drawn.shape[1]).tolist())
        return self._scored.scores(numbers)[which].reshape(drawn.shape[:2])

    def tops(self, count: int, *, searches: int) -> NDArray[np.intp]:
        """Return rows, best first: an equal share of the best of each search, then the best of the rest."""
        order = self._scored.order()
        finder = np.array(self._first_search, dtype=np.intp)[order]
        share = -(-count // searches)
        own = np.zeros(len(order), dtype=np.bool_)
        for search in range(searches):
            own[np.flatnonzero(finder == search)[:share]] = True
        chosen = np.sort(np.concatenate([np.flatnonzero(own), np.flatnonzero(~own)])[:count])
        return self._scored.rows(order[chosen])
