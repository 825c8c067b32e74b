"""A Gaussian process for the tens to hundreds of trials of one workload.

Its kernel says what configs have in common: how many layers take each choice, numbers and categories (smooth in all of
them, and where no layer chooses each by itself), which layers those are (linear, neighbouring or equally large layers
alike), and how many layers match. All that is generic over the names of parameters. Hyper-parameters are the most
probable ones under priors.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.places import Places
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.usual import Usual

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.history import History
    from torchx_cubicml.predictors.places import Layered, Points
    from torchx_cubicml.trial import Scalar

_MOST_ROWS = 400  # beyond, a random part of them teaches: a fit is cubic in their number
_CENTRE = 0.7  # quantile of the logarithms at which the process rests: slow configs are outliers, not the rule
_USUAL_SCALE, _USUAL_WEIGHT = 0.3, 2  # log spread between configs believed at first, and how many trials that weighs
_TRIES = 150  # perturbations of the hyper-parameters for a hundred rows

# Prior medians; variances are of standardised logarithms.
_SMOOTH, _LINEAR, _MATCHING, _NOISE = 0.3, 0.05, 0.01, 0.015
_ALONE = 0.5  # of what each parameter does by itself, all together, where no layer chooses
_SHARE_LENGTH, _NUMBER_LENGTH, _CATEGORY_LENGTH = 0.7, 0.6, 0.7
_MATCH_LENGTH, _LAYER_LENGTH, _LAYER_CORRELATION = 0.5, 3.0, 0.5
# Shares of signal and noise between which a claim is averaged: factors on the variances, and on the usual noise.
_SIZES, _NOISES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001), (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
_WIDE_SIZE_SD, _WIDE_NOISE_SD = 3.0, 1.2
_LEAST_CHANCE = 0.01  # of shares that count
_NOISES_OF_REPEATS, _NOISE_SD_OF_REPEATS = (0.5, 0.7, 1.0, 1.4, 2.0), 0.4
_VARIANCE_SD, _LENGTH_SD, _NOISE_SD = 1.0, 0.5, 0.8  # of the logarithms


class GaussianProcess:
    """The ``gaussian_process`` predictor.

    Args:
        tuned: parameters that candidates may vary -> their choices, so that one that never varied is not left out.
        noise: standard deviation of the logarithm of one measurement, as repeats tell it; ``None`` before there are
            any.
        hopeful: whether what is usual of throughput (``usual``) is expected before anything is measured.
    """

    def __init__(
        self,
        *,
        tuned: Mapping[str, Sequence[Scalar]] | None = None,
        noise: float | None = None,
        hopeful: bool = False,
    ) -> None:
        self.tuned = dict(tuned or {})
        self.noise = noise
        self.hopeful = hopeful

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the measured rows of ``history``; see ``Predictor``."""
        measured = np.isfinite(history.throughput) & (history.throughput > 0)
        features, target = history.features[measured], np.log(history.throughput[measured])
        self.n_measured_ = len(target)
        if self.n_measured_:
            order = np.lexsort(np.column_stack([target, features]).T)
            if len(order) > _MOST_ROWS:
                order = order[np.sort(rng.permutation(len(order))[:_MOST_ROWS])]
            with one_thread():
                self._fit(features[order], target[order], history, rng)
        return self

    def _fit(
        self, features: NDArray[np.float64], target: NDArray[np.float64], history: History, rng: np.random.Generator
    ) -> None:
        self.places_ = Places.of(history.features, history.columns, tuned=self.tuned)
        self.points_ = self.places_.points(features)
        self.usual_ = Usual.of(self.places_, history.columns) if self.hopeful else None
        target = target - self._trend(self.points_)
        self.centre_ = float(np.quantile(target, _CENTRE))
        squares = len(target) * float(target.var()) + _USUAL_WEIGHT * _USUAL_SCALE**2
        self.scale_ = math.sqrt(squares / (len(target) + _USUAL_WEIGHT))
        self.rest_ = (target - self.centre_) / self.scale_
        self.prior_noise_ = (self.noise or _NOISE) / self.scale_
        prior = _Prior.of(self.places_, noise=self.prior_noise_)
        self.kernel_, log_posterior = _most_probable(prior, self.points_, self.rest_, rng)
        self.evidence_ = log_posterior - len(target) * math.log(self.scale_)
        self._condition()

    def _trend(self, points: Points) -> NDArray[np.float64]:
        """Return what is expected before anything is measured, ``[n]``."""
        return np.zeros(len(points)) if self.usual_ is None else self.usual_.at(points)

    def _condition(self) -> None:
        self.inverse_ = np.linalg.inv(np.linalg.cholesky(self._gram()))
        self.weights_ = self.inverse_.T @ (self.inverse_ @ self.rest_)

    def _gram(self) -> NDArray[np.float64]:
        noise = self.kernel_.noise**2 + 1e-9
        gram = self.kernel_.between(self.points_, self.points_) + noise * np.eye(len(self.points_))
        return np.asarray(gram, dtype=np.float64)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            unknown = np.full(len(features), np.nan)
            return Prediction(throughput=unknown, spread=unknown)
        logarithm, spread = self.latent(features)
        return Prediction(throughput=np.exp(logarithm), spread=np.hypot(spread, self.noise_))

    @property
    def noise_(self) -> float:
        """Standard deviation of the logarithm of one measurement, as learned."""
        return self.kernel_.noise * self.scale_

    def latent(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the logarithm of the true throughput, ``[n]`` each."""
        with one_thread():
            points = self.places_.points(features)
            across = self.kernel_.between(points, self.points_)
            mean = across @ self.weights_
            known = np.einsum("ij,ij->i", *(2 * [across @ self.inverse_.T]))
            variance = np.maximum(self.kernel_.alone(points) - known, 1e-10)
        return self.centre_ + self._trend(points) + self.scale_ * mean, self.scale_ * np.sqrt(variance)

    def joint(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean, ``[n]``, and covariance, ``[n, n]``, of the logarithms of the true throughputs of few rows."""
        with one_thread():
            points = self.places_.points(features)
            across = self.kernel_.between(points, self.points_)
            half = across @ self.inverse_.T
            covariance = self.kernel_.between(points, points) - half @ half.T
        mean = self.centre_ + self._trend(points) + self.scale_ * (across @ self.weights_)
        return mean, self.scale_**2 * covariance

    def believing(self, features: NDArray[np.float64]) -> Self:
        """Return this process as if the rows of ``features`` had been measured at their means (kriging believer).

        The means stay as they are; what is near those rows is no longer uncertain.
        """
        return self._given(features, self.latent(features)[0])

    def drawn(self, features: NDArray[np.float64], *, rng: np.random.Generator) -> Self:
        """Return this process as if the rows of ``features`` had been measured at values drawn from what it believes.

        Its mean is then one function that the measurements allow: a Thompson draw, told at those rows.
        """
        return self._given(features, self.draws(features, count=1, rng=rng)[0])

    def draws(self, features: NDArray[np.float64], *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return logarithms of true throughputs of few rows, drawn together from what is believed, ``[count, n]``."""
        return drawn_from(*self.joint(features), count=count, rng=rng)

    def alternatives(
        self, features: NDArray[np.float64]
    ) -> list[tuple[float, NDArray[np.float64], NDArray[np.float64]]]:
        """Return probability, mean ``[n]`` and covariance ``[n, n]`` of few rows by each likely share of noise.

        What few measurements differ by may be either; the most probable shares alone would be too sure of one. Noise
        has a wide prior here, and so has the size of what is smooth: it may all be noise.
        """
        with one_thread():
            points = self.places_.points(features)
            known, across = (self.kernel_.between(each, self.points_) for each in (self.points_, points))
            alone = self.kernel_.between(points, points)
            likely = self._shares_of_noise(known)
            trend = self._trend(points)
            found = [(chance, *self._believed(known, across, alone, share)) for chance, share in likely]
            return [(chance, trend + mean, covariance) for chance, mean, covariance in found]

    def _shares_of_noise(self, known: NDArray[np.float64]) -> list[tuple[float, tuple[float, float]]]:
        """Return likely factors on the signal's variances with variances of noise, each with its probability first."""
        ratios, wide = (_NOISES, _WIDE_NOISE_SD) if self.noise is None else (_NOISES_OF_REPEATS, _NOISE_SD_OF_REPEATS)
        values, vectors = np.linalg.eigh(known)
        values, along = np.maximum(values, 0.0), (vectors.T @ self.rest_) ** 2
        shares, logs = [], []
        for size, ratio in product(_SIZES, ratios):
            noise = (ratio * self.prior_noise_) ** 2 + 1e-9
            total = size * values + noise
            prior = -0.5 * (math.log(ratio) / wide) ** 2 - 0.5 * (math.log(size) / _WIDE_SIZE_SD) ** 2
            logs.append(prior - 0.5 * float((along / total).sum() + np.log(total).sum()))
            shares.append((size, noise))
        chances = np.exp(np.array(logs) - max(logs))
        chances /= chances.sum()
        return [
            (chance, share) for chance, share in zip(chances.tolist(), shares, strict=True) if chance > _LEAST_CHANCE
        ]

    def _believed(
        self,
        known: NDArray[np.float64],
        across: NDArray[np.float64],
        alone: NDArray[np.float64],
        share: tuple[float, float],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        size, noise = share
        root = np.linalg.cholesky(size * known + noise * np.eye(len(known)))
        half = np.linalg.solve(root, size * across.T)
        mean = half.T @ np.linalg.solve(root, self.rest_)
        covariance = size * alone - half.T @ half
        return self.centre_ + self.scale_ * mean, self.scale_**2 * covariance

    def _given(self, features: NDArray[np.float64], logarithms: NDArray[np.float64]) -> Self:
        told = copy(self)
        points = self.places_.points(features)
        told.points_ = self.points_.and_then(points)
        told.rest_ = np.concatenate([self.rest_, (logarithms - self._trend(points) - self.centre_) / self.scale_])
        told._condition()
        return told


def drawn_from(
    mean: NDArray[np.float64], covariance: NDArray[np.float64], *, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return draws from a normal, ``[count, n]``."""
    # Of rows that are alike the covariance has no inverse.
    jitter = 1e-7 * (1e-6 + float(np.diag(covariance).max(initial=0.0)))
    root = np.linalg.cholesky(covariance + jitter * np.eye(len(mean)))
    return np.asarray(mean + rng.standard_normal((count, len(mean))) @ root.T, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Prior:
    """Medians and log standard deviations of the hyper-parameters, and what each of them is of."""

    places: Places
    medians: NDArray[np.float64]
    deviations: NDArray[np.float64]

    @classmethod
    def of(cls, places: Places, *, noise: float) -> Self:
        n_numbers, n_categories = len(places.numbers), len(places.category_names)
        n_shares = sum(len(layered.codes) for layered in places.layered)
        medians = [
            _SMOOTH,
            _LINEAR,
            _MATCHING,
            _ALONE,
            noise,
            _MATCH_LENGTH,
            _LAYER_LENGTH,
            _odds(_LAYER_CORRELATION),
        ]
        deviations = [_VARIANCE_SD] * 4 + [_NOISE_SD] + [_LENGTH_SD] * 3
        medians += [_NUMBER_LENGTH] * n_numbers + [_CATEGORY_LENGTH] * n_categories + [_SHARE_LENGTH] * n_shares
        deviations += [_LENGTH_SD] * (n_numbers + n_categories + n_shares)
        return cls(places, np.array(medians), np.array(deviations))

    def kernel(self, shifts: NDArray[np.float64]) -> _Kernel:
        """Return the kernel whose hyper-parameters are ``shifts`` deviations off their medians."""
        values = self.medians * np.exp(shifts * self.deviations)
        lengths = values[8:]
        n_numbers, n_categories = len(self.places.numbers), len(self.places.category_names)
        numbers, categories, shares = np.split(lengths, [n_numbers, n_numbers + n_categories])
        return _Kernel(
            layered=self.places.layered,
            variances=values[:4],
            noise=float(values[4]),
            match_length=float(values[5]),
            layer_length=float(values[6]),
            correlation=float(values[7] / (1.0 + values[7])),
            plain=1.0 / np.concatenate([numbers, math.sqrt(2.0) * categories[self.places.category_of]]),
            shares=1.0 / (math.sqrt(2.0) * shares),
            fact_of=np.concatenate([np.arange(n_numbers), n_numbers + self.places.category_of]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """Covariance of two configs; ``plain`` and ``shares`` are inverse lengths of numbers, categories and shares."""

    layered: tuple[Layered, ...]
    variances: NDArray[np.float64]
    noise: float
    match_length: float
    layer_length: float
    correlation: float
    plain: NDArray[np.float64]
    shares: NDArray[np.float64]
    fact_of: NDArray[np.intp]

    def between(self, left: Points, right: Points) -> NDArray[np.float64]:
        """Return the covariance of each two points, ``[n_left, n_right]``."""
        plain = _squares(self._plain(left), self._plain(right))
        shares = _squares(self._shares(left), self._shares(right)) if self.layered else 0.0
        smooth, linear, matching, alone = self.variances
        total = np.asarray(smooth * _matern(plain + shares), dtype=np.float64)
        if not self.layered:
            return np.asarray(total + alone * self._one_by_one(left, right), dtype=np.float64)
        near, wide = _matern(plain), _matern(0.25 * plain)
        for layered, one, other in zip(self.layered, left.members, right.members, strict=True):
            match = _flat(one * layered.weights) @ _flat(other).T
            total += matching * np.exp(-(1.0 - match) / self.match_length) * near
            both = _flat(_centred(one, layered) @ self._layers(layered)) @ _flat(_centred(other, layered)).T
            total += linear / len(layered.weights) * both * wide
        return total

    def alone(self, points: Points) -> NDArray[np.float64]:
        """Return the variance of each point, ``[n]``: the diagonal of ``between`` with itself."""
        smooth, linear, matching, alone = self.variances
        total = np.full(len(points), smooth + (0.0 if self.layered or not len(self.fact_of) else alone))
        for layered, members in zip(self.layered, points.members, strict=True):
            missing = 1.0 - members.sum(axis=1) @ layered.weights
            total += matching * np.exp(-missing / self.match_length)
            centred = _centred(members, layered)
            both = np.einsum("ncl,ncl->n", centred @ self._layers(layered), centred)
            total += linear / len(layered.weights) * both
        return total

    def _one_by_one(self, left: Points, right: Points) -> NDArray[np.float64]:
        """Return the covariance of what each number and category does by itself, 1 of a point with itself."""
        one, other = self._plain(left), self._plain(right)
        total = np.zeros((len(left), len(right)))
        facts = np.unique(self.fact_of)
        for fact in facts.tolist():
            columns = self.fact_of == fact
            total += _matern(_squares(one[:, columns], other[:, columns])) / len(facts)
        return total

    def _layers(self, layered: Layered) -> NDArray[np.float64]:
        alike = np.exp(-layered.distance / self.layer_length)
        return np.asarray(self.correlation * alike + (1.0 - self.correlation) * np.eye(len(alike)), dtype=np.float64)

    def _plain(self, points: Points) -> NDArray[np.float64]:
        return np.hstack([points.numbers, points.categories]) * self.plain

    def _shares(self, points: Points) -> NDArray[np.float64]:
        return np.hstack(points.shares) * self.shares


def _centred(members: NDArray[np.float64], layered: Layered) -> NDArray[np.float64]:
    """Return memberships beside their shares, each layer as large as it weighs: what is large has large effects."""
    apart = members - (members @ layered.weights)[:, :, None]
    return np.asarray(apart * layered.weights * len(layered.weights), dtype=np.float64)


def _flat(members: NDArray[np.float64]) -> NDArray[np.float64]:
    return members.reshape(len(members), -1)


def _squares(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    cross = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(np.maximum(cross, 0.0), dtype=np.float64)


def _matern(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Matern covariance of smoothness 5/2 at squared distances."""
    scaled = np.sqrt(5.0 * squares)
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled), dtype=np.float64)


def _odds(share: float) -> float:
    return share / (1.0 - share)


def _most_probable(
    prior: _Prior, points: Points, rest: NDArray[np.float64], rng: np.random.Generator
) -> tuple[_Kernel, float]:
    """Return the kernel of highest posterior density that a climb by random steps finds, and the density's log."""
    shifts = np.zeros(len(prior.medians))
    best, stride = _log_posterior(prior, shifts, points, rest), 0.5
    if len(rest) < 3:
        return prior.kernel(shifts), best
    for _ in range(int(np.clip(_TRIES * (100.0 / len(rest)) ** 1.5, 20, _TRIES))):
        step = rng.normal(0.0, stride, len(shifts)) * (rng.random(len(shifts)) < 0.3)
        found = _log_posterior(prior, shifts + step, points, rest)
        # The one-fifth rule of evolution strategies.
        if found > best:
            shifts, best, stride = shifts + step, found, min(stride * 1.5, 1.0)
        else:
            stride = max(stride * 0.9, 0.1)
    return prior.kernel(shifts), best


def _log_posterior(prior: _Prior, shifts: NDArray[np.float64], points: Points, rest: NDArray[np.float64]) -> float:
    kernel = prior.kernel(shifts)
    gram = kernel.between(points, points) + (kernel.noise**2 + 1e-9) * np.eye(len(points))
    try:
        root = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return -math.inf
    white = np.linalg.solve(root, rest)
    return float(-0.5 * white @ white - np.log(np.diag(root)).sum() - 0.5 * shifts @ shifts)
