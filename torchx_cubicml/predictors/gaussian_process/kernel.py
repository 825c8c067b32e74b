"""Covariance kernel of the Gaussian process over configs of one workload, and the MAP fit of its hyper-parameters.

The kernel is a sum of terms:

- smooth: Matern 5/2 over numbers, categories and the share of layers of each choice, all together;
- additive: each number and category by itself, only without per-layer parameters;
- stepwise: jumps from one value of a whole number to the next, only without per-layer parameters;
- linear: the choice of each layer, correlated between neighbouring or equally large layers;
- matching: the share of layers with the same choice;
- pressure: nearness to the memory limit, where it is known.

Nothing depends on the names of parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder, EncodedConfigs, LayerColumn

_TRIES = 150  # perturbations of the hyper-parameters for a hundred rows

# Prior medians of the variances of the terms, in units of standardised logarithms.
_SMOOTH, _LINEAR, _MATCHING, _PRESSURE = 0.3, 0.05, 0.01, 0.01
_ADDITIVE = 0.5  # of the additive term, all parameters together
_STEPWISE = 0.03  # of the stepwise term, all numbers together
_SHARE_LENGTH, _NUMBER_LENGTH, _CATEGORY_LENGTH = 0.7, 0.6, 0.7
_MATCH_LENGTH, _LAYER_LENGTH, _LAYER_CORRELATION = 0.5, 3.0, 0.5
_PRESSURE_LENGTH = 0.5
_VARIANCE_SD, _LENGTH_SD = 1.0, 0.5  # of the logarithms
_NOISE_SD, _USUAL_WEIGHT = 0.8, 2  # likewise; weight of the prior of the noise, in repeats


@dataclass(frozen=True, slots=True)
class Prior:
    """Log-normal prior of the hyper-parameters of the kernel.

    Args:
        places: encoder of rows as points.
        medians: of the hyper-parameters.
        deviations: standard deviations of their logarithms.
    """

    places: ConfigEncoder
    medians: NDArray[np.float64]
    deviations: NDArray[np.float64]

    @classmethod
    def of(cls, places: ConfigEncoder, *, noise: float, n_repeats: int = 0) -> Self:
        """Return the prior for the columns of ``places``.

        Args:
            places: encoder of rows as points.
            noise: standard deviation of one standardised measurement.
            n_repeats: number of repeated measurements that ``noise`` was estimated from.
        """
        noise_sd = (2.0 * (n_repeats + _USUAL_WEIGHT)) ** -0.5 if n_repeats else _NOISE_SD
        n_numbers, n_categories = len(places.numbers), len(places.category_names)
        n_shares = sum(len(layered.codes) for layered in places.layered)
        medians = [
            _SMOOTH,
            _LINEAR,
            _MATCHING,
            _ADDITIVE,
            _PRESSURE,
            _STEPWISE,
            noise,
            _MATCH_LENGTH,
            _LAYER_LENGTH,
            _odds(_LAYER_CORRELATION),
        ]
        deviations = [_VARIANCE_SD] * 6 + [noise_sd] + [_LENGTH_SD] * 3
        medians += [_NUMBER_LENGTH] * n_numbers + [_CATEGORY_LENGTH] * n_categories + [_SHARE_LENGTH] * n_shares
        deviations += [_LENGTH_SD] * (n_numbers + n_categories + n_shares)
        return cls(places, np.array(medians), np.array(deviations))

    @property
    def stepwise(self) -> tuple[int, ...]:
        """Indices of the numbers with a stepwise effect; none beside per-layer parameters."""
        if self.places.layered:
            return ()
        return tuple(at for at, each in enumerate(self.places.numbers) if each.stepwise)

    def kernel(self, shifts: NDArray[np.float64]) -> Kernel:
        """Return the kernel whose hyper-parameters are ``shifts`` deviations from their medians."""
        values = self.medians * np.exp(shifts * self.deviations)
        lengths = values[10:]
        n_numbers, n_categories = len(self.places.numbers), len(self.places.category_names)
        numbers, categories, shares = np.split(lengths, [n_numbers, n_numbers + n_categories])
        return Kernel(
            layered=self.places.layered,
            variances=values[:6],
            noise=float(values[6]),
            match_length=float(values[7]),
            layer_length=float(values[8]),
            correlation=float(values[9] / (1.0 + values[9])),
            plain=1.0 / np.concatenate([numbers, math.sqrt(2.0) * categories[self.places.category_of]]),
            shares=1.0 / (math.sqrt(2.0) * shares),
            stepwise=self.stepwise,
            fact_of=np.concatenate([np.arange(n_numbers), n_numbers + self.places.category_of]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Covariance function; ``plain`` and ``shares`` are inverse length scales of numbers, categories and shares."""

    layered: tuple[LayerColumn, ...]
    variances: NDArray[np.float64]
    noise: float
    match_length: float
    layer_length: float
    correlation: float
    plain: NDArray[np.float64]
    shares: NDArray[np.float64]
    stepwise: tuple[int, ...]
    fact_of: NDArray[np.intp]

    def noise_of(self, known: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of the errors of measurements, ``[n, n]``; ``known`` is the part that is not fitted."""
        return np.asarray((self.noise**2 + 1e-9) * np.eye(len(known)) + known, dtype=np.float64)

    def between(self, left: EncodedConfigs, right: EncodedConfigs) -> NDArray[np.float64]:
        """Return the covariance matrix of two sets of points, ``[n_left, n_right]``."""
        plain = _squares(self._plain(left), self._plain(right))
        shares = _squares(self._shares(left), self._shares(right)) if self.layered else 0.0
        smooth, linear, matching, additive, pressure, stepwise = self.variances
        total = np.asarray(smooth * _matern(plain + shares), dtype=np.float64)
        if left.memory_pressure.shape[1]:
            total += pressure * _matern(_squares(left.memory_pressure, right.memory_pressure) / _PRESSURE_LENGTH**2)
        if self.stepwise:
            total += stepwise * self._stepwise_covariance(left, right)
        if not self.layered:
            return np.asarray(total + additive * self._additive_covariance(left, right), dtype=np.float64)
        narrow, wide = _matern(plain), _matern(0.25 * plain)
        for layered, one, other in zip(self.layered, left.members, right.members, strict=True):
            match = _flat(one * layered.weights) @ _flat(other).T
            total += matching * np.exp(-(1.0 - match) / self.match_length) * narrow
            product = _flat(_centre(one, layered) @ self._layers(layered)) @ _flat(_centre(other, layered)).T
            total += linear / len(layered.weights) * product * wide
        return total

    def alone(self, points: EncodedConfigs) -> NDArray[np.float64]:
        """Return the prior variance of each point, ``[n]``: the diagonal of ``between`` with itself."""
        smooth, linear, matching, additive, pressure, stepwise = self.variances
        by_itself = additive if len(self.fact_of) and not self.layered else 0.0
        by_itself += stepwise if self.stepwise else 0.0
        total = np.full(len(points), smooth + by_itself + pressure * points.memory_pressure.shape[1])
        for layered, members in zip(self.layered, points.members, strict=True):
            missing = 1.0 - members.sum(axis=1) @ layered.weights
            total += matching * np.exp(-missing / self.match_length)
            centred = _centre(members, layered)
            product = np.einsum("ncl,ncl->n", centred @ self._layers(layered), centred)
            total += linear / len(layered.weights) * product
        return total

    def _additive_covariance(self, left: EncodedConfigs, right: EncodedConfigs) -> NDArray[np.float64]:
        """Return the covariance of the additive term, which is 1 for a point with itself."""
        left_scaled, right_scaled = self._plain(left), self._plain(right)
        total = np.zeros((len(left), len(right)))
        facts = np.unique(self.fact_of)
        for fact in facts.tolist():
            columns = self.fact_of == fact
            total += _matern(_squares(left_scaled[:, columns], right_scaled[:, columns])) / len(facts)
        return total

    def _stepwise_covariance(self, left: EncodedConfigs, right: EncodedConfigs) -> NDArray[np.float64]:
        """Return the covariance of the stepwise term: equal values, and similar powers of two as divisors."""
        total = np.zeros((len(left), len(right)))
        for column, at in enumerate(self.stepwise):
            alike = left.numbers[:, [at]] == right.numbers[:, at]
            power_of_two = _matern(_squares(left.power_of_two[:, [column]], right.power_of_two[:, [column]]))
            total += 0.5 * (alike + power_of_two) / len(self.stepwise)
        return total

    def _layers(self, layered: LayerColumn) -> NDArray[np.float64]:
        alike = np.exp(-layered.distance / self.layer_length)
        return np.asarray(self.correlation * alike + (1.0 - self.correlation) * np.eye(len(alike)), dtype=np.float64)

    def _plain(self, points: EncodedConfigs) -> NDArray[np.float64]:
        return np.hstack([points.numbers, points.categories]) * self.plain

    def _shares(self, points: EncodedConfigs) -> NDArray[np.float64]:
        return np.hstack(points.shares) * self.shares


def _centre(members: NDArray[np.float64], layered: LayerColumn) -> NDArray[np.float64]:
    """Return memberships minus their shares, scaled by the weight of each layer: large layers have large effects."""
    deviation = members - (members @ layered.weights)[:, :, None]
    return np.asarray(deviation * layered.weights * len(layered.weights), dtype=np.float64)


def _flat(members: NDArray[np.float64]) -> NDArray[np.float64]:
    return members.reshape(len(members), math.prod(members.shape[1:]))  # -1 is ambiguous for an array without rows


def _squares(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    cross = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(np.maximum(cross, 0.0), dtype=np.float64)


def _matern(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Matern covariance of smoothness 5/2 at squared distances."""
    scaled = np.sqrt(5.0 * squares)
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled), dtype=np.float64)


def _odds(share: float) -> float:
    return share / (1.0 - share)


@dataclass(frozen=True, slots=True)
class Sample:
    """Observations that the process is fitted on.

    Args:
        points: configs, ``n`` of them.
        rest: standardised logarithms of throughput, ``[n]``.
        errors: known covariance of their errors, ``[n, n]``.
    """

    points: EncodedConfigs
    rest: NDArray[np.float64]
    errors: NDArray[np.float64]


def fit_map(prior: Prior, sample: Sample, rng: np.random.Generator) -> tuple[Kernel, float]:
    """Return the MAP kernel that a random hill climb finds, and the log of its posterior density."""
    shifts = np.zeros(len(prior.medians))
    if len(sample.rest) < 3:
        return prior.kernel(shifts), _log_posterior(prior, shifts, sample)
    shifts, best = _hill_climb(prior, shifts, sample, rng)
    return prior.kernel(shifts), best


def _hill_climb(
    prior: Prior, shifts: NDArray[np.float64], sample: Sample, rng: np.random.Generator
) -> tuple[NDArray[np.float64], float]:
    best, stride = _log_posterior(prior, shifts, sample), 0.5
    for _ in range(int(np.clip(_TRIES * (100.0 / len(sample.rest)) ** 1.5, 20, _TRIES))):
        step = rng.normal(0.0, stride, len(shifts)) * (rng.random(len(shifts)) < 0.3)
        density = _log_posterior(prior, shifts + step, sample)
        # The one-fifth success rule of evolution strategies.
        if density > best:
            shifts, best, stride = shifts + step, density, min(stride * 1.5, 1.0)
        else:
            stride = max(stride * 0.9, 0.1)
    return shifts, best


def _log_posterior(prior: Prior, shifts: NDArray[np.float64], sample: Sample) -> float:
    kernel = prior.kernel(shifts)
    gram = kernel.between(sample.points, sample.points) + kernel.noise_of(sample.errors)
    try:
        root = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return -math.inf
    white = np.linalg.solve(root, sample.rest)
    return float(-0.5 * white @ white - np.log(np.diag(root)).sum() - 0.5 * shifts @ shifts)
