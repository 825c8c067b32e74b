"""Categorical policies, one per dimension of a space, for several searches at once: legal samples and Adam steps.

Dimensions without a common constraint are sampled independently. Tied ones are sampled node by node through the diagram
of legal choices (``LegalChoices``), each choice weighted by the probability that a legal config follows. This is the
product of the policies conditioned on legality, without rejection.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.space.encoding import drawn_rows, legal_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.space import SearchSpace

_TRIES, _REPLACEMENTS = 5, 64  # rejection rounds, and uniform legal rows drawn at most to replace what is still illegal
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of Adam (arXiv 1412.6980)


class Policies:
    """Policies of ``n_searches`` independent searches over one bound space, uniform at first.

    Args:
        space: bound.
        n_searches: number of searches.
        learning_rate: of Adam.
    """

    def __init__(self, space: SearchSpace, *, n_searches: int, learning_rate: float) -> None:
        self.space = space
        self.sizes = np.array([len(dimension.choices) for dimension in space.dimensions], dtype=np.intp)
        self._learning_rate = learning_rate
        # Choices that a dimension lacks have zero probability, so that all dimensions share one table.
        lacks = np.arange(self.sizes.max()) >= self.sizes[:, None]
        self.logits = np.where(lacks, -np.inf, np.zeros((n_searches, *lacks.shape)))
        self._first_moment, self._second_moment = np.zeros_like(self.logits), np.zeros_like(self.logits)
        self._steps = 0
        ties = space.legal.choices.ties
        self._diagrams = [_LegalDiagram.of(dimensions, targets) for dimensions, targets in ties if targets is not None]
        tied = {dimension for dimensions, _ in ties for dimension in dimensions}
        self._without_diagram = [list(dimensions) for dimensions, targets in ties if targets is None]
        self._free = _grouped_by_size([d for d in range(len(self.sizes)) if d not in tied], self.sizes)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each choice, ``[n_searches, n_dimensions, n_choices]``; not conditioned on legality."""
        weights = np.exp(self.logits - self.logits.max(axis=2, keepdims=True))
        return np.asarray(weights / weights.sum(axis=2, keepdims=True), dtype=np.float64)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return ``count`` legal rows sampled from each search, ``[n_searches, count, n_dimensions]``."""
        probabilities = self.probabilities
        drawn = np.zeros((len(probabilities), count, len(self.sizes)), dtype=np.intp)
        for dimensions in self._free:
            weights = probabilities[:, dimensions, : self.sizes[dimensions[0]]]
            drawn[:, :, dimensions] = _pick(weights[:, None], rng.random((len(weights), count, len(dimensions))))
        for diagram in self._diagrams:
            diagram.draw(probabilities, drawn, rng)
        for dimensions in self._without_diagram:
            self._draw_by_rejection(dimensions, probabilities, drawn, rng)
        return drawn

    def learn(self, drawn: NDArray[np.intp], advantages: NDArray[np.float64], *, entropy: float) -> None:
        """Make one policy gradient step by REINFORCE (Williams, 1992): choices of positive advantage become likelier.

        The advantages of a search sum to zero. The second term of the gradient of the log probability, an expectation
        over legal configs, therefore drops out.

        Args:
            drawn: the rows sampled, ``[n_searches, count, n_dimensions]``.
            advantages: of each, ``[n_searches, count]``, centred for each search.
            entropy: weight of the policies' entropy, which prevents early convergence.
        """
        probabilities = self.probabilities
        gradient = np.zeros_like(probabilities)
        for choice in range(probabilities.shape[2]):
            gradient[:, :, choice] = np.einsum("sb,sbd->sd", advantages, drawn == choice) / drawn.shape[1]
        surprise = -np.log(np.where(probabilities > 0, probabilities, 1.0))
        mean = (probabilities * surprise).sum(axis=2, keepdims=True)
        gradient += entropy * probabilities * (surprise - mean)
        self._ascend(gradient)

    def _ascend(self, gradient: NDArray[np.float64]) -> None:
        self._steps += 1
        self._first_moment = _BETA1 * self._first_moment + (1 - _BETA1) * gradient
        self._second_moment = _BETA2 * self._second_moment + (1 - _BETA2) * gradient**2
        first = self._first_moment / (1 - _BETA1**self._steps)
        second = self._second_moment / (1 - _BETA2**self._steps)
        self.logits = self.logits + self._learning_rate * first / (np.sqrt(second) + _EPSILON)

    def _draw_by_rejection(
        self,
        dimensions: list[int],
        probabilities: NDArray[np.float64],
        drawn: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> None:
        """Sample dimensions too entangled for a diagram by rejection, then uniformly after a few tries."""
        rows = drawn.reshape(drawn.shape[0] * drawn.shape[1], drawn.shape[2])  # a view
        search = np.repeat(np.arange(len(drawn)), drawn.shape[1])
        illegal = np.arange(len(rows))
        for _ in range(_TRIES):
            for dimension in dimensions:
                weights = probabilities[search[illegal], dimension, : self.sizes[dimension]]
                rows[illegal, dimension] = _pick(weights, rng.random(len(illegal)))
            illegal = illegal[~legal_rows(self.space, rows[illegal], within=dimensions)]
            if not len(illegal):
                return
        replacements = drawn_rows(self.space, min(len(illegal), _REPLACEMENTS), rng=rng)
        rows[illegal[:, None], dimensions] = replacements[np.arange(len(illegal)) % len(replacements)][:, dimensions]


@dataclass(frozen=True, slots=True)
class _LegalDiagram:
    """Decision diagram of the legal choices of tied dimensions.

    Args:
        dimensions: in the order in which they are sampled.
        targets: per level, the next node for each node and choice; the last node of a level means illegal.
    """

    dimensions: tuple[int, ...]
    targets: tuple[NDArray[np.intp], ...]

    @classmethod
    def of(cls, dimensions: Sequence[int], targets: Sequence[list[list[int]]]) -> _LegalDiagram:
        tables = [np.array(level, dtype=np.intp) for level in targets]
        after = [*(len(level) for level in tables[1:]), 1]  # every legal path ends at one node
        padded = [
            np.vstack([np.where(level < 0, end, level), np.full(level.shape[1], end)])
            for level, end in zip(tables, after, strict=True)
        ]
        return cls(tuple(dimensions), tuple(padded))

    def draw(self, probabilities: NDArray[np.float64], drawn: NDArray[np.intp], rng: np.random.Generator) -> None:
        """Fill the dimensions of ``drawn`` with samples."""
        searches = np.arange(len(probabilities))[:, None]
        legal_probabilities = self._legal_probabilities(probabilities)
        node = np.zeros(drawn.shape[:2], dtype=np.intp)
        for dimension, targets, legal in zip(self.dimensions, self.targets, legal_probabilities, strict=True):
            weights = _floored(probabilities, dimension, targets)[:, None] * legal[searches[..., None], targets[node]]
            picked = _pick(weights, rng.random(node.shape))
            drawn[:, :, dimension] = picked
            node = targets[node, picked]

    def _legal_probabilities(self, probabilities: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return per level the probability that a legal config follows, for each search and node.

        Each level is scaled by its largest value: over a hundred tied dimensions the probabilities would underflow.
        """
        levels = [np.array([[True, False]]).repeat(len(probabilities), axis=0).astype(np.float64)]
        for dimension, targets in zip(self.dimensions[:0:-1], self.targets[:0:-1], strict=True):
            legal = np.einsum("sc,snc->sn", _floored(probabilities, dimension, targets), levels[-1][:, targets])
            levels.append(legal / legal.max(axis=1, keepdims=True))
        return levels[::-1]


def _floored(probabilities: NDArray[np.float64], dimension: int, targets: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the policies of one dimension with a floor, so that one converged on an illegal choice can be sampled."""
    return np.maximum(probabilities[:, dimension, : targets.shape[1]], 1e-12)


def _pick(weights: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return a choice for each number in [0, 1) by inverse transform sampling along the last axis."""
    edges = np.cumsum(weights, axis=-1)
    # Rounding leaves the last edge slightly off 1; a choice of zero probability must never be sampled.
    edges /= edges[..., -1:]
    return np.asarray((uniform[..., None] >= edges).sum(axis=-1), dtype=np.intp)


def _grouped_by_size(dimensions: Sequence[int], sizes: NDArray[np.intp]) -> list[list[int]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for dimension in dimensions:
        groups[int(sizes[dimension])].append(dimension)
    return list(groups.values())
