"""Rows of choice indices scored so far, each once: what a searcher that changes rows climbs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import scores_of
from torchx_cubicml.vectors import config_at, distinct_rows, drawn_rows, legal_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config


class RowRanking:
    """All legal rows met so far and their scores.

    Args:
        space: bound.
        score: what is maximised.
    """

    def __init__(self, space: SearchSpace, score: Score) -> None:
        self._space, self._score = space, score
        self._known: set[bytes] = set()
        self._rows = np.empty((0, len(space.dimensions)), dtype=np.intp)
        self._scores = np.empty(0)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, vectors: NDArray[np.intp]) -> None:
        """Score those of ``vectors`` ``[n, n_dimensions]`` that are legal and new."""
        rows = as_legal(self._space, vectors)
        first, _ = distinct_rows(rows)
        rows = rows[np.sort(first)]
        fresh = rows[[row.tobytes() not in self._known for row in rows]]
        if len(fresh):
            self._known.update(row.tobytes() for row in fresh)
            scores = np.asarray(scores_of(self._space, self._score, fresh), dtype=np.float64)
            self._rows = np.vstack([self._rows, fresh])
            self._scores = np.concatenate(
                [self._scores, np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)]
            )

    def draw(self, count: int, rng: np.random.Generator) -> None:
        """Score ``count`` legal rows drawn uniformly."""
        self.add(drawn_rows(self._space, count, rng=rng))

    def best(self, count: int) -> NDArray[np.intp]:
        """Return up to ``count`` rows, best first, ``[n, n_dimensions]``; equal scores as they came."""
        order = np.argsort(-self._scores, kind="stable")[:count]
        return self._rows[order[self._scores[order] > -np.inf]]

    def configs(self, count: int) -> list[Config]:
        """Return the configs of ``best``."""
        return [config_at(self._space, row) for row in self.best(count)]


def as_legal(space: SearchSpace, vectors: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows that are legal, those that choose for an idle parameter with its first choice instead.

    Args:
        space: bound.
        vectors: choice index per dimension, ``[n, n_dimensions]``, each in the range of its dimension.
    """
    legal = legal_rows(space, vectors)
    if legal.all() or not any(item.when is not None for item in space.parameters):
        return vectors[legal]
    others = (space.decode(vector.tolist()) for vector in vectors[~legal])
    mended = [space.encode(config) for config in others if config is not None]
    return np.vstack([vectors[legal], np.array(mended, dtype=np.intp).reshape(-1, vectors.shape[1])])


def rows_of(space: SearchSpace, configs: Iterable[Config]) -> NDArray[np.intp]:
    """Return the rows of those of ``configs`` that are legal, ``[n, n_dimensions]``."""
    rows = []
    for config in configs:
        try:
            rows.append(space.encode(config))
        except SpaceError:
            continue
    return as_legal(space, np.array(rows, dtype=np.intp).reshape(len(rows), len(space.dimensions)))
