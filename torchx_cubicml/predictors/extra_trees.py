"""Extremely randomised trees, their median, and what they say of rows that they never saw.

Written out in NumPy: all trees grow together, level by level, which is as fast as scikit-learn's on the tables of a
launch and spares a launch the import of scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MOST_ROWS_PER_TREE = 1000  # keeps a fit on ten thousand trials within seconds
_MOST_CELLS = 400_000  # of rows times inputs in one batch of nodes: what a core's cache holds
_MOST_ROWS_AT_ONCE = 2048  # of a prediction, likewise
_LEVELS_AT_ONCE = 4  # before paths that ended are left out, which costs as much as going on with them


class ExtraTrees:
    """A fitted forest, each tree fully grown on a bootstrap sample.

    Geurts, Ernst and Wehenkel, Extremely randomized trees (Machine Learning 63, 2006), Table 1, with all inputs tried
    at each node.

    Args:
        inputs: float64 ``[n, n_inputs]``, finite, n >= 1 and n_inputs >= 1.
        values: float64 ``[n]``.
        n_trees: how many.
        sample_weight: how much each row counts, float64 ``[n]``, > 0: a full tree believes what it sees, so the less
            the fewer trees see it; ``None``: all alike.
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
        times = np.stack([np.bincount(rows, minlength=len(values)) for rows in drawn])
        if sample_weight is not None:
            times = _thinned(times, sample_weight / sample_weight.max(), np.random.default_rng([seed, 1]))
        self.seen: NDArray[np.bool_] = times > 0
        self.trees = _grown(np.asarray(inputs, dtype=np.float32), values, times, rng)

    def predict(self, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return median and standard deviation over the trees, float64 ``[n]`` each."""
        each = self.trees.predict(inputs)
        return np.median(each, axis=0), each.std(axis=0)

    def out_of_bag(self, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the same for the training rows, each from the trees that never saw it; zeros where there is none."""
        each = self.trees.predict(inputs)
        each[self.seen] = np.nan
        some = ~self.seen.all(axis=0)
        middle, deviation = np.zeros(len(inputs)), np.zeros(len(inputs))
        middle[some], deviation[some] = np.nanmedian(each[:, some], axis=0), np.nanstd(each[:, some], axis=0)
        return middle, deviation


def _thinned(times: NDArray[np.int64], chance: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the samples with each draw of a row kept by its chance; one of which nothing is left keeps all."""
    kept = rng.binomial(times, chance)
    return np.where(kept.any(axis=1, keepdims=True), kept, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trees:
    """The nodes of all trees, level by level; the first are the roots.

    Args:
        column: of the input that a node splits by, ``[n_nodes]``.
        cut: inputs up to it go to the first child, those above to the next; infinite for a leaf, ``[n_nodes]``.
        child: the first child, itself for a leaf, ``[n_nodes]``.
        value: what a leaf says, ``[n_nodes]``.
        n_trees: how many roots there are.
    """

    column: NDArray[np.intp]
    cut: NDArray[np.float32]
    child: NDArray[np.intp]
    value: NDArray[np.float64]
    n_trees: int

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each tree says of each row, float64 ``[n_trees, n]``."""
        chunks = range(0, max(len(inputs), 1), _MOST_ROWS_AT_ONCE)
        return np.hstack([self._predict(inputs[start : start + _MOST_ROWS_AT_ONCE]) for start in chunks])

    def _predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        cells = np.ascontiguousarray(inputs, dtype=np.float32).ravel()
        reached = np.repeat(np.arange(self.n_trees), len(inputs))
        under_way, nodes = np.arange(len(reached)), reached.copy()
        first_cells = np.tile(np.arange(len(inputs)) * inputs.shape[1], self.n_trees)
        while len(under_way):
            for _ in range(_LEVELS_AT_ONCE):
                goes_on = cells.take(first_cells + self.column.take(nodes)) > self.cut.take(nodes)
                nodes = self.child.take(nodes) + goes_on
            reached[under_way] = nodes
            inner = self.child.take(nodes) != nodes
            under_way, nodes, first_cells = under_way[inner], nodes[inner], first_cells[inner]
        return self.value.take(reached).reshape(self.n_trees, len(inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The rows in the nodes of one level, node by node.

    Args:
        rows: of the table, ``[n_entries]``.
        times: how often the sample of the node's tree holds each of them, ``[n_entries]``.
        sizes: of the nodes, in entries, all >= 1, ``[n_nodes]``.
    """

    rows: NDArray[np.intp]
    times: NDArray[np.float32]
    sizes: NDArray[np.intp]

    @classmethod
    def joined(cls, parts: list[_Level]) -> Self:
        return cls(
            rows=np.concatenate([part.rows for part in parts]),
            times=np.concatenate([part.times for part in parts]),
            sizes=np.concatenate([part.sizes for part in parts]),
        )

    @property
    def starts(self) -> NDArray[np.intp]:
        return np.cumsum(self.sizes) - self.sizes

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.add.reduceat(self.times * values[self.rows], self.starts)
        return np.asarray(sums / np.add.reduceat(self.times, self.starts, dtype=np.float64), dtype=np.float64)

    def batches(self, values: NDArray[np.float64], n_inputs: int) -> Iterator[NDArray[np.intp]]:
        """Give the nodes whose values differ, of about one size in each batch."""
        told = values[self.rows]
        open_ = np.maximum.reduceat(told, self.starts) > np.minimum.reduceat(told, self.starts)
        doublings = np.ceil(np.log2(self.sizes))
        for size in np.unique(doublings[open_]):
            alike = np.flatnonzero(open_ & (doublings == size))
            step = max(1, int(_MOST_CELLS / (2**size * n_inputs)))
            yield from (alike[start : start + step] for start in range(0, len(alike), step))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """How ``m`` nodes of a level part: column and cut as in ``_Trees``, and below them their children in pairs."""

    nodes: NDArray[np.intp]
    column: NDArray[np.intp]
    cut: NDArray[np.float32]
    below: _Level


def _grown(
    inputs: NDArray[np.float32], values: NDArray[np.float64], times: NDArray[np.int64], rng: np.random.Generator
) -> _Trees:
    n_trees = len(times)
    rows = np.nonzero(times)[1]
    level = _Level(rows=rows, times=times[times > 0].astype(np.float32), sizes=np.count_nonzero(times, axis=1))
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
    """Return the best of one random cut by each input, of the nodes that can be parted."""
    sizes = level.sizes[nodes]
    places = np.arange(sizes.max())
    real = places < sizes[:, None]
    entries = level.starts[nodes][:, None] + np.where(real, places, 0)  # the rest repeats the first, and weighs nothing
    rows, times = level.rows[entries], np.where(real, level.times[entries], np.float32(0.0))
    cells = inputs[rows]
    cuts = _drawn_cuts(cells, rng)
    first = cells <= cuts[:, None]
    gain = _gain(first, times, times * values[rows].astype(np.float32))
    column = gain.argmax(axis=1)
    each = np.arange(len(nodes))
    parted = np.flatnonzero(gain[each, column] >= 0.0)
    goes_first = first[each, :, column]
    sides = (real[:, None] & np.stack([goes_first, ~goes_first], axis=1))[parted]
    node, _, place = np.nonzero(sides)
    node = parted[node]
    return _Split(
        nodes=nodes[parted],
        column=column[parted],
        cut=cuts[each, column][parted],
        below=_Level(rows=rows[node, place], times=times[node, place], sizes=np.count_nonzero(sides, axis=2).ravel()),
    )


def _drawn_cuts(cells: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return cuts between the least and the largest of ``cells`` ``[m, n_entries, n_inputs]``, ``[m, n_inputs]``."""
    lowest, highest = cells.min(axis=1), cells.max(axis=1)
    with np.errstate(invalid="ignore"):
        cuts = lowest + rng.random(lowest.shape, dtype=np.float32) * (highest - lowest)
    return np.asarray(np.where(cuts < highest, cuts, lowest), dtype=np.float32)  # the largest where it was rounded up


def _gain(first: NDArray[np.bool_], times: NDArray[np.float32], totals: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by how much each cut lowers the squared error, but for a factor of the node; -1 where it parts nothing.

    Args:
        first: whether each row goes to the first child by each input, ``[m, n_entries, n_inputs]``.
        times: weight of each row, ``[m, n_entries]``.
        totals: weight times value, ``[m, n_entries]``.
    """
    sums = np.matmul(np.stack([times, totals], axis=1), first.astype(np.float32))
    weight, total = times.sum(axis=1)[:, None], totals.sum(axis=1)[:, None]
    ahead, behind = sums[:, 0], weight - sums[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (sums[:, 1] * weight - total * ahead) ** 2 / (ahead * behind)
    return np.where((ahead > 0.0) & (behind > 0.0), gain, np.float32(-1.0))
