"""Interface of searchers, and the scores that they maximise.

To add a searcher, write one module beside this one and name it in ``SEARCHERS`` of ``searchers/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from torchx_cubicml.records.values import Config
from torchx_cubicml.space.encoding import config_at

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torchx_cubicml.space import SearchSpace

Score: TypeAlias = Callable[[Sequence[Config]], NDArray[np.float64]]
"""Maps ``n`` configs to their scores, float64 ``[n]``: higher is better, ``-inf`` (or NaN) is never proposed."""


@runtime_checkable
class VectorScore(Protocol):
    """A ``Score`` that also accepts configs as rows of choice indices, much cheaper for many of them."""

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Return the scores of configs, float64 ``[n]``; see ``Score``."""

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the scores of legal rows of the space searched, float64 ``[n]``; equal to those of their configs.

        Args:
            vectors: choice index per dimension, ``[n, n_dimensions]``; see ``torchx_cubicml.space.encoding``.
        """


def scores_of(space: SearchSpace, score: Score, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the scores of legal rows, float64 ``[n]``, whether ``score`` accepts rows or configs alone."""
    if isinstance(score, VectorScore):
        return score.of_vectors(vectors)
    return score([config_at(space, vector) for vector in vectors])


def has_at_most(space: SearchSpace, most: int) -> bool:
    """Return whether a space has at most so many legal configs; a space too large to count has more."""
    return space.size(limit=most + 1) <= most


class Searcher(Protocol):
    """A search algorithm that proposes configs of high score.

    The advisor calls it once per suggestion, or for a whole batch once per surrogate, with a space bound to one
    workload. It keeps nothing between calls. It must never change the space or the configs, score a config that is not
    legal, or draw randomness from anything but ``rng``. The score is a black box.
    """

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return up to ``count`` distinct legal configs, best first.

        Args:
            space: legal configs; it can be far too large to list.
            score: function to maximise; it is called with batches, the larger the cheaper per config.
            count: maximum number of proposals, >= 1; a smaller space gives all its configs.
            rng: the only source of randomness.
        """


@runtime_checkable
class WarmStartable(Protocol):
    """A searcher with a warm start at configs known to be good."""

    def with_start(self, start: tuple[Config, ...]) -> Searcher:
        """Return this searcher with another start."""


def identity(config: Config) -> Hashable:
    """Return a hashable key of a config, equal for equal configs in any order of names."""
    return tuple(sorted(config.items()))
