"""Predictors of this package and regressors of well-known libraries, behind one function each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np

from torchx_cubicml.history import History, training_row
from torchx_cubicml.predictors import PREDICTORS, Feasibility

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.trial import Trial

OBJECTIVE = "tokens_per_second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a method says of ``n`` trials.

    Args:
        throughput: median expected, whole job, ``[n]``.
        fits: probability to run, ``[n]``.
        low: lower end of the 80 % interval, ``[n]``; ``None`` where the method has none.
        high: upper end.
    """

    throughput: NDArray[np.float64]
    fits: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None


Method: TypeAlias = "Callable[[Sequence[Trial], Sequence[Trial], int], Told]"


class Learner(Protocol):
    """What the libraries have in common."""

    def fit(self, inputs: NDArray[np.float64], values: NDArray[np.float64]) -> Self:
        """Learn ``values`` ``[n]`` from ``inputs`` ``[n, n_inputs]``."""

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what is expected of rows, ``[n]``."""


class Classifier(Learner, Protocol):
    """A learner of outcomes."""

    def predict_proba(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each outcome, ``[n, 2]``."""


def ours(train: Sequence[Trial], test: Sequence[Trial], seed: int, *, name: str) -> Told:
    """Return what a predictor of this package, and its probability to fit, say of ``test``."""
    history = History.from_trials(train, objective=OBJECTIVE)
    rows = [training_row(trial) for trial in test]
    features = history.columns.encode(rows)
    rng = np.random.default_rng(seed)
    prediction = PREDICTORS[name]().fit(history, rng=rng).predict(features)
    fits = Feasibility().fit(history, rng=rng).probability(features, rows)
    return Told(
        throughput=prediction.throughput, fits=fits, low=prediction.quantile(0.1), high=prediction.quantile(0.9)
    )


def library(
    train: Sequence[Trial],
    test: Sequence[Trial],
    seed: int,
    *,
    make: Callable[[int], tuple[Learner, Classifier]],
) -> Told:
    """Return what a library's regressor and classifier say of ``test``: raw columns, logarithm of throughput."""
    history = History.from_trials(train, objective=OBJECTIVE)
    regressor, classifier = make(seed)
    measured = np.isfinite(history.throughput)
    inputs = np.nan_to_num(history.features, nan=-1.0)
    asked = np.nan_to_num(history.columns.encode([training_row(trial) for trial in test]), nan=-1.0)
    regressor.fit(inputs[measured], np.log(history.throughput[measured]))
    failures = np.nan_to_num(history.columns.encode(list(history.failures)), nan=-1.0)
    outcomes = np.concatenate([history.feasible, np.zeros(len(failures))]).astype(np.float64)
    fits = np.ones(len(asked))
    if len(np.unique(outcomes)) > 1:
        fits = classifier.fit(np.vstack([inputs, failures]), outcomes).predict_proba(asked)[:, 1]
    return Told(throughput=np.exp(regressor.predict(asked)), fits=fits)


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


OURS: dict[str, Method] = {name: partial(ours, name=name) for name in PREDICTORS}
LIBRARIES: dict[str, Method] = {
    "sklearn GB": partial(library, make=_gradient_boosting),
    "sklearn ET": partial(library, make=_extra_trees),
    "LightGBM": partial(library, make=_lightgbm),
    "XGBoost": partial(library, make=_xgboost),
}
