"""Calibration: MAP estimates of the formulas' constants from measured step times; without data, the defaults.

The priors are log-normal. The loss is robust, because times are heavy-tailed. On some clusters a part of the pipelined
jobs loses a fixed time per micro batch and the others do not, whatever the config. That is a second mode, not noise. It
is fitted as a mixture of two by expectation maximisation, and only if enough jobs show it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.constants import (
    ABOVE_SHEET,
    DEFAULTS,
    HAND_SET,
    NAMES,
    SHARES,
    constants_of,
)
from torchx_cubicml.predictors.roofline.least_squares import least_squares
from torchx_cubicml.predictors.roofline.step_time import step_time

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants, ConstantsPrior
    from torchx_cubicml.predictors.roofline.step_time import StepTime
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

_NOISE = 0.2  # log error up to which the loss is quadratic, beyond it linear
_TAIL = 4.0  # degrees of freedom of the Student t distribution that separates the modes
_ROUNDS = 3  # of expectation and maximisation
_FEWEST_SLOW = 2.0
_STALLS = (1.0, 3.0, 9.0)  # in micro batches
_STALL_WIDTH = 1.0  # prior standard deviation of the stall's logarithm, around the initial one
_INITIAL_PROBABILITY = 0.1  # prior probability of the second mode
_MOST_ROWS = 1000  # more rows change the constants no further and cost seconds
_MOST_NEIGHBOURS = 400
_NEIGHBOUR_WEIGHT = 0.5  # of the trend over scale, in neighbours
_NEIGHBOUR_DISTANCE = 0.7  # bandwidth of the kernel over neighbours, in doublings of devices
_CHUNK = 20_000
_SHARES = [NAMES.index(name) for name in SHARES]
_HASH = np.array([1.0, np.e, np.pi, np.sqrt(2.0), np.sqrt(3.0)])  # no two points with whole degrees collide


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowMode:
    """Second, slower mode of pipelined jobs; its probability is a kernel average over neighbouring jobs.

    Args:
        stall_s: seconds that a pipeline of very many stages loses per micro batch.
        places: coordinates of measured pipelined jobs, ``[n_neighbours, n_coordinates]``.
        shown: probability that each was slow, ``[n_neighbours]``.
        trend: intercept and slope of the log odds over log2 of the devices.
    """

    stall_s: float
    places: Array
    shown: Array
    trend: Array

    def probability(self, layout: TrainingLayout) -> Array:
        """Return the probability that a job is slow, float64 ``[n]``; 0 without a pipeline."""
        probability = np.zeros(len(layout.pp))
        pipelined = np.flatnonzero(layout.pp > 1)
        if not len(pipelined):
            return probability
        # Candidates of one search share few coordinates: each distinct point is evaluated once.
        coordinates = _coordinates(layout)[pipelined]
        _, first, inverse = np.unique(coordinates @ _HASH, return_index=True, return_inverse=True)
        unique_probabilities = [
            self._probability_at(coordinates[first[start : start + _CHUNK]]) for start in range(0, len(first), _CHUNK)
        ]
        probability[pipelined] = np.concatenate(unique_probabilities)[inverse]
        return probability

    def _probability_at(self, coordinates: Array) -> Array:
        prior = 1.0 / (1.0 + np.exp(-self.trend[0] - self.trend[1] * coordinates[:, 0]))
        squared_distance = (
            (coordinates**2).sum(axis=1)[:, None] + (self.places**2).sum(axis=1) - 2.0 * coordinates @ self.places.T
        )
        kernel = np.exp(-np.maximum(squared_distance, 0.0) / (2.0 * _NEIGHBOUR_DISTANCE**2))
        return np.asarray((kernel @ self.shown + _NEIGHBOUR_WEIGHT * prior) / (kernel.sum(axis=1) + _NEIGHBOUR_WEIGHT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStepTime:
    """Step times predicted by a calibration; logarithms of seconds, float64 ``[n]`` each.

    Args:
        times: of the fast mode, part by part.
        logarithm: of the expected step time.
        fast: in the fast mode.
        slow: in the slow mode; as ``fast`` where there is none.
        chance: probability of the slow mode.
    """

    times: StepTime
    logarithm: Array
    fast: Array
    slow: Array
    chance: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Calibrated constants of the formulas.

    Args:
        constants: as in ``PRIORS``.
        slow: the second mode; ``None`` where there is none.
    """

    constants: Constants = field(default_factory=lambda: DEFAULTS)
    slow: SlowMode | None = None

    def expect(self, layout: TrainingLayout, *, inside: Array) -> ExpectedStepTime:
        """Return the expected step times of ``layout``.

        A job is fast or slow, never in between, so its median time is near that of the likelier mode. This counts as
        far as the probability was measured.

        Args:
            layout: ``n`` trainings.
            inside: 1.0 within the measured range, 0.0 far outside, float64 ``[n]``.
        """
        times = step_time(layout, self.constants)
        with np.errstate(invalid="ignore", divide="ignore"):
            fast = np.log(times.total())
            if self.slow is None:
                return ExpectedStepTime(times=times, logarithm=fast, fast=fast, slow=fast, chance=np.zeros_like(fast))
            slow = np.log(times.total(self.slow.stall_s))
        chance = self.slow.probability(layout)
        odds = (chance / np.maximum(1.0 - chance, 1e-12)) ** (1.0 + inside)
        return ExpectedStepTime(
            times=times, logarithm=fast + odds / (1.0 + odds) * (slow - fast), fast=fast, slow=slow, chance=chance
        )


def calibrate(
    layout: TrainingLayout,
    seconds: Array,
    uncertainty: Array,
    *,
    rng: np.random.Generator,
    prior: ConstantsPrior = HAND_SET,
) -> Calibration:
    """Return the calibration fitted on measured steps.

    Args:
        layout: ``n`` trainings, all covered; none at all is legal.
        seconds: per step, float64 ``[n]``, > 0.
        uncertainty: of their logarithms, as each run reported it, float64 ``[n]``.
        rng: chooses a subset of the rows where there are more than needed.
        prior: of the constants; those that no row informs about keep its medians.
    """
    if not len(seconds):
        return Calibration(constants=prior.medians)
    if len(seconds) > _MOST_ROWS:
        chosen = np.sort(rng.choice(len(seconds), _MOST_ROWS, replace=False))
        layout, seconds, uncertainty = layout.rows(chosen), seconds[chosen], uncertainty[chosen]
    one_mode = _Fit(layout, np.log(seconds), np.hypot(_NOISE, uncertainty), prior)
    one_mode.solve(steps=30)
    # A mixture has several local optima: a few starts are tried, and the likeliest is iterated further.
    starts = [one_mode.split(stall_s) for stall_s in one_mode.stalls()]
    for start in starts:
        start.alternate(rounds=1, steps=8)
    best = max([one_mode, *starts], key=_Fit.log_posterior)
    best.alternate(rounds=_ROUNDS, steps=15)
    return max([one_mode, best], key=_Fit.log_posterior).found()


class _Fit:
    """State of one calibration: constants, then the second mode, then both in turn (EM)."""

    def __init__(self, layout: TrainingLayout, measured: Array, noise: Array, prior: ConstantsPrior) -> None:
        self.layout, self.measured, self.noise = layout, measured, noise
        self.theta = np.append(prior.centre, 0.0)  # the last is the logarithm of the stall
        self.centre, self.width = np.append(prior.centre, 0.0), np.append(prior.width, _STALL_WIDTH)
        self.slow: Array = np.zeros(len(measured))
        self.prior: Array = np.zeros(len(measured))
        self.free = self._free()

    def solve(self, *, steps: int) -> None:
        """Set the MAP constants, given the probability of each row to be slow (M step)."""
        free = self.free if self.slow.any() else self.free[self.free < len(NAMES)]
        if not len(free):
            return

        def residuals(values: Array) -> Array:
            theta = self.theta.copy()
            theta[free] = values
            return self._residuals(theta)

        self.theta[free] = least_squares(residuals, self.theta[free], steps=steps)

    def stalls(self) -> list[float]:
        """Return initial stalls: multiples of the median micro batch time of pipelined jobs; none for too few jobs."""
        pipelined = self.layout.pp > 1
        if pipelined.sum() < _FEWEST_SLOW:
            return []
        typical = float(np.median(step_time(self.layout, constants_of(self.theta[:-1])).micro_batch[pipelined]))
        return [factor * typical for factor in _STALLS]

    def split(self, stall_s: float) -> _Fit:
        """Return a copy of this fit with a second mode of an initial ``stall_s``."""
        fit = copy(self)
        fit.theta, fit.centre = self.theta.copy(), self.centre.copy()
        fit.theta[-1] = fit.centre[-1] = np.log(stall_s)
        fit.prior = np.where(self.layout.pp > 1, _INITIAL_PROBABILITY, 0.0)
        return fit

    def alternate(self, *, rounds: int, steps: int) -> None:
        """Alternate the E step (slow and fast rows) and the M step (constants)."""
        for _ in range(rounds):
            self.slow = self._responsibility()
            if self.slow.sum() < _FEWEST_SLOW:
                self.slow, self.prior = np.zeros_like(self.slow), np.zeros_like(self.prior)
                return
            self.solve(steps=steps)
            self.prior = self._mode().probability(self.layout)

    def found(self) -> Calibration:
        """Return the calibration: the constants, and the second mode if there is one."""
        return Calibration(constants=constants_of(self.theta[:-1]), slow=self._mode() if self.slow.any() else None)

    def log_posterior(self) -> float:
        """Return the log posterior density of constants and modes, up to a constant."""
        fast, slow = self._errors(self.theta)
        deviations = (self.theta - self.centre) / self.width
        above = np.maximum(self.theta[_SHARES], 0.0) / ABOVE_SHEET
        return float(
            np.log(self.prior * self._density(slow) + (1.0 - self.prior) * self._density(fast)).sum()
            - 0.5 * (deviations @ deviations + above @ above)
        )

    def _mode(self) -> SlowMode:
        rows = np.flatnonzero(self.layout.pp > 1)
        trend = _log_odds(np.log2(self.layout.world[rows]), self.slow[rows])
        rows = rows[:: int(np.ceil(len(rows) / _MOST_NEIGHBOURS))]
        return SlowMode(
            stall_s=float(np.exp(self.theta[-1])),
            places=_coordinates(self.layout.rows(rows)),
            shown=self.slow[rows],
            trend=trend,
        )

    def _responsibility(self) -> Array:
        prior = self.prior
        fast, slow = self._errors(self.theta)
        slow_likelihood, fast_likelihood = prior * self._density(slow), (1.0 - prior) * self._density(fast)
        responsibility = slow_likelihood / (slow_likelihood + fast_likelihood)
        return np.asarray(responsibility)

    def _errors(self, theta: Array) -> tuple[Array, Array]:
        times = step_time(self.layout, constants_of(theta[:-1]))
        fast = self.measured - np.log(times.total())
        slow = self.measured - np.log(times.total(float(np.exp(theta[-1])))) if self.prior.any() else fast
        return fast, slow

    def _residuals(self, theta: Array) -> Array:
        fast, slow = self._errors(theta)
        deviations = (theta - self.centre) / self.width
        mixed = (1.0 - self.slow) * self._robust_loss(fast) + self.slow * self._robust_loss(slow)
        # The sign makes the function smooth through zero for the solver.
        sign = np.sign(np.where(self.slow > 0.5, slow, fast))
        above = np.maximum(theta[_SHARES], 0.0) / ABOVE_SHEET
        return np.concatenate([sign * np.sqrt(mixed), deviations, above])

    def _robust_loss(self, errors: Array) -> Array:
        """Return twice the pseudo-Huber loss."""
        return np.asarray(2.0 * (np.sqrt(1.0 + (errors / self.noise) ** 2) - 1.0))

    def _density(self, errors: Array) -> Array:
        """Return Student's t density without its constant, which is the same in both modes."""
        return np.asarray((1.0 + (errors / self.noise) ** 2 / _TAIL) ** (-(_TAIL + 1.0) / 2.0))

    def _free(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return the indices of the stall and of constants that affect any row; the others would only cost time."""
        base = self._errors(self.theta)[0]
        change = [np.abs(self._errors(self.theta + step)[0] - base).max() for step in 0.1 * np.eye(len(NAMES) + 1)[:-1]]
        return np.append(np.flatnonzero(np.array(change) > 1e-4), len(NAMES))


def _coordinates(layout: TrainingLayout) -> Array:
    """Return coordinates in which jobs of the same mode are neighbours; the number of devices counts most."""
    size = layout.layers * layout.layer_params
    columns = (layout.world, size**0.3, layout.micro**0.3, layout.tp**0.3, layout.pp**0.3)
    return np.asarray(np.log2(np.stack(columns, axis=1)))


def _log_odds(doublings: Array, shown: Array) -> Array:
    """Return intercept and slope of a logistic regression.

    The prior: slow jobs are rare, and twice as likely with twice the devices, as if each device caused them by itself.
    """
    design = np.stack([np.ones_like(doublings), doublings - 5.0], axis=1)
    prior, precision = np.array([-2.0, np.log(2.0)]), np.diag([1.0, 1.0 / 0.25**2])
    weights = prior
    for _ in range(20):
        probability = 1.0 / (1.0 + np.exp(-design @ weights))
        gradient = design.T @ (shown - probability) - precision @ (weights - prior)
        curvature = design.T @ ((probability * (1.0 - probability))[:, None] * design) + precision
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step * min(1.0, 1.0 / (np.abs(step).max() + 1e-12))
    return np.array([weights[0] - 5.0 * weights[1], weights[1]])
