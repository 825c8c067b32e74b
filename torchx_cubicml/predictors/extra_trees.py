"""Extremely randomised trees (Extra-Trees), with the median over the trees and out-of-bag predictions.

Implemented in NumPy: all trees grow together, level by level. This is as fast as scikit-learn's on the tables of a
launch, and it saves a launch the import of scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MOST_ROWS_PER_TREE = 1000  # keeps a fit on ten thousand trials within seconds
_MOST_CELLS = 400_000  # rows times inputs in one batch of nodes, so that it fits into a core's cache
_MOST_ROWS_AT_ONCE = 2048  # of a prediction, likewise
_LEVELS_AT_ONCE = 4  # between removals of the rows that reached a leaf; a removal costs as much as a few levels


class ExtraTrees:
    """A fitted forest, each tree fully grown on a bootstrap sample.

    Geurts, Ernst and Wehenkel, Extremely randomized trees (Machine Learning 63, 2006), Table 1, with all inputs tried
    at each node.

    Args:
        inputs: float64 ``[n, n_inputs]``, finite, n >= 1 and n_inputs >= 1.
        values: float64 ``[n]``.
        n_trees: how many.
        sample_weight: how much each row counts, float64 ``[n]``, > 0. A fully grown tree fits its rows exactly, so a
            row with less weight is drawn into fewer trees. ``None``: all alike.
        seed: of all randomness.
    """

    def __init__(
        self,
        inputs: NDArray[np.float64],
        values: NDArray[np.float64],
        *,
        n_trees: int,
        seed: int,
        sample_weight: NDArray[np.float64] | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        drawn = rng.integers(len(values), size=(n_trees, min(len(values), _MOST_ROWS_PER_TREE)))
        counts = np.stack([np.bincount(rows, minlength=len(values)) for rows in drawn])
        if sample_weight is not None:
            counts = _thin(counts, sample_weight / sample_weight.max(), np.random.default_rng([seed, 1]))
        self.seen: NDArray[np.bool_] = counts > 0
        self.trees = _grow(np.asarray(inputs, dtype=np.float32), values, counts, rng)

    def predict(self, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return median and standard deviation over the trees, float64 ``[n]`` each."""
        each = self.trees.predict(inputs)
        return np.median(each, axis=0), each.std(axis=0)

    def out_of_bag(self, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return out-of-bag median and standard deviation of the training rows; 0 where all trees contain the row."""
        each = self.trees.predict(inputs)
        each[self.seen] = np.nan
        any_tree = ~self.seen.all(axis=0)
        median, deviation = np.zeros(len(inputs)), np.zeros(len(inputs))
        median[any_tree], deviation[any_tree] = (
            np.nanmedian(each[:, any_tree], axis=0),
            np.nanstd(each[:, any_tree], axis=0),
        )
        return median, deviation


def _thin(counts: NDArray[np.int64], chance: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the bootstrap counts with each draw kept with probability ``chance``; an emptied sample is kept whole."""
    kept = rng.binomial(counts, chance)
    return np.where(kept.any(axis=1, keepdims=True), kept, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trees:
    """Nodes of all trees, level by level; the first ``n_trees`` are the roots.

    Args:
        column: input that a node splits by, ``[n_nodes]``.
        cut: inputs up to it go to the first child, those above to the next; infinite for a leaf, ``[n_nodes]``.
        child: index of the first child, of the node itself for a leaf, ``[n_nodes]``.
        value: prediction of a leaf, ``[n_nodes]``.
        n_trees: number of roots.
    """

    column: NDArray[np.intp]
    cut: NDArray[np.float32]
    child: NDArray[np.intp]
    value: NDArray[np.float64]
    n_trees: int

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the prediction of each tree for each row, float64 ``[n_trees, n]``."""
        chunks = range(0, max(len(inputs), 1), _MOST_ROWS_AT_ONCE)
        return np.hstack([self._predict(inputs[start : start + _MOST_ROWS_AT_ONCE]) for start in chunks])

    def _predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        cells = np.ascontiguousarray(inputs, dtype=np.float32).ravel()
        leaf = np.repeat(np.arange(self.n_trees), len(inputs))
        active, nodes = np.arange(len(leaf)), leaf.copy()
        first_cells = np.tile(np.arange(len(inputs)) * inputs.shape[1], self.n_trees)
        while len(active):
            for _ in range(_LEVELS_AT_ONCE):
                goes_right = cells.take(first_cells + self.column.take(nodes)) > self.cut.take(nodes)
                nodes = self.child.take(nodes) + goes_right
            leaf[active] = nodes
            inner = self.child.take(nodes) != nodes
            active, nodes, first_cells = active[inner], nodes[inner], first_cells[inner]
        return self.value.take(leaf).reshape(self.n_trees, len(inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Rows in the nodes of one level of all trees, node by node.

    Args:
        rows: row numbers in the table, ``[n_entries]``.
        counts: how often the bootstrap sample of the node's tree contains each row, ``[n_entries]``.
        sizes: entries of each node, all >= 1, ``[n_nodes]``.
    """

    rows: NDArray[np.intp]
    counts: NDArray[np.float32]
    sizes: NDArray[np.intp]

    @classmethod
    def joined(cls, parts: list[_Level]) -> Self:
        return cls(
            rows=np.concatenate([part.rows for part in parts]),
            counts=np.concatenate([part.counts for part in parts]),
            sizes=np.concatenate([part.sizes for part in parts]),
        )

    @property
    def starts(self) -> NDArray[np.intp]:
        return np.cumsum(self.sizes) - self.sizes

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.add.reduceat(self.counts * values[self.rows], self.starts)
        return np.asarray(sums / np.add.reduceat(self.counts, self.starts, dtype=np.float64), dtype=np.float64)

    def batches(self, values: NDArray[np.float64], n_inputs: int) -> Iterator[NDArray[np.intp]]:
        """Yield the nodes whose values differ, in batches of nodes of similar size."""
        outcomes = values[self.rows]
        impure = np.maximum.reduceat(outcomes, self.starts) > np.minimum.reduceat(outcomes, self.starts)
        doublings = np.ceil(np.log2(self.sizes))
        for size in np.unique(doublings[impure]):
            alike = np.flatnonzero(impure & (doublings == size))
            step = max(1, int(_MOST_CELLS / (2**size * n_inputs)))
            yield from (alike[start : start + step] for start in range(0, len(alike), step))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Splits of ``m`` nodes of a level: column and cut as in ``_Trees``, and their children in pairs (``below``)."""

    nodes: NDArray[np.intp]
    column: NDArray[np.intp]
    cut: NDArray[np.float32]
    below: _Level


def _grow(
    inputs: NDArray[np.float32], values: NDArray[np.float64], counts: NDArray[np.int64], rng: np.random.Generator
) -> _Trees:
    n_trees = len(counts)
    rows = np.nonzero(counts)[1]
    level = _Level(rows=rows, counts=counts[counts > 0].astype(np.float32), sizes=np.count_nonzero(counts, axis=1))
    centred = values - values.mean()  # so that single precision is enough to compare splits
    columns, cuts, children, means = [], [], [], []
    n_nodes = n_trees
    while True:
        splits = [_split(inputs, centred, level, nodes, rng) for nodes in level.batches(values, inputs.shape[1])]
        column = np.zeros(len(level.sizes), dtype=np.intp)
        cut = np.full(len(level.sizes), np.inf, dtype=np.float32)
        child = n_nodes - len(column) + np.arange(len(column))
        for split in splits:
            column[split.nodes], cut[split.nodes] = split.column, split.cut
            child[split.nodes] = n_nodes + 2 * np.arange(len(split.nodes))
            n_nodes += 2 * len(split.nodes)
        columns.append(column)
        cuts.append(cut)
        children.append(child)
        means.append(level.means(values))
        splits = [split for split in splits if len(split.nodes)]
        if not splits:
            break
        level = _Level.joined([split.below for split in splits])
    return _Trees(
        column=np.concatenate(columns),
        cut=np.concatenate(cuts),
        child=np.concatenate(children),
        value=np.concatenate(means),
        n_trees=n_trees,
    )


def _split(
    inputs: NDArray[np.float32],
    values: NDArray[np.float64],
    level: _Level,
    nodes: NDArray[np.intp],
    rng: np.random.Generator,
) -> _Split:
    """Return the best of one random cut per input, for the nodes that can be split."""
    sizes = level.sizes[nodes]
    positions = np.arange(sizes.max())
    is_entry = positions < sizes[:, None]
    # Padding repeats the first entry, with count 0.
    entries = level.starts[nodes][:, None] + np.where(is_entry, positions, 0)
    rows, counts = level.rows[entries], np.where(is_entry, level.counts[entries], np.float32(0.0))
    cells = inputs[rows]
    cuts = _random_cuts(cells, rng)
    goes_left = cells <= cuts[:, None]
    gain = _gain(goes_left, counts, counts * values[rows].astype(np.float32))
    column = gain.argmax(axis=1)
    each = np.arange(len(nodes))
    splittable = np.flatnonzero(gain[each, column] >= 0.0)
    best_left = goes_left[each, :, column]
    sides = (is_entry[:, None] & np.stack([best_left, ~best_left], axis=1))[splittable]
    node, _, position = np.nonzero(sides)
    node = splittable[node]
    return _Split(
        nodes=nodes[splittable],
        column=column[splittable],
        cut=cuts[each, column][splittable],
        below=_Level(
            rows=rows[node, position], counts=counts[node, position], sizes=np.count_nonzero(sides, axis=2).ravel()
        ),
    )


def _random_cuts(cells: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return uniform random cuts within the range of ``cells`` ``[m, n_entries, n_inputs]``, ``[m, n_inputs]``."""
    lowest, highest = cells.min(axis=1), cells.max(axis=1)
    with np.errstate(invalid="ignore"):
        cuts = lowest + rng.random(lowest.shape, dtype=np.float32) * (highest - lowest)
    return np.asarray(np.where(cuts < highest, cuts, lowest), dtype=np.float32)  # rounding may give the largest


def _gain(
    goes_left: NDArray[np.bool_], counts: NDArray[np.float32], totals: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the decrease of squared error by each cut, up to a factor of the node; -1 where a child would be empty.

    Args:
        goes_left: whether each row goes to the first child by each input, ``[m, n_entries, n_inputs]``.
        counts: weight of each row, ``[m, n_entries]``.
        totals: weight times value, ``[m, n_entries]``.
    """
    sums = np.matmul(np.stack([counts, totals], axis=1), goes_left.astype(np.float32))
    weight, total = counts.sum(axis=1)[:, None], totals.sum(axis=1)[:, None]
    left, right = sums[:, 0], weight - sums[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (sums[:, 1] * weight - total * left) ** 2 / (left * right)
    return np.where((left > 0.0) & (right > 0.0), gain, np.float32(-1.0))
