"""Rows of choice indices with their scores: a searcher's archive, which scores each row once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import scores_of
from torchx_cubicml.space.encoding import config_at, drawn_rows, legal_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace


class ScoredRows:
    """Archive of all legal rows scored so far.

    A row's number is its position in the order of scoring.

    Args:
        space: bound.
        score: function to maximise.
    """

    def __init__(self, space: SearchSpace, score: Score) -> None:
        self._space, self._score = space, score
        self._numbers: dict[bytes, int] = {}
        self._rows: list[NDArray[np.intp]] = []
        self._scores: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, vectors: NDArray[np.intp]) -> None:
        """Score those of ``vectors`` ``[n, n_dimensions]`` that are legal and new."""
        self.numbers(as_legal(self._space, vectors))

    def numbers(self, vectors: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the number of each of the legal ``vectors``, ``[n]``; new ones are scored first.

        Args:
            vectors: ``[n, n_dimensions]``.
        """
        keys = [row.tobytes() for row in vectors]
        new = []
        for index, key in enumerate(keys):
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers)
                new.append(index)
        if new:
            self._rows.extend(vectors[new])
            scores = np.asarray(scores_of(self._space, self._score, vectors[new]), dtype=np.float64)
            self._scores.extend(np.where(np.isnan(scores), -np.inf, scores).tolist())
        return np.array([self._numbers[key] for key in keys], dtype=np.intp)

    def scores(self, numbers: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the scores of the rows of these ``numbers``, ``[n]``; ``-inf`` where the score was NaN."""
        return np.array([self._scores[number] for number in numbers.tolist()], dtype=np.float64)

    def rows(self, numbers: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows of these ``numbers``, ``[n, n_dimensions]``."""
        rows = [self._rows[number] for number in numbers.tolist()]
        return np.array(rows, dtype=np.intp).reshape(len(rows), len(self._space.dimensions))

    def order(self) -> NDArray[np.intp]:
        """Return the numbers of all rows that may be proposed, best first; ties in the order of scoring."""
        scores = np.array(self._scores, dtype=np.float64)
        order = np.argsort(-scores, kind="stable")
        return order[scores[order] > -np.inf]

    def draw(self, count: int, rng: np.random.Generator) -> None:
        """Score ``count`` legal rows drawn uniformly.

        Raises:
            SpaceError: no legal row was found, and the archive is empty.
        """
        try:
            self.add(drawn_rows(self._space, count, rng=rng))
        except SpaceError:
            if not len(self):
                raise

    def fill(self, count: int, rng: np.random.Generator, *, at_once: int = 0) -> None:
        """Draw until ``count`` rows are scored, or a draw of ``at_once`` rows (default ``count``) adds none.

        The number of legal rows is not always known: a space too large to count may have few.
        """
        while len(self) < count:
            n_before = len(self)
            self.draw(at_once or count, rng)
            if len(self) == n_before:
                return

    def best(self, count: int) -> NDArray[np.intp]:
        """Return up to ``count`` rows, best first, ``[n, n_dimensions]``; ties in the order of scoring."""
        return self.rows(self.order()[:count])

    def configs(self, count: int) -> list[Config]:
        """Return up to ``count`` configs, best first; see ``best``."""
        return [config_at(self._space, row) for row in self.best(count)]


def as_legal(space: SearchSpace, vectors: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the legal rows, with the choices of idle parameters set to their first.

    Args:
        space: bound.
        vectors: choice index per dimension, ``[n, n_dimensions]``, each in the range of its dimension.
    """
    legal = legal_rows(space, vectors)
    if legal.all() or not any(item.when is not None for item in space.parameters):
        return vectors[legal]
    others = (space.decode(vector.tolist()) for vector in vectors[~legal])
    repaired = [space.encode(config) for config in others if config is not None]
    return np.vstack([vectors[legal], np.array(repaired, dtype=np.intp).reshape(len(repaired), vectors.shape[1])])


def rows_of(space: SearchSpace, configs: Iterable[Config]) -> NDArray[np.intp]:
    """Return the rows of those of ``configs`` that are legal, ``[n, n_dimensions]``."""
    rows = []
    for config in configs:
        try:
            rows.append(space.encode(config))
        except SpaceError:
            continue
    return as_legal(space, np.array(rows, dtype=np.intp).reshape(len(rows), len(space.dimensions)))
