"""How a batch is kept apart: what stands or falls together teaches once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.searchers.neighbourhood import ladder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.space import SearchSpace

_NEARNESS = 0.3  # log score that a twin of a config already in the batch loses
_NEAR = 0.1  # distance, as a share of the space's choices, over which that loss fades


def pick_apart(
    space: SearchSpace, pool: Sequence[Config], scores: NDArray[np.float64], *, count: int, taken: Sequence[Config]
) -> list[Config]:
    """Return ``count`` configs of high score that differ from one another and from ``taken``, best first.

    Args:
        space: bound; says what the configs' choices are.
        pool: configs to pick from.
        scores: of the pool, float64 ``[n]``, or several opinions that take turns, ``[n_opinions, n]``.
        count: how many at most.
        taken: configs under way.
    """
    if not pool:
        return []
    places = _places(space, pool)
    scores = np.atleast_2d(scores).copy()
    for place in _places(space, taken) if taken else ():
        scores -= _loss(places, place)
    picked = []
    for turn in range(min(count, len(pool))):
        top = int(np.argmax(scores[turn % len(scores)]))
        picked.append(pool[top])
        scores -= _loss(places, places[top])
        scores[:, top] = -np.inf
    return picked


def _loss(places: NDArray[np.float64], place: NDArray[np.float64]) -> NDArray[np.float64]:
    distance = np.abs(places - place).sum(axis=1)
    return np.asarray(_NEARNESS * np.exp(-distance / _NEAR), dtype=np.float64)


def _places(space: SearchSpace, configs: Sequence[Config]) -> NDArray[np.float64]:
    """Return where configs stand, ``[n, n_places]``, so that the sum of absolute differences is a distance in 0..1.

    Each parameter weighs alike; numbers differ by their ranks, other choices by being another.
    """
    chosen = np.array([space.encode(config) for config in configs], dtype=np.intp)
    names = [dimension.parameter for dimension in space.dimensions]
    columns = [np.empty((len(configs), 0))]
    for column, dimension in zip(chosen.T, space.dimensions, strict=True):
        weight = 1.0 / (len(set(names)) * names.count(dimension.parameter))
        rungs = ladder(dimension)
        if rungs is None:
            columns.append(0.5 * weight * np.eye(len(dimension.choices))[column])
        else:
            columns.append(weight * np.argsort(rungs)[column][:, None] / max(len(rungs) - 1, 1))
    return np.hstack(columns)
