"""Exhaustive search of a space that is small enough to list."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import has_at_most, scores_of
from torchx_cubicml.space.encoding import config_at

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace

_BATCH = 4096  # configs scored at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustive:
    """Scores every legal config, streamed in batches.

    Args:
        limit: maximum number of legal configs.
    """

    limit: int = 1_000_000

    def check(self, space: SearchSpace) -> None:
        """Check that ``space`` can be listed.

        Raises:
            SpaceError: it has more configs than ``limit``.
        """
        if not has_at_most(space, self.limit):
            raise SpaceError(f"exhaustive search is limited to {self.limit} configs; use evolution for this space")

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return the best of all legal configs; see ``Searcher``.

        Raises:
            SpaceError: the space has more than ``limit``.
        """
        del rng  # the search is deterministic
        self.check(space)
        stream = space.legal.choices.vectors()
        best = np.empty((0, len(space.dimensions)), dtype=np.intp)
        scores = np.empty(0)
        while batch := list(islice(stream, _BATCH)):
            rows = np.array(batch, dtype=np.intp)
            found = scores_of(space, score, rows)
            best = np.vstack([best, rows])
            scores = np.concatenate([scores, np.where(np.isnan(found), -np.inf, found)])
            order = np.argsort(-scores, kind="stable")[:count]
            best, scores = best[order], scores[order]
        return [config_at(space, row) for row in best[scores > -np.inf]]
