"""A Gaussian process for the tens to hundreds of trials of one workload.

Its kernel (``kernel``) says what configs have in common; its hyper-parameters are the most probable ones under priors.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.gaussian_process.kernel import Prior, Sample, most_probable
from torchx_cubicml.predictors.gaussian_process.outliers import LOG_CHANCE, find_outliers
from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder
from torchx_cubicml.predictors.gaussian_process.prior_mean import PriorMean
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History, MeasuredRows
    from torchx_cubicml.predictors.gaussian_process.points import EncodedConfigs
    from torchx_cubicml.records.trial import Scalar

_MOST_ROWS = 400  # beyond, a random part of them teaches: a fit is cubic in their number
_NOISE = 0.015  # of one measurement, before there are repeats
_CENTRE = 0.7  # quantile of the logarithms at which the process rests: slow configs are outliers, not the rule
# Log spread between configs believed at first, and how many trials that weighs; where no layer chooses, one choice
# moves more.
_USUAL_SPREAD, _USUAL_SPREAD_OF_PLAIN = (0.3, 2), (0.6, 4)

# Shares of signal and noise between which a claim is averaged: factors on the variances, and on the usual noise.
_SIZES, _NOISES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001), (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
_WIDE_SIZE_SD, _WIDE_NOISE_SD = 3.0, 1.2
_LEAST_CHANCE = 0.01  # of shares that count
_NOISES_OF_REPEATS, _NOISE_SD_OF_REPEATS = (
    (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0),
    0.7,
)  # a few repeats tell it roughly

_Share: TypeAlias = "tuple[float, NDArray[np.float64]]"  # of signal and noise: a factor, and variances ``[n]``
_DOUBT_ROUNDS = 3  # of doubting measurements and learning from the others


class GaussianProcess:
    """The ``gaussian_process`` predictor.

    Args:
        tuned: parameters that candidates may vary -> their choices, so that one that never varied is not left out.
        noise: standard deviation of the logarithm of a measurement beyond what its run tells of itself, as repeats tell
            it; ``None`` before there are any.
        hopeful: whether what is usual of throughput (``prior_mean``) is expected before anything is measured.
        crowding: how near to the memory wall encoded rows come, ``[n, 1]``, where that is known.
    """

    def __init__(
        self,
        *,
        tuned: Mapping[str, Sequence[Scalar]] | None = None,
        noise: float | None = None,
        hopeful: bool = False,
        memory_pressure: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    ) -> None:
        self.tuned = dict(tuned or {})
        self.noise = noise
        self.hopeful = hopeful
        self.memory_pressure = memory_pressure

    def fit(self, history: History, *, rng: np.random.Generator) -> Self:
        """Learn from the measured rows of ``history``; see ``Predictor``."""
        rows = history.measured
        self.n_measured_ = len(rows)
        if self.n_measured_:
            if len(rows) > _MOST_ROWS:
                rows = rows.rows(np.sort(rng.permutation(len(rows))[:_MOST_ROWS]))
            with one_thread():
                self.places_ = ConfigEncoder.of(history.features, history.columns, tuned=self.tuned)
                self.usual_ = PriorMean.of(self.places_, history.columns) if self.hopeful else None
                self._fit_trusted(rows, rng)
        return self

    def _fit_trusted(self, rows: MeasuredRows, rng: np.random.Generator) -> None:
        """Learn from all measurements, or without those held up by something else, whichever is the likelier."""
        self._fit(rows, rng)
        self.doubted_ = np.zeros(len(rows), dtype=np.bool_)
        self.features_ = rows.features
        prior = self._prior(rows.features)
        told, kernel, likeliest = self, prior.kernel(np.zeros(len(prior.medians))), self
        for _ in range(_DOUBT_ROUNDS):
            points = self._points(rows.features)
            rest = (rows.logarithm - self._trend(points) - told.centre_) / told.scale_
            sample = Sample(points, rest, (rows.uncertainty / told.scale_) ** 2)
            doubted = find_outliers(kernel, sample, scale=told.scale_)
            if (doubted == told.doubted_).all():
                break
            told = copy(self)
            told._fit(rows.rows(~doubted), rng)
            told.doubted_ = doubted
            kernel = replace(told.kernel_, noise=min(told.kernel_.noise, told.prior_noise_))
            told.evidence_ += LOG_CHANCE * doubted.sum()
            likeliest = max(likeliest, told, key=lambda process: process.evidence_)
        vars(self).update(vars(likeliest))

    def outliers(self, features: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether rows were measured and no measurement of them is trusted, ``[n]``."""
        if not self.n_measured_:
            return np.zeros(len(features), dtype=np.bool_)
        trusted = {row.tobytes() for row in self.features_[~self.doubted_]}
        doubted = {row.tobytes() for row in self.features_[self.doubted_]} - trusted
        return np.array([row.tobytes() in doubted for row in features], dtype=np.bool_)

    def _fit(self, rows: MeasuredRows, rng: np.random.Generator) -> None:
        self.points_ = self._points(rows.features)
        target = rows.logarithm - self._trend(self.points_)
        usual, weight = _USUAL_SPREAD if self.places_.layered else _USUAL_SPREAD_OF_PLAIN
        trust = usual**2 / (usual**2 + rows.uncertainty**2)
        self.centre_ = weighted_quantile(target, trust, _CENTRE)
        squares = float(trust @ (target - np.average(target, weights=trust)) ** 2) + weight * usual**2
        self.scale_ = math.sqrt(squares / (float(trust.sum()) + weight))
        self.rest_ = (target - self.centre_) / self.scale_
        self.own_noise_ = (rows.uncertainty / self.scale_) ** 2
        self.prior_noise_ = (self.noise or _NOISE) / self.scale_
        prior = self._prior(rows.features)
        self.kernel_, log_posterior = most_probable(prior, Sample(self.points_, self.rest_, self.own_noise_), rng)
        self.evidence_ = log_posterior - len(target) * math.log(self.scale_)
        self._condition()

    def _prior(self, features: NDArray[np.float64]) -> Prior:
        n_repeats = 0 if self.noise is None else len(features) - len({row.tobytes() for row in features})
        return Prior.of(self.places_, noise=self.prior_noise_, n_repeats=n_repeats)

    def _points(self, features: NDArray[np.float64]) -> EncodedConfigs:
        points = self.places_.points(features)
        return (
            points if self.memory_pressure is None else replace(points, memory_pressure=self.memory_pressure(features))
        )

    def _trend(self, points: EncodedConfigs) -> NDArray[np.float64]:
        """Return what is expected before anything is measured, ``[n]``."""
        return np.zeros(len(points)) if self.usual_ is None else self.usual_.at(points)

    def _condition(self) -> None:
        self.inverse_ = np.linalg.inv(np.linalg.cholesky(self._gram()))
        self.weights_ = self.inverse_.T @ (self.inverse_ @ self.rest_)
        self.likely_: list[tuple[float, _Share]] = []  # told when it is asked for

    def _gram(self) -> NDArray[np.float64]:
        return self.kernel_.between(self.points_, self.points_) + np.diag(self.kernel_.noise_of(self.own_noise_))

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            unknown = np.full(len(features), np.nan)
            return Prediction(throughput=unknown, spread=unknown)
        logarithm, spread = self.latent(features)
        return Prediction.at(logarithm, np.hypot(spread, self.noise_))

    @property
    def noise_(self) -> float:
        """Standard deviation of the logarithm of one measurement, as learned."""
        return self.kernel_.noise * self.scale_

    def latent(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the logarithm of the true throughput, ``[n]`` each."""
        with one_thread():
            points = self._points(features)
            across = self.kernel_.between(points, self.points_)
            mean = across @ self.weights_
            known = np.einsum("ij,ij->i", *(2 * [across @ self.inverse_.T]))
            variance = np.maximum(self.kernel_.alone(points) - known, 1e-10)
        return self.centre_ + self._trend(points) + self.scale_ * mean, self.scale_ * np.sqrt(variance)

    def joint(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean, ``[n]``, and covariance, ``[n, n]``, of the logarithms of the true throughputs of few rows."""
        with one_thread():
            points = self._points(features)
            across = self.kernel_.between(points, self.points_)
            half = across @ self.inverse_.T
            covariance = self.kernel_.between(points, points) - half @ half.T
        mean = self.centre_ + self._trend(points) + self.scale_ * (across @ self.weights_)
        return mean, self.scale_**2 * covariance

    def fantasize(self, features: NDArray[np.float64]) -> Self:
        """Return this process as if the rows of ``features`` had been measured at their means (kriging believer).

        The means stay as they are; what is near those rows is no longer uncertain.
        """
        return self._given(features, self.latent(features)[0])

    def sample_function(self, features: NDArray[np.float64], *, rng: np.random.Generator) -> Self:
        """Return this process as if the rows of ``features`` had been measured at values drawn from what it believes.

        Its mean is then one function that the measurements allow: a Thompson draw, told at those rows.
        """
        return self._given(features, self.sample(features, count=1, rng=rng)[0])

    def sample(self, features: NDArray[np.float64], *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
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
            points = self._points(features)
            known, across = (self.kernel_.between(each, self.points_) for each in (self.points_, points))
            alone = self.kernel_.between(points, points)
            self.likely_ = self.likely_ or self._shares_of_noise(known)
            trend = self._trend(points)
            found = [(chance, *self._believed(known, across, alone, share)) for chance, share in self.likely_]
            return [(chance, trend + mean, covariance) for chance, mean, covariance in found]

    def _shares_of_noise(self, known: NDArray[np.float64]) -> list[tuple[float, _Share]]:
        """Return likely factors on the signal's variances with variances of noise, each with its probability first."""
        ratios, wide = (_NOISES, _WIDE_NOISE_SD) if self.noise is None else (_NOISES_OF_REPEATS, _NOISE_SD_OF_REPEATS)
        shares, logs = [], []
        for ratio in ratios:
            noise = replace(self.kernel_, noise=ratio * self.prior_noise_).noise_of(self.own_noise_)
            # Beside noise that is alike in all rows each size of the signal has the same axes.
            scale = noise**-0.5
            values, vectors = np.linalg.eigh(scale[:, None] * known * scale)
            values, along = np.maximum(values, 0.0), (vectors.T @ (scale * self.rest_)) ** 2
            for size in _SIZES:
                total = size * values + 1.0
                prior = -0.5 * (math.log(ratio) / wide) ** 2 - 0.5 * (math.log(size) / _WIDE_SIZE_SD) ** 2
                logs.append(prior - 0.5 * float((along / total).sum() + np.log(total).sum() + np.log(noise).sum()))
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
        share: _Share,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        size, noise = share
        root = np.linalg.cholesky(size * known + np.diag(noise))
        half = np.linalg.solve(root, size * across.T)
        mean = half.T @ np.linalg.solve(root, self.rest_)
        covariance = size * alone - half.T @ half
        return self.centre_ + self.scale_ * mean, self.scale_**2 * covariance

    def _given(self, features: NDArray[np.float64], logarithms: NDArray[np.float64]) -> Self:
        told = copy(self)
        points = self._points(features)
        told.points_ = self.points_.and_then(points)
        told.rest_ = np.concatenate([self.rest_, (logarithms - self._trend(points) - self.centre_) / self.scale_])
        told.own_noise_ = np.concatenate([self.own_noise_, np.zeros(len(points))])
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
