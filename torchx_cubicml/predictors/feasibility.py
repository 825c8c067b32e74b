"""The probability that a config fits in memory: hard limits first, else what outcomes teach.

Out of memory teaches; a failure of unknown cause counts for less, and neither it nor the classifier ever excludes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.predictors.inputs import Inputs
from torchx_cubicml.predictors.limits import BATCH, Limits, appetite
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.history import History
    from torchx_cubicml.trial import Value

KNOWN_TO_FIT = 0.99  # a smaller micro batch than one that ran; machines fail for other reasons too
_PRIOR_LOGIT = 3.0  # 95 % for a config about as hungry as those that were tried
_PRIOR_SLOPE = -1.0  # per doubling of appetite
_SLOPE_SD = 0.7
_LEARNED_SD = 1.0  # of all other weights together, on standardised inputs
_UNKNOWN_WEIGHT = 0.6  # of a failure whose cause is not known
_FEWEST_FOR_TREES = 20  # outcomes of each kind
_MOST_LOGIT = 8.0


class Feasibility:
    """Probability that a config fits.

    Bayesian logistic regression on appetite and the encoded columns, whose prior serves while little is known; with
    enough outcomes of both kinds, averaged with boosted trees that never find a larger micro batch easier.

    Args:
        compare: names of the workload facts and free parameters by which two rows are known to be the same config but
            for the micro batch; without them nothing is known for certain.
    """

    def __init__(self, *, compare: Sequence[str] = ()) -> None:
        self.compare = tuple(compare)

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the outcomes of ``history``; none at all is legal."""
        with one_thread():
            self._fit(history, seed=int(rng.integers(2**31)))
        return self

    def _fit(self, history: History, *, seed: int) -> None:
        self.limits_ = Limits.of(zip(history.rows, history.feasible.tolist(), strict=True), names=self.compare)
        rows = [*history.rows, *history.failures]
        self.weights_ = None
        if not rows:
            return
        features = np.vstack([history.features, history.columns.encode(list(history.failures))])
        fitted = np.concatenate([history.feasible, np.zeros(len(history.failures))]).astype(np.float64)
        trust = np.where(np.arange(len(rows)) < len(history.rows), 1.0, _UNKNOWN_WEIGHT)
        hunger = np.array([appetite(row) for row in rows])
        order = np.lexsort(np.column_stack([trust, fitted, hunger, features]).T)
        self.inputs_ = Inputs.of(features, history.columns.categorical)
        self.middle_ = float(np.median(hunger))
        design = self._design(features, hunger)
        self.weights_, self.covariance_ = _logistic(design[order], fitted[order], trust[order])
        self.trees_ = None
        if min(fitted.sum(), (1 - fitted).sum()) >= _FEWEST_FOR_TREES and self.inputs_.width:
            self.trees_ = self._trees(features[order], fitted[order], trust[order], history.columns.names, seed)

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the probability to fit, float64 ``[n]``; 0.0 exactly where it is known not to.

        Args:
            features: rows as ``history.columns`` encodes them, ``[n, n_columns]``.
            rows: the same ``n`` rows with their names.
        """
        known = self.limits_.verdicts(rows)
        with one_thread():
            logit = np.clip(self._logit(features, rows), -_MOST_LOGIT, _MOST_LOGIT)
        learned = 1.0 / (1.0 + np.exp(-logit))
        return np.where(known == 0.0, 0.0, np.where(known == 1.0, np.maximum(learned, KNOWN_TO_FIT), learned))

    def _logit(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        if self.weights_ is None:
            return np.full(len(rows), _PRIOR_LOGIT)
        design = self._design(features, np.array([appetite(row) for row in rows]))
        variance = np.einsum("ij,ij->i", design @ self.covariance_, design)
        # MacKay's moderated output: what is not known draws towards one half.
        logit = design @ self.weights_ / np.sqrt(1.0 + np.pi * variance / 8.0)
        if self.trees_ is not None:
            logit = 0.5 * (logit + self.trees_.decision_function(self.inputs_.gapped(features)))
        return np.asarray(logit, dtype=np.float64)

    def _design(self, features: NDArray[np.float64], hunger: NDArray[np.float64]) -> NDArray[np.float64]:
        constant = np.ones(len(hunger))
        return np.column_stack([constant, hunger - self.middle_, self.inputs_.dense(features)])

    def _trees(
        self,
        features: NDArray[np.float64],
        fitted: NDArray[np.float64],
        trust: NDArray[np.float64],
        names: Sequence[str],
        seed: int,
    ) -> _Classifier:
        from sklearn.ensemble import HistGradientBoostingClassifier

        never_easier = [-int(names[column] == BATCH) for column in self.inputs_.numeric]
        classifier: _Classifier = HistGradientBoostingClassifier(
            max_iter=100,
            max_leaf_nodes=15,
            min_samples_leaf=5,
            l2_regularization=1.0,
            categorical_features=self.inputs_.gapped_categorical,
            monotonic_cst=never_easier + [0] * len(self.inputs_.codes),
            early_stopping=False,
            random_state=seed,
        )
        return classifier.fit(self.inputs_.gapped(features), fitted, sample_weight=trust)


class _Classifier(Protocol):
    def fit(
        self, inputs: NDArray[np.float64], labels: NDArray[np.float64], *, sample_weight: NDArray[np.float64]
    ) -> Self: ...
    def decision_function(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]: ...


def _logistic(
    design: NDArray[np.float64], labels: NDArray[np.float64], trust: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the most probable weights and their covariance (Laplace), by damped Newton steps."""
    n_learned = design.shape[1] - 2
    prior = np.array([_PRIOR_LOGIT, _PRIOR_SLOPE, *np.zeros(n_learned)])
    precision = np.array([1.0 / 1.5**2, 1.0 / _SLOPE_SD**2, *[max(n_learned, 4) / 4 / _LEARNED_SD**2] * n_learned])
    weights = prior
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (trust * (labels - chance)) - precision * (weights - prior)
        curvature = design.T @ ((trust * chance * (1 - chance))[:, None] * design) + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)
        # Full steps oscillate where the classes are separable.
        weights = weights + step * min(1.0, 2.0 / (np.abs(step).max() + 1e-12))
        if np.abs(step).max() < 1e-6:
            break
    return weights, np.linalg.inv(curvature)
