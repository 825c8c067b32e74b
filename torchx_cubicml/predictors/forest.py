"""Extremely randomised trees, their median, and what they say of rows that they never saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MOST_ROWS_PER_TREE = 1000  # keeps a fit on ten thousand trials within seconds


class Forest:
    """A fitted forest, each tree on a bootstrap sample.

    Args:
        inputs: float64 ``[n, n_inputs]`` without gaps.
        values: float64 ``[n]``.
        n_trees: how many.
        seed: of all randomness.
    """

    def __init__(self, inputs: NDArray[np.float64], values: NDArray[np.float64], *, n_trees: int, seed: int) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        forest = ExtraTreesRegressor(
            n_estimators=n_trees,
            bootstrap=True,
            max_samples=min(len(values), _MOST_ROWS_PER_TREE),
            random_state=seed,
        ).fit(inputs, values)
        self.trees = [estimator.tree_ for estimator in forest.estimators_]
        self.seen: Sequence[NDArray[np.int64]] = forest.estimators_samples_

    def predict(self, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return median and standard deviation over the trees, float64 ``[n]`` each."""
        each = self._each(inputs)
        return np.median(each, axis=0), each.std(axis=0)

    def out_of_bag(self, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the same for the training rows, each from the trees that never saw it; zeros where there is none."""
        each = self._each(inputs)
        for tree, seen in zip(each, self.seen, strict=True):
            tree[seen] = np.nan
        some = ~np.isnan(each).all(axis=0)
        middle, deviation = np.zeros(len(inputs)), np.zeros(len(inputs))
        middle[some], deviation[some] = np.nanmedian(each[:, some], axis=0), np.nanstd(each[:, some], axis=0)
        return middle, deviation

    def _each(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        # The forest's own predict starts a thread pool for each call: slower than the trees for a searcher's batches.
        narrow = np.ascontiguousarray(inputs, dtype=np.float32)
        return np.stack([tree.predict(narrow).reshape(-1) for tree in self.trees])
