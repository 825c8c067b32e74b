"""One categorical policy per dimension of a space, for several searches at once: draws that are legal, and Adam steps.

Dimensions that no rule ties together are drawn each for itself. Tied ones are drawn node by node through the diagram
of what is legal (``LegalChoices``), each choice weighed by the probability that a legal config follows: this is the
product of the policies under the condition that the config is legal, without a single rejection.
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

_TRIES, _SPARE = 5, 64  # of draws under rules too entangled for a diagram, and legal rows in place of those that failed
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of Adam (arXiv 1412.6980)


class Policies:
    """Policies of ``n_searches`` independent searches over one bound space, uniform at the beginning.

    Args:
        space: bound.
        n_searches: how many.
        learning_rate: of Adam.
    """

    def __init__(self, space: SearchSpace, *, n_searches: int, learning_rate: float) -> None:
        self.space = space
        self.sizes = np.array([len(dimension.choices) for dimension in space.dimensions], dtype=np.intp)
        self._learning_rate = learning_rate
        # Choices that a dimension lacks have no probability, so that all dimensions are one table.
        lacks = np.arange(self.sizes.max(initial=1)) >= self.sizes[:, None]
        self.logits = np.where(lacks, -np.inf, np.zeros((n_searches, *lacks.shape)))
        self._first, self._second = np.zeros_like(self.logits), np.zeros_like(self.logits)
        self._steps = 0
        ties = space.legal.choices.ties
        self._diagrams = [_LegalDiagram.of(dimensions, targets) for dimensions, targets in ties if targets is not None]
        tied = {dimension for dimensions, _ in ties for dimension in dimensions}
        self._untold = [list(dimensions) for dimensions, targets in ties if targets is None]
        self._alike = _of_one_size([d for d in range(len(self.sizes)) if d not in tied], self.sizes)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each choice, ``[n_searches, n_dimensions, n_choices]``; before the condition that the config is legal."""
        weights = np.exp(self.logits - self.logits.max(axis=2, keepdims=True))
        return np.asarray(weights / weights.sum(axis=2, keepdims=True), dtype=np.float64)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return ``count`` legal rows from each search, ``[n_searches, count, n_dimensions]``."""
        probabilities = self.probabilities
        drawn = np.zeros((len(probabilities), count, len(self.sizes)), dtype=np.intp)
        for dimensions in self._alike:
            chances = probabilities[:, dimensions, : self.sizes[dimensions[0]]]
            drawn[:, :, dimensions] = _pick(chances[:, None], rng.random((len(chances), count, len(dimensions))))
        for diagram in self._diagrams:
            diagram.draw(probabilities, drawn, rng)
        for dimensions in self._untold:
            self._draw_untold(dimensions, probabilities, drawn, rng)
        return drawn

    def learn(self, drawn: NDArray[np.intp], advantages: NDArray[np.float64], *, entropy: float) -> None:
        """Make what was better than the baseline likelier: one step of REINFORCE (Williams, 1992).

        The advantages of a search add up to nothing, so what a legal config is likely to hold anyway (the second term
        of the gradient of its logarithmic probability) drops out of the sum.

        Args:
            drawn: the rows that were drawn, ``[n_searches, count, n_dimensions]``.
            advantages: of each, ``[n_searches, count]``, centred for each search.
            entropy: weight of the policies' entropy, which keeps them from settling early.
        """
        probabilities = self.probabilities
        gradient = np.zeros_like(probabilities)
        for choice in range(probabilities.shape[2]):
            gradient[:, :, choice] = np.einsum("sb,sbd->sd", advantages, drawn == choice) / drawn.shape[1]
        if entropy:
            with np.errstate(divide="ignore", invalid="ignore"):
                surprise = np.where(probabilities > 0, -np.log(probabilities), 0.0)
            mean = (probabilities * surprise).sum(axis=2, keepdims=True)
            gradient += entropy * probabilities * (surprise - mean)
        self._ascend(gradient)

    def _ascend(self, gradient: NDArray[np.float64]) -> None:
        self._steps += 1
        self._first = _BETA1 * self._first + (1 - _BETA1) * gradient
        self._second = _BETA2 * self._second + (1 - _BETA2) * gradient**2
        first = self._first / (1 - _BETA1**self._steps)
        second = self._second / (1 - _BETA2**self._steps)
        self.logits = self.logits + self._learning_rate * first / (np.sqrt(second) + _EPSILON)

    def _draw_untold(
        self,
        dimensions: list[int],
        probabilities: NDArray[np.float64],
        drawn: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> None:
        """Draw what is tied beyond counting from the policies, a few times while it is illegal, then from all alike."""
        rows = drawn.reshape(-1, drawn.shape[2])  # a view
        search = np.repeat(np.arange(len(drawn)), drawn.shape[1])
        wrong = np.arange(len(rows))
        for _ in range(_TRIES):
            for dimension in dimensions:
                chances = probabilities[search[wrong], dimension, : self.sizes[dimension]]
                rows[wrong, dimension] = _pick(chances, rng.random(len(wrong)))
            wrong = wrong[~legal_rows(self.space, rows[wrong], within=dimensions)]
            if not len(wrong):
                return
        spare = drawn_rows(self.space, min(len(wrong), _SPARE), rng=rng)
        rows[wrong[:, None], dimensions] = spare[np.arange(len(wrong)) % len(spare)][:, dimensions]


@dataclass(frozen=True, slots=True)
class _LegalDiagram:
    """What is legal of tied dimensions.

    Args:
        dimensions: in the order in which they are drawn.
        targets: per level, the node after each node and choice; the last node of a level stands for illegal.
    """

    dimensions: tuple[int, ...]
    targets: tuple[NDArray[np.intp], ...]

    @classmethod
    def of(cls, dimensions: Sequence[int], targets: Sequence[list[list[int]]]) -> _LegalDiagram:
        tables = [np.array(level, dtype=np.intp).reshape(len(level), -1) for level in targets]
        after = [len(level) for level in tables[1:]] + [int(tables[-1].max(initial=0)) + 1]
        illegal = [
            np.vstack([np.where(level < 0, end, level), np.full((1, level.shape[1]), end)])
            for level, end in zip(tables, after, strict=True)
        ]
        return cls(tuple(dimensions), tuple(illegal))

    def draw(self, probabilities: NDArray[np.float64], drawn: NDArray[np.intp], rng: np.random.Generator) -> None:
        """Fill the dimensions of ``drawn``."""
        searches = np.arange(len(probabilities))[:, None]
        hopes = self._hopes(probabilities)
        node = np.zeros(drawn.shape[:2], dtype=np.intp)
        for dimension, targets, hope in zip(self.dimensions, self.targets, hopes, strict=True):
            chances = _floored(probabilities, dimension, targets)[:, None] * hope[searches[..., None], targets[node]]
            picked = _pick(chances, rng.random(node.shape))
            drawn[:, :, dimension] = picked
            node = targets[node, picked]

    def _hopes(self, probabilities: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return per level the probability that something legal follows after it, for each search and node.

        In proportion to the largest of its level: those of a hundred tied dimensions would vanish.
        """
        last = int(self.targets[-1].max()) + 1
        hope = np.ones((len(probabilities), last))
        hope[:, -1] = 0.0
        hopes = [hope]
        for dimension, targets in zip(self.dimensions[:0:-1], self.targets[:0:-1], strict=True):
            hope = np.einsum("sc,snc->sn", _floored(probabilities, dimension, targets), hopes[-1][:, targets])
            hopes.append(hope / np.maximum(hope.max(axis=1, keepdims=True), 1e-300))
        return hopes[::-1]


def _floored(probabilities: NDArray[np.float64], dimension: int, targets: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the policies of one dimension; settled on what another choice made illegal, they still draw something."""
    return np.maximum(probabilities[:, dimension, : targets.shape[1]], 1e-12)


def _pick(chances: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return a choice for each number in [0, 1) by the inverse of the distribution along the last axis."""
    edges = np.cumsum(chances, axis=-1)
    # Rounding leaves the last edge a little off 1; a choice without probability must never be met.
    edges /= edges[..., -1:]
    return np.asarray((uniform[..., None] >= edges).sum(axis=-1), dtype=np.intp)


def _of_one_size(dimensions: Sequence[int], sizes: NDArray[np.intp]) -> list[list[int]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for dimension in dimensions:
        groups[int(sizes[dimension])].append(dimension)
    return list(groups.values())
