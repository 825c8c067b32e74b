"""The probability that a config fits, for the few outcomes of one workload: where the memory wall is believed to run.

Bayesian logistic regression with a prior that says which choices are hungry (``limits``) and that numbers and choices
of unknown appetite may be either way; one layer may matter more than another. Hard limits come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.feasibility import KNOWN_TO_FIT
from torchx_cubicml.predictors.limits import BATCH, Limits, hunger_of
from torchx_cubicml.predictors.places import Places
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.features import Columns
    from torchx_cubicml.history import History
    from torchx_cubicml.trial import Scalar, Value

# Logits; the wall is sharp, so they are large. Each standard deviation is at least as large as its mean.
_FITS = 12.0  # of a config without any appetite
_PER_HUNGER = -20.0  # every layer one step hungrier
_PER_BATCH, _BATCH_SD = -16.0, 32.0  # from the smallest micro batch to the largest
_UNKNOWN_NUMBER, _UNKNOWN_SHARE, _UNKNOWN_CATEGORY = 8.0, 20.0, 8.0
_TOGETHER, _APART = 0.9, 0.45  # how far the hungers of one layer deviate alike, and each for itself
_UNKNOWN_CAUSE = 0.6  # weight of a failure whose cause is not known
_MOST_LOGIT = 8.0
_STEPS = 60


class MemoryWall:
    """Probability that a config of one workload fits.

    Args:
        compare: see ``Feasibility``.
        tuned: parameters that candidates may vary -> their choices.
    """

    def __init__(self, *, compare: Sequence[str] = (), tuned: Mapping[str, Sequence[Scalar]] | None = None) -> None:
        self.compare = tuple(compare)
        self.tuned = dict(tuned or {})

    def fit(self, history: History) -> Self:
        """Learn from the outcomes of ``history``, one at least."""
        self.limits_ = Limits.of(zip(history.rows, history.feasible.tolist(), strict=True), names=self.compare)
        features = np.vstack([history.features, history.columns.encode(list(history.failures))])
        fitted = np.concatenate([history.feasible, np.zeros(len(history.failures))]).astype(np.float64)
        trust = np.where(np.arange(len(features)) < len(history.rows), 1.0, _UNKNOWN_CAUSE)
        self.places_ = Places.of(features, history.columns, tuned=self.tuned)
        self.hunger_ = _hunger(self.places_, history.columns)
        with one_thread():
            design, offset = self._design(features)
            self.weights_, self.covariance_ = _most_probable(design, offset, fitted, trust)
        return self

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the probability to fit, float64 ``[n]``; 0.0 exactly where it is known not to; see ``Feasibility``."""
        known = self.limits_.verdicts(rows)
        with one_thread():
            design, offset = self._design(features)
            variance = np.einsum("ij,ij->i", design @ self.covariance_, design)
            # MacKay's moderated output: what is not known draws towards one half.
            logit = (offset + design @ self.weights_) / np.sqrt(1.0 + np.pi * variance / 8.0)
        learned = 1.0 / (1.0 + np.exp(-np.clip(logit, -_MOST_LOGIT, _MOST_LOGIT)))
        return np.where(known == 0.0, 0.0, np.where(known == 1.0, np.maximum(learned, KNOWN_TO_FIT), learned))

    def _design(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return columns scaled so that each weight's prior is standard normal, and the prior's mean logit."""
        points = self.places_.points(features)
        offset = np.full(len(points), _FITS)
        blocks = [np.full((len(points), 1), _FITS), _UNKNOWN_CATEGORY * points.categories]
        for number, values in zip(self.places_.numbers, points.numbers.T, strict=True):
            offset += _PER_BATCH * values if number.name == BATCH else 0.0
            blocks.append((_BATCH_SD if number.name == BATCH else _UNKNOWN_NUMBER) * values[:, None])
        for column, hunger in zip(points.categories.T, self.hunger_[0], strict=True):
            offset += _PER_HUNGER * hunger * column
        for layered, members, shares, hunger in zip(
            self.places_.layered, points.members, points.shares, self.hunger_[1:], strict=True
        ):
            scale = _PER_HUNGER * hunger if hunger.any() else np.full(len(hunger), _UNKNOWN_SHARE)
            offset += _PER_HUNGER * (shares @ hunger)
            own = (members - shares[:, :, None]) * scale[:, None] / len(layered.columns)
            blocks += [shares * scale, _TOGETHER * own.sum(axis=1), _APART * own.reshape(len(own), -1)]
        return np.hstack(blocks), offset


def _hunger(places: Places, columns: Columns) -> list[NDArray[np.float64]]:
    """Return the hunger of each category's indicator, then of each layered parameter's codes."""
    plain = np.zeros(len(places.indicators))
    found = [plain]
    for name, number in zip(places.category_names, range(len(places.category_names)), strict=True):
        for place in np.flatnonzero(places.category_of == number):
            column, code = places.indicators[place]
            plain[place] = _hunger_of_code(columns, name, column, code)
    for layered in places.layered:
        each = [_hunger_of_code(columns, layered.name, layered.columns[0], code) for code in layered.codes]
        found.append(np.array(each))
    return found


def _hunger_of_code(columns: Columns, name: str, column: int, code: float) -> float:
    for value, hunger in hunger_of(name).items():
        if columns.encode([{name: value}])[0, column] == code:
            return hunger
    return 0.0


def _most_probable(
    design: NDArray[np.float64], offset: NDArray[np.float64], labels: NDArray[np.float64], trust: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of highest posterior density and their covariance, by damped Newton steps."""
    weights: NDArray[np.float64] = np.zeros(design.shape[1])
    value = _log_posterior(weights, design, offset, labels, trust)
    for _ in range(_STEPS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(offset + design @ weights, -30.0, 30.0)))
        gradient = design.T @ (trust * (labels - chance)) - weights
        curvature = (design.T * (trust * chance * (1.0 - chance))) @ design + np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        if np.abs(step).max() < 1e-4:
            break
        for damping in 0.5 ** np.arange(12):
            found = _log_posterior(weights + damping * step, design, offset, labels, trust)
            if found > value:
                weights, value = weights + damping * step, found
                break
        else:
            break
    return weights, np.asarray(np.linalg.inv(curvature), dtype=np.float64)


def _log_posterior(
    weights: NDArray[np.float64],
    design: NDArray[np.float64],
    offset: NDArray[np.float64],
    labels: NDArray[np.float64],
    trust: NDArray[np.float64],
) -> float:
    logit = offset + design @ weights
    return float(-(trust * np.logaddexp(0.0, np.where(labels > 0.5, -logit, logit))).sum() - 0.5 * weights @ weights)
