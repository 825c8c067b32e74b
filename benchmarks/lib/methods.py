"""Predictors of this package and regressors of well-known libraries, behind one function each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np

from torchx_cubicml.predictors import PREDICTORS, CrossWorkloadFeasibility, Prediction
from torchx_cubicml.predictors.features.columns import UNSEEN
from torchx_cubicml.predictors.features.history import TrainingTable, training_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial

OBJECTIVE = "tokens_per_second"

Method: TypeAlias = "Callable[[Sequence[Trial], Sequence[Trial], int], Prediction]"
Judge: TypeAlias = "Callable[[Sequence[Trial], Sequence[Trial], int], NDArray[np.float64]]"


class Learner(Protocol):
    """Interface that the libraries have in common."""

    def fit(self, inputs: NDArray[np.float64], values: NDArray[np.float64]) -> Self:
        """Learn ``values`` ``[n]`` from ``inputs`` ``[n, n_inputs]``."""

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what is expected of rows, ``[n]``."""


class Classifier(Learner, Protocol):
    """A learner of outcomes."""

    def predict_proba(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each outcome, ``[n, 2]``."""


def ours(train: Sequence[Trial], test: Sequence[Trial], seed: int, *, name: str) -> Prediction:
    """Return the prediction of ``test`` by a predictor of this package."""
    history, features = _encoded(train, test)
    return PREDICTORS[name]().fit(history, rng=np.random.default_rng(seed)).predict(features)


def our_judge(train: Sequence[Trial], test: Sequence[Trial], seed: int) -> NDArray[np.float64]:
    """Return the probability of each of ``test`` to run, by this package, ``[n]``."""
    history, features = _encoded(train, test)
    fitted = CrossWorkloadFeasibility().fit(history, rng=np.random.default_rng(seed))
    return fitted.probability(features, [training_row(trial) for trial in test])


def library(
    train: Sequence[Trial],
    test: Sequence[Trial],
    seed: int,
    *,
    make: Callable[[int], tuple[Learner, Classifier]],
) -> Prediction:
    """Return the prediction of ``test`` by a library's regressor on raw columns, whose spread is unknown: NaN."""
    history, features = _encoded(train, test)
    regressor, _ = make(seed)
    measured = np.isfinite(history.throughput)
    regressor.fit(_without_gaps(history.features[measured]), np.log(history.throughput[measured]))
    logarithm = regressor.predict(_without_gaps(_unseen_as_gaps(history, features)))
    return Prediction(logarithm=logarithm, spread=np.full(len(features), np.nan))


def library_judge(
    train: Sequence[Trial],
    test: Sequence[Trial],
    seed: int,
    *,
    make: Callable[[int], tuple[Learner, Classifier]],
) -> NDArray[np.float64]:
    """Return the probability of each of ``test`` to run, by a library's classifier on raw columns, ``[n]``."""
    history, features = _encoded(train, test)
    _, classifier = make(seed)
    failures = history.columns.encode(list(history.failures))
    outcomes = np.concatenate([history.feasible, np.zeros(len(failures))]).astype(np.float64)
    if len(np.unique(outcomes)) < 2:
        return np.ones(len(features))
    inputs = _without_gaps(np.vstack([history.features, failures]))
    return classifier.fit(inputs, outcomes).predict_proba(_without_gaps(_unseen_as_gaps(history, features)))[:, 1]


def _encoded(train: Sequence[Trial], test: Sequence[Trial]) -> tuple[TrainingTable, NDArray[np.float64]]:
    history = TrainingTable.from_trials(train, objective=OBJECTIVE)
    return history, history.columns.encode([training_row(trial) for trial in test])


def _unseen_as_gaps(history: TrainingTable, features: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.array(history.columns.categorical) & (features >= UNSEEN), np.nan, features)


def _without_gaps(features: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.nan_to_num(features, nan=-1.0)


def _gradient_boosting(seed: int) -> tuple[Learner, Classifier]:
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    settings = {"n_estimators": 300, "learning_rate": 0.05, "max_depth": 5, "subsample": 0.8, "random_state": seed}
    return GradientBoostingRegressor(**settings), GradientBoostingClassifier(**settings)


def _extra_trees(seed: int) -> tuple[Learner, Classifier]:
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    settings = {"n_estimators": 300, "random_state": seed}
    return ExtraTreesRegressor(**settings), ExtraTreesClassifier(**settings)


def _lightgbm(seed: int) -> tuple[Learner, Classifier]:
    from lightgbm import LGBMClassifier, LGBMRegressor

    settings = {"n_estimators": 300, "learning_rate": 0.05, "num_leaves": 31, "min_child_samples": 5, "n_jobs": 1}
    return LGBMRegressor(**settings, random_state=seed, verbose=-1), LGBMClassifier(
        **settings, random_state=seed, verbose=-1
    )


def _xgboost(seed: int) -> tuple[Learner, Classifier]:
    from xgboost import XGBClassifier, XGBRegressor

    settings = {"n_estimators": 300, "learning_rate": 0.05, "max_depth": 6, "subsample": 0.8, "n_jobs": 1}
    return XGBRegressor(**settings, random_state=seed), XGBClassifier(**settings, random_state=seed)


_MAKES: dict[str, Callable[[int], tuple[Learner, Classifier]]] = {
    "sklearn GB": _gradient_boosting,
    "sklearn ET": _extra_trees,
    "LightGBM": _lightgbm,
    "XGBoost": _xgboost,
}
OURS: dict[str, Method] = {name: partial(ours, name=name) for name in PREDICTORS}
LIBRARIES: dict[str, Method] = {name: partial(library, make=make) for name, make in _MAKES.items()}
JUDGES: dict[str, Judge] = {
    "ours": our_judge,
    **{name: partial(library_judge, make=make) for name, make in _MAKES.items()},
}
"""Classifiers of what will run, by name; one serves all predictors of this package."""
