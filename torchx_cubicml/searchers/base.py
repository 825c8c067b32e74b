"""What every searcher offers, and the scores that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from torchx_cubicml.records.trial import Config
from torchx_cubicml.space.encoding import config_at

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torchx_cubicml.space import SearchSpace

Score: TypeAlias = Callable[[Sequence[Config]], NDArray[np.float64]]
"""Maps ``n`` configs to their scores, float64 ``[n]``: higher is better, ``-inf`` (or NaN) is never proposed."""


@runtime_checkable
class VectorScore(Protocol):
    """A ``Score`` that also takes configs as rows of choice indices, which is much cheaper for many of them."""

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Return the scores of configs, float64 ``[n]``; see ``Score``."""

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the scores of legal rows of the space searched, float64 ``[n]``; the same as of their configs.

        Args:
            vectors: choice index per dimension, ``[n, n_dimensions]``; see ``torchx_cubicml.space.encoding``.
        """


def scores_of(space: SearchSpace, score: Score, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the scores of legal rows, float64 ``[n]``, whether ``score`` takes rows or configs alone."""
    if isinstance(score, VectorScore):
        return score.of_vectors(vectors)
    return score([config_at(space, vector) for vector in vectors])


class Searcher(Protocol):
    """Proposes configs of high score.

    The advisor calls it for each suggestion, or for a whole batch once by each opinion on what configs are worth, with
    a space bound to one workload. It keeps nothing between calls, and must never change the space or the configs, score
    a config that is not legal, or draw randomness from anything but ``rng``. It cannot know what stands behind the
    score.
    """

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        """Return up to ``count`` distinct legal configs, best first.

        Args:
            space: legal configs; it can be far too large to list.
            score: what to maximise; it is called with batches, the larger the cheaper.
            count: how many proposals are wanted, >= 1; a smaller space gives all that it holds.
            rng: the only source of randomness.
        """


@runtime_checkable
class WarmStartable(Protocol):
    """A searcher that begins at configs known to be good."""

    def with_start(self, start: tuple[Config, ...]) -> Searcher:
        """Return this searcher with another start."""


def identity(config: Config) -> Hashable:
    """Return what two equal configs have in common, whatever the order of their names."""
    return tuple(sorted(config.items()))
