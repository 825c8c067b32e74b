"""Encoding of configs as rows of choice indices, for checks and conversions of many configs at once.

A config of a hundred layers is a row of a hundred small integers. A rule is evaluated once for each combination of
choices that occurs among the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace


def legal_rows(
    space: SearchSpace, vectors: NDArray[np.intp], *, within: Collection[int] | None = None
) -> NDArray[np.bool_]:
    """Return the mask of legal rows of choice indices in a bound space, bool ``[n]``.

    Only the first choice for an idle parameter is legal, so that each config is one row.

    Args:
        space: a bound space.
        vectors: choice index per dimension, ``[n, n_dimensions]``, each in the range of its dimension.
        within: dimensions; rules that read others are skipped. By default all rules count.
    """
    legal = np.ones(len(vectors), dtype=np.bool_)
    for check in space.legal.choices.checks:
        if within is not None and not check.dimensions <= set(within):
            continue
        reads = sorted(check.dimensions)
        first, inverse = distinct_rows(vectors[:, reads])
        holds = np.array([check.holds(vectors[row].tolist()) for row in first.tolist()], dtype=np.bool_)
        legal &= holds[inverse]
    return legal


def drawn_rows(space: SearchSpace, count: int, *, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return ``count`` legal rows, each drawn uniformly; see ``SearchSpace.sample``."""
    drawn = space.legal.choices.draw(count, rng)
    return np.array(drawn, dtype=np.intp).reshape(count, len(space.dimensions))


def config_at(space: SearchSpace, vector: NDArray[np.intp]) -> Config:
    """Return the config at one legal row.

    Raises:
        SpaceError: the row is not legal.
    """
    config = space.decode(vector.tolist())
    if config is None:
        raise SpaceError(f"the choices {vector.tolist()!r:.80} are not a legal config")
    return config


def distinct_rows(table: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the index of each distinct row's first occurrence, and for every row the index of its distinct row.

    >>> first, which = distinct_rows(np.array([[2, 0], [1, 1], [2, 0]]))
    >>> first.tolist(), which.tolist()
    ([1, 0], [1, 0, 1])
    """
    if not table.shape[1]:
        return np.zeros(min(len(table), 1), dtype=np.intp), np.zeros(len(table), dtype=np.intp)
    key, room = np.zeros(len(table), dtype=np.int64), 1
    for column in table.T:  # as digits of one number, while there is room for another digit
        size = int(column.max(initial=0)) + 1
        if room * size >= 2**62:
            _, key = np.unique(key, return_inverse=True)
            room = len(table)
        key, room = key * size + column, room * size
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def vectors_of(space: SearchSpace, configs: Collection[Config]) -> NDArray[np.intp]:
    """Return the choice indices of configs of the space, ``[n, n_dimensions]``.

    Raises:
        SpaceError: a config has a value that is not among the space's choices.
    """
    rows = [space.encode(config) for config in configs]
    return np.array(rows, dtype=np.intp).reshape(len(rows), len(space.dimensions))
