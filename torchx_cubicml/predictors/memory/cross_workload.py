"""Cross-workload feasibility: probability of fitting in memory, learned across workloads."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.predictors.features.learner_inputs import Inputs
from torchx_cubicml.predictors.memory.dominance import DominanceRules, decided
from torchx_cubicml.predictors.memory.memory_rank import BATCH, memory_rank_of_row
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory import N_GROUPS, MemoryCalibration, calibrate_memory
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_limit import RecommenderLimit, calibrate_limit
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.records.values import Value


_UNKNOWN_CAUSE_WEIGHT = 0.6  # of a failure of unknown cause, if other trials are known to have run out of memory
_GIB = 2.0**30
N_MONOTONIC = 2 + N_GROUPS  # leading columns of ``ratios``, which never decrease with the micro batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Outcomes of the trials that ran, ran out of memory or failed for an unknown cause, ``n`` rows.

    Args:
        features: as the history's columns encode them, ``[n, n_columns]``.
        fitted: 1.0 where the trial ran, ``[n]``.
        certain: 1.0 where memory is known to have run out, ``[n]``.
        trust: weight of each outcome, ``[n]``.
        memory_rank: memory rank of each row (see ``memory_rank_of_row``), ``[n]``.
        peak_bytes: largest memory of one process, NaN where unknown, ``[n]``.
        layout: of the rows; meaningful only where it covers them.
        recommenders: likewise, as recommenders.
    """

    features: NDArray[np.float64]
    fitted: NDArray[np.float64]
    certain: NDArray[np.float64]
    trust: NDArray[np.float64]
    memory_rank: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    layout: TrainingLayout
    recommenders: RecommenderLayout

    @classmethod
    def of(cls, history: TrainingTable) -> Self:
        """Return the outcomes of ``history`` in an order that does not depend on the order of its rows."""
        rows, zeros = [*history.rows, *history.failures], np.zeros(len(history.failures))
        features = np.vstack([history.features, history.columns.encode(list(history.failures))])
        fitted = np.concatenate([history.feasible, zeros]).astype(np.float64)
        certain = np.concatenate([~history.feasible, zeros]).astype(np.float64)
        unknown = np.concatenate([np.zeros(len(history.rows)), zeros + 1.0])
        # Without a failure of known cause, these failures are the only evidence about memory.
        trust = 1.0 - (1.0 - _UNKNOWN_CAUSE_WEIGHT) * unknown * certain.any()
        memory_rank = np.array([memory_rank_of_row(row) for row in rows], dtype=np.float64)
        peak = history.peak_memory_gib if history.peak_memory_gib is not None else np.full(len(history.rows), np.nan)
        peak_bytes = np.concatenate([peak * _GIB, zeros + np.nan])
        order = np.lexsort(np.column_stack([np.nan_to_num(peak_bytes), unknown, fitted, memory_rank, features]).T)
        return cls(
            features=features[order],
            fitted=fitted[order],
            certain=certain[order],
            trust=trust[order],
            memory_rank=memory_rank[order],
            peak_bytes=peak_bytes[order],
            layout=TrainingLayout.of(Facts.from_rows([rows[index] for index in order.tolist()])),
            recommenders=RecommenderLayout.from_rows([rows[index] for index in order.tolist()]),
        )

    def __len__(self) -> int:
        return len(self.fitted)

    @property
    def smaller_class_size(self) -> int:
        """Size of the smaller class: trials that ran, or trials that did not."""
        return int(min(self.fitted.sum(), (1.0 - self.fitted).sum()))

    def memory(self) -> MemoryCalibration:
        """Return the memory formula calibrated on the rows that it covers."""
        covered = self.layout.covered
        return calibrate_memory(
            self.layout.rows(covered),
            ran=self.fitted[covered],
            certain=self.certain[covered],
            peak_bytes=self.peak_bytes[covered],
        )

    def limit(self) -> RecommenderLimit:
        """Return the memory limit of recommenders, calibrated on the rows that have embedding tables."""
        covered = _are_recommenders(self.recommenders)
        return calibrate_limit(
            self.recommenders.at(covered),
            ran=self.fitted[covered],
            certain=self.certain[covered],
            peak_bytes=self.peak_bytes[covered],
        )


def _are_recommenders(layout: RecommenderLayout) -> NDArray[np.bool_]:
    return np.asarray(layout.covered & layout.has_tables)


def ratios(layout: TrainingLayout, memory: MemoryCalibration) -> NDArray[np.float64]:
    """Return features that separate trainings that run from those that fail, NaN where not covered.

    Not every failure is due to memory: many pipeline stages for few layers, long accumulation and many nodes cause
    failures, too. The shape is float64 ``[n, N_MONOTONIC + n_others]``.
    """
    with np.errstate(all="ignore"):
        others = [layout.layers / layout.pp, layout.rounds, layout.world / layout.per_node, layout.rounds / layout.pp]
        table = np.column_stack([memory.pressure(layout), np.log2(layout.tokens), *np.log2(others)])
    return np.where(layout.covered[:, None], table, np.nan)


_PRIOR_LOGIT = 3.0  # 95 % for a config that takes about as much memory as those that were tried
_PRIOR_SLOPE = -1.0  # per memory rank
_SLOPE_SD = 0.7
_LEARNED_SD = 1.0  # of all other weights together, on standardised inputs
_FEWEST_FOR_TREES = 20  # outcomes of each kind
_MOST_LOGIT = 8.0


class CrossWorkloadFeasibility:
    """Classifier of feasibility: probability that a config fits in memory.

    It averages two models of few parameters. One is Bayesian logistic regression on the memory rank and the encoded
    columns; its prior dominates while there are few outcomes. The other is the calibrated memory formula, for rows with
    the facts that it needs; that of recommenders counts the tables of the fullest rank, by their sharding. With enough
    outcomes of both kinds, boosted trees on the columns, the formula's parts and ratios of the layout are added.
    Monotonic constraints ensure that a larger micro batch or more predicted memory never raises the probability.

    Args:
        order: of the configs of one workload by the memory that they need; without one nothing is known for certain.
    """

    def __init__(self, *, order: MemoryOrder | None = None) -> None:
        self.order = order or MemoryOrder()

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Fit on the outcomes of ``history``; none at all is legal."""
        with one_thread():
            self._fit(history, seed=int(rng.integers(2**31)))
        return self

    def _fit(self, history: TrainingTable, *, seed: int) -> None:
        self.dominance_ = DominanceRules.of_history(history, self.order)
        outcomes = Outcomes.of(history)
        self.memory_ = MemoryCalibration.default()
        self.limit_ = RecommenderLimit()
        self.trees_: _Classifier | None = None
        self.weights_ = None
        if not len(outcomes):
            return
        self.memory_, self.limit_ = outcomes.memory(), outcomes.limit()
        self.inputs_ = Inputs.of(outcomes.features, history.columns.categorical)
        self.median_memory_rank_ = float(np.median(outcomes.memory_rank))
        design = self._design(outcomes.features, outcomes.memory_rank)
        self.weights_, self.covariance_ = _logistic(design, outcomes.fitted, outcomes.trust)
        if outcomes.smaller_class_size >= _FEWEST_FOR_TREES and self.inputs_.width:
            names = history.columns.names
            self.is_batch_ = [names[column] == BATCH for column in self.inputs_.numeric]
            self.trees_ = self._fit_trees(outcomes, seed)

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the probability to fit, float64 ``[n]``; 0.0 exactly where it is known not to.

        Args:
            features: rows as ``history.columns`` encodes them, ``[n, n_columns]``.
            rows: the same ``n`` rows with their names.
        """
        verdicts = self.dominance_.verdicts(rows)
        with one_thread():
            logit = np.clip(self._logit(features, rows), -_MOST_LOGIT, _MOST_LOGIT)
        probability = 1.0 / (1.0 + np.exp(-logit))
        return decided(verdicts, probability)

    def fantasize_failures(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the classifier as if ``rows`` had run out of memory: what needs at least as much does not fit."""
        del features
        feared = copy(self)
        feared.dominance_ = self.dominance_.fearing(rows)
        return feared

    def _logit(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        layout = TrainingLayout.of(Facts.from_rows(rows))
        logit = self._regression(features, rows)
        covered, physics = self._physics(layout, rows)
        if self.trees_ is None:
            logit[covered] = 0.5 * (logit[covered] + physics)
            return logit
        logit[covered] = physics
        layout_ratios = ratios(layout, self.memory_)
        of_trees = self.trees_.decision_function(self._tree_inputs(features, layout_ratios))
        return np.asarray(0.5 * (logit + of_trees), dtype=np.float64)

    def _physics(
        self, layout: TrainingLayout, rows: Sequence[Mapping[str, Value]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Return the mask of the rows that a memory formula covers, and the log odds of these."""
        covered, odds = layout.covered.copy(), np.zeros(len(rows))
        odds[covered] = self.memory_.log_odds(layout.rows(covered))
        recommenders = RecommenderLayout.from_rows(rows)
        have_tables = _are_recommenders(recommenders)
        odds[have_tables] = self.limit_.log_odds(recommenders.at(have_tables))
        covered |= have_tables
        return covered, np.clip(odds[covered], -_MOST_LOGIT, _MOST_LOGIT)

    def _regression(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        if self.weights_ is None:
            return np.full(len(rows), _PRIOR_LOGIT)
        design = self._design(features, np.array([memory_rank_of_row(row) for row in rows]))
        variance = np.einsum("ij,ij->i", design @ self.covariance_, design)
        # MacKay's moderated output: uncertainty of the weights moves the probability towards one half.
        return np.asarray(design @ self.weights_ / np.sqrt(1.0 + np.pi * variance / 8.0), dtype=np.float64)

    def _design(self, features: NDArray[np.float64], memory_rank: NDArray[np.float64]) -> NDArray[np.float64]:
        constant = np.ones(len(memory_rank))
        return np.column_stack([constant, memory_rank - self.median_memory_rank_, self.inputs_.dense(features)])

    def _tree_inputs(self, features: NDArray[np.float64], layout_ratios: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.hstack([layout_ratios, self.inputs_.gapped(features)])

    def _fit_trees(self, outcomes: Outcomes, seed: int) -> _Classifier:
        """Return boosted trees on the ratios of the layout and all columns."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        layout_ratios = ratios(outcomes.layout, self.memory_)
        if not outcomes.layout.covered.any():
            # There is nothing to split by, and scikit-learn rejects a column of NaN alone.
            layout_ratios = np.zeros_like(layout_ratios)
        n_ratios = layout_ratios.shape[1]
        of_columns = [-int(grows) for grows in self.is_batch_] + [0] * len(self.inputs_.codes)
        trees: _Classifier = HistGradientBoostingClassifier(
            max_iter=100,
            max_leaf_nodes=15,
            min_samples_leaf=5,
            l2_regularization=1.0,
            categorical_features=[False] * n_ratios + self.inputs_.gapped_categorical,
            monotonic_cst=[-1] * N_MONOTONIC + [0] * (n_ratios - N_MONOTONIC) + of_columns,
            early_stopping=False,
            random_state=seed,
        )
        inputs = self._tree_inputs(outcomes.features, layout_ratios)
        return trees.fit(inputs, outcomes.fitted, sample_weight=outcomes.trust)


class _Classifier(Protocol):
    def fit(
        self, inputs: NDArray[np.float64], labels: NDArray[np.float64], *, sample_weight: NDArray[np.float64]
    ) -> Self: ...
    def decision_function(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]: ...


def _logistic(
    design: NDArray[np.float64], labels: NDArray[np.float64], trust: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the MAP weights and their Laplace covariance, by damped Newton steps."""
    n_learned = design.shape[1] - 2
    prior = np.array([_PRIOR_LOGIT, _PRIOR_SLOPE, *np.zeros(n_learned)])
    precision = np.array([1.0 / 1.5**2, 1.0 / _SLOPE_SD**2, *[max(n_learned, 4) / 4 / _LEARNED_SD**2] * n_learned])
    weights = prior
    for _ in range(30):
        probability = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (trust * (labels - probability)) - precision * (weights - prior)
        curvature = design.T @ ((trust * probability * (1 - probability))[:, None] * design) + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)
        # Full steps oscillate where the classes are separable.
        weights = weights + step * min(1.0, 2.0 / (np.abs(step).max() + 1e-12))
        if np.abs(step).max() < 1e-6:
            break
    return weights, np.linalg.inv(curvature)
