"""Gaussian process surrogate for the tens to hundreds of trials of one workload.

Its covariance is in ``kernel``; its hyper-parameters are maximum a posteriori (MAP) estimates.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.gaussian_process.kernel import Prior, Sample, fit_map
from torchx_cubicml.predictors.gaussian_process.outliers import LOG_CHANCE, find_outliers
from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder
from torchx_cubicml.predictors.gaussian_process.prior_mean import PriorMean
from torchx_cubicml.predictors.measurement_error import ErrorModel, Launches
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import MeasuredRows, TrainingTable
    from torchx_cubicml.predictors.gaussian_process.points import EncodedConfigs
    from torchx_cubicml.records.values import Scalar

_NOTHING_KNOWN = 1e8  # variance of a measurement that is left out
_MOST_ROWS = 400  # beyond, a random subset is used: a fit is cubic in their number
_NOISE = 0.015  # of one measurement, before there are repeats
_CENTRE_QUANTILE = 0.7  # quantile of the logarithms that is the constant mean: slow configs are outliers, not the rule
# Prior log spread between configs, and its weight in trials. Without per-layer parameters one choice has a larger
# effect.
_PRIOR_SPREAD, _PRIOR_SPREAD_OF_PLAIN = (0.3, 2), (0.6, 4)

# Shares of signal and noise that claims are averaged over: factors on the kernel's variances, and draws of the errors.
_SIZES, _WIDE_SIZE_SD = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001), 3.0
_FEWEST_DRAWS, _MOST_DRAWS, _DRAWN_ROWS = 8, 64, 3000  # an eigenvalue problem each, cubic in the rows
_LEAST_PROBABILITY = 0.003  # shares of lower posterior probability are dropped

_Share: TypeAlias = "tuple[float, NDArray[np.float64]]"  # of signal and noise: a factor, and a covariance ``[n, n]``
_OUTLIER_ROUNDS = 3  # of removing outliers and fitting on the others


class GaussianProcess:
    """The ``gaussian_process`` predictor.

    Args:
        tuned: parameters that candidates may vary -> their choices, so that one that never varied is not left out.
        noise: standard deviation of the logarithm of a measurement, estimated from repeats, beyond the uncertainty
            that its run reported; ``None`` without repeats.
        optimistic: whether to use the optimistic prior mean (``prior_mean``).
        memory_pressure: returns the nearness of encoded rows to the memory limit, ``[n, 1]``, where that is known.
        machine: error model of the measurements; by default, nothing is known of the machine.
    """

    def __init__(
        self,
        *,
        tuned: Mapping[str, Sequence[Scalar]] | None = None,
        noise: float | None = None,
        optimistic: bool = False,
        memory_pressure: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
        machine: ErrorModel | None = None,
    ) -> None:
        self.tuned = dict(tuned or {})
        self.noise = noise
        self.optimistic = optimistic
        self.memory_pressure = memory_pressure
        self.machine = machine or ErrorModel.unknown()

    def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
        """Fit on the measured rows of ``history``; see ``Predictor``."""
        rows = history.measured
        self.n_measured_ = len(rows)
        if self.n_measured_:
            if len(rows) > _MOST_ROWS:
                rows = rows.rows(np.sort(rng.permutation(len(rows))[:_MOST_ROWS]))
            with one_thread():
                self.places_ = ConfigEncoder.of(history.features, history.columns, tuned=self.tuned)
                self.prior_mean_ = PriorMean.of(self.places_, history.columns) if self.optimistic else None
                self._fit_trusted(rows, rng)
        return self

    def _fit_trusted(self, rows: MeasuredRows, rng: np.random.Generator) -> None:
        """Fit on all measurements or on those without the outliers, whichever has the higher evidence."""
        self._fit(rows, rng)
        self.outliers_ = np.zeros(len(rows), dtype=np.bool_)
        self.features_ = rows.features
        prior = self._prior(rows.features)
        fitted, kernel, likeliest = self, prior.kernel(np.zeros(len(prior.medians))), self
        for _ in range(_OUTLIER_ROUNDS):
            points = self._points(rows.features)
            rest = (rows.logarithm - self._prior_mean_at(points) - fitted.centre_) / fitted.scale_
            sample = Sample(points, rest, self.machine.usual(_launches(rows)) / fitted.scale_**2)
            outliers = find_outliers(kernel, sample, scale=fitted.scale_)
            if (outliers == fitted.outliers_).all():
                break
            fitted = copy(self)
            fitted._fit(rows.rows(~outliers), rng)
            fitted.outliers_ = outliers
            kernel = replace(fitted.kernel_, noise=min(fitted.kernel_.noise, fitted.prior_noise_))
            fitted.evidence_ += LOG_CHANCE * outliers.sum()
            likeliest = max(likeliest, fitted, key=lambda process: process.evidence_)
        vars(self).update(vars(likeliest))

    def outliers(self, features: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of rows whose measurements are all outliers, bool ``[n]``."""
        if not self.n_measured_:
            return np.zeros(len(features), dtype=np.bool_)
        trusted = {row.tobytes() for row in self.features_[~self.outliers_]}
        outliers = {row.tobytes() for row in self.features_[self.outliers_]} - trusted
        return np.array([row.tobytes() in outliers for row in features], dtype=np.bool_)

    def _fit(self, rows: MeasuredRows, rng: np.random.Generator) -> None:
        self.points_ = self._points(rows.features)
        target = rows.logarithm - self._prior_mean_at(self.points_)
        prior_spread, weight = _PRIOR_SPREAD if self.places_.layered else _PRIOR_SPREAD_OF_PLAIN
        row_weights = prior_spread**2 / (prior_spread**2 + rows.uncertainty**2)
        self.centre_ = weighted_quantile(target, row_weights, _CENTRE_QUANTILE)
        squares = (
            float(row_weights @ (target - np.average(target, weights=row_weights)) ** 2) + weight * prior_spread**2
        )
        self.scale_ = math.sqrt(squares / (float(row_weights.sum()) + weight))
        self.rest_ = (target - self.centre_) / self.scale_
        self.launches_ = _launches(rows)
        self.errors_ = self.machine.usual(self.launches_) / self.scale_**2
        self.prior_noise_ = (self.noise or _NOISE) / self.scale_
        prior = self._prior(rows.features)
        self.kernel_, log_posterior = fit_map(prior, Sample(self.points_, self.rest_, self.errors_), rng)
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

    def _prior_mean_at(self, points: EncodedConfigs) -> NDArray[np.float64]:
        """Return the prior mean of the logarithm at ``points``, up to a constant, ``[n]``."""
        return np.zeros(len(points)) if self.prior_mean_ is None else self.prior_mean_.at(points)

    def _condition(self) -> None:
        self.inverse_ = np.linalg.inv(np.linalg.cholesky(self._gram()))
        self.weights_ = self.inverse_.T @ (self.inverse_ @ self.rest_)
        self.likely_shares_: list[tuple[float, _Share]] = []  # computed on first use

    def _gram(self) -> NDArray[np.float64]:
        return self.kernel_.between(self.points_, self.points_) + self.kernel_.noise_of(self.errors_)

    def predict(self, features: NDArray[np.float64]) -> Prediction:
        """Return median and spread for encoded rows; see ``Predictor``."""
        if not self.n_measured_:
            return Prediction.unknown(len(features))
        latent = self.latent(features)
        return Prediction.of_measurement(latent.logarithm, np.hypot(latent.spread, self.noise_))

    @property
    def noise_(self) -> float:
        """Standard deviation of the logarithm of one measurement, as fitted."""
        return self.kernel_.noise * self.scale_

    def latent(self, features: NDArray[np.float64]) -> Prediction:
        """Return the posterior of the true throughput, without the noise of a measurement."""
        with one_thread():
            points = self._points(features)
            across = self.kernel_.between(points, self.points_)
            mean = across @ self.weights_
            explained = np.einsum("ij,ij->i", *(2 * [across @ self.inverse_.T]))
            variance = np.maximum(self.kernel_.alone(points) - explained, 1e-10)
        return Prediction(
            logarithm=self.centre_ + self._prior_mean_at(points) + self.scale_ * mean,
            spread=self.scale_ * np.sqrt(variance),
        )

    def joint(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the joint posterior of log true throughputs of few rows: mean ``[n]``, covariance ``[n, n]``."""
        with one_thread():
            points = self._points(features)
            across = self.kernel_.between(points, self.points_)
            half = across @ self.inverse_.T
            covariance = self.kernel_.between(points, points) - half @ half.T
        mean = self.centre_ + self._prior_mean_at(points) + self.scale_ * (across @ self.weights_)
        return mean, self.scale_**2 * covariance

    def without(self, features: NDArray[np.float64]) -> Self:
        """Return the process as if the config of one row had not been measured (leave-one-out)."""
        left_out = self.points_.equal(self._points(features))
        found = copy(self)
        found.errors_ = self.errors_ + np.diag(_NOTHING_KNOWN * left_out)
        found._condition()
        return found

    def fantasize(self, features: NDArray[np.float64]) -> Self:
        """Return the process conditioned on fantasy observations at the posterior means (kriging believer).

        The posterior mean stays as it is; the uncertainty near the rows of ``features`` shrinks.
        """
        return self._conditioned_on(features, self.latent(features).logarithm)

    def sample_function(self, features: NDArray[np.float64], *, rng: np.random.Generator) -> Self:
        """Return the process conditioned on a joint posterior sample at the rows of ``features``.

        Its mean is then a Thompson sample: one function drawn from the posterior, fixed at those rows.
        """
        return self._conditioned_on(features, self.sample(features, count=1, rng=rng)[0])

    def sample(self, features: NDArray[np.float64], *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return joint posterior samples of the logarithms of the true throughputs of few rows, ``[count, n]``."""
        return sample_normal(*self.joint(features), count=count, rng=rng)

    def posterior_mixture(
        self, features: NDArray[np.float64]
    ) -> list[tuple[float, NDArray[np.float64], NDArray[np.float64]]]:
        """Return probability, mean ``[n]`` and covariance ``[n, n]`` of few rows for each likely share of noise.

        The differences between few measurements may be signal or noise, and MAP hyper-parameters alone would be
        overconfident. So the noise and the size of the signal have wide priors here: all differences may be noise.
        """
        with one_thread():
            points = self._points(features)
            gram, across = (self.kernel_.between(each, self.points_) for each in (self.points_, points))
            prior_covariance = self.kernel_.between(points, points)
            self.likely_shares_ = self.likely_shares_ or self._shares_of_noise(gram)
            prior_mean = self._prior_mean_at(points)
            posteriors = [
                (probability, *self._posterior_for(gram, across, prior_covariance, share))
                for probability, share in self.likely_shares_
            ]
            return [(probability, prior_mean + mean, covariance) for probability, mean, covariance in posteriors]

    def _shares_of_noise(self, gram: NDArray[np.float64]) -> list[tuple[float, _Share]]:
        """Return posterior probabilities of pairs: factor on the signal's variances, covariance of the errors."""
        n = len(self.launches_)
        most = int(np.clip(_DRAWN_ROWS // n, _FEWEST_DRAWS, _MOST_DRAWS))
        shares, logs = [], []
        for log_prior, covariance in zip(*self.machine.likely(self.launches_, most=most), strict=True):
            noise = self.errors_ * 0.0
            noise[:n, :n] = covariance / self.scale_**2
            noise[range(n, len(noise)), range(n, len(noise))] = 1e-9  # fantasies are exact
            # After whitening by the noise, the eigenvectors are the same for every size of the signal.
            root = np.linalg.cholesky(noise)
            values, vectors = np.linalg.eigh(np.linalg.solve(root, np.linalg.solve(root, gram).T))
            values = np.maximum(values, 0.0)
            projections = (vectors.T @ np.linalg.solve(root, self.rest_)) ** 2
            for size in _SIZES:
                total = size * values + 1.0
                prior = log_prior - 0.5 * (math.log(size) / _WIDE_SIZE_SD) ** 2 - np.log(np.diag(root)).sum()
                logs.append(float(prior - 0.5 * ((projections / total).sum() + np.log(total).sum())))
                shares.append((size, noise))
        probabilities = np.exp(np.array(logs) - max(logs))
        probabilities /= probabilities.sum()
        return [
            (probability, share)
            for probability, share in zip(probabilities.tolist(), shares, strict=True)
            if probability > _LEAST_PROBABILITY
        ]

    def _posterior_for(
        self,
        gram: NDArray[np.float64],
        across: NDArray[np.float64],
        prior_covariance: NDArray[np.float64],
        share: _Share,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        size, noise = share
        root = np.linalg.cholesky(size * gram + noise)
        half = np.linalg.solve(root, size * across.T)
        mean = half.T @ np.linalg.solve(root, self.rest_)
        covariance = size * prior_covariance - half.T @ half
        return self.centre_ + self.scale_ * mean, self.scale_**2 * covariance

    def _conditioned_on(self, features: NDArray[np.float64], logarithms: NDArray[np.float64]) -> Self:
        conditioned = copy(self)
        points = self._points(features)
        conditioned.points_ = self.points_.concatenate(points)
        conditioned.rest_ = np.concatenate(
            [self.rest_, (logarithms - self._prior_mean_at(points) - self.centre_) / self.scale_]
        )
        conditioned.errors_ = np.pad(self.errors_, (0, len(points)))
        conditioned._condition()
        return conditioned


def _launches(rows: MeasuredRows) -> Launches:
    return Launches(
        logarithm=rows.logarithm,
        error=np.sqrt(np.maximum(rows.uncertainty**2 - rows.crowding**2, 0.0)),
        load=rows.crowding,
        time=np.full(len(rows), np.nan),  # a level over time would explain a sweep in order
        config=np.unique(np.nan_to_num(rows.features, nan=-1.0), axis=0, return_inverse=True)[1].ravel(),
    )


def sample_normal(
    mean: NDArray[np.float64], covariance: NDArray[np.float64], *, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return samples from a multivariate normal, ``[count, n]``."""
    # With equal rows the covariance is singular.
    jitter = 1e-7 * (1e-6 + float(np.diag(covariance).max(initial=0.0)))
    root = np.linalg.cholesky(covariance + jitter * np.eye(len(mean)))
    return np.asarray(mean + rng.standard_normal((count, len(mean))) @ root.T, dtype=np.float64)
