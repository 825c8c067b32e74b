"""The constants of the formulas, fitted on measured step times; they stay at their defaults where nothing is known.

Most probable values under log-normal priors, with a robust misfit: times are heavy-tailed. On some clusters a part of
the pipelined jobs loses a fixed time per micro batch and the rest does not, whatever the config. That is a second mode,
not noise: it is learned as a mixture of two, and exists only where enough jobs bear witness.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.constants import CENTRE, DEFAULTS, WIDTH, constants_of
from torchx_cubicml.predictors.roofline.least_squares import least_squares
from torchx_cubicml.predictors.roofline.step_time import step_time

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.step_time import StepTime
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

_NOISE = 0.2  # log error up to which a misfit counts squared, beyond it linearly
_TAIL = 4.0  # degrees of freedom of the distribution that tells the modes apart
_ROUNDS = 3  # of expectation and maximisation
_FEWEST_WITNESSES = 2.0
_STALLS = (1.0, 3.0, 9.0)  # in micro batches
_STALL_WIDTH = 1.0  # of the stall's logarithm, around the one to begin with
_FIRST_GUESS = 0.1  # probability of the second mode before any row was looked at
_MOST_ROWS = 1000  # more rows change the constants no further and cost seconds
_MOST_NEIGHBOURS = 400
_NEIGHBOUR_WEIGHT = 0.5  # of what the trend over scale says, in neighbours
_REACH = 0.7  # of a neighbour, in doublings of devices
_CHUNK = 20_000
_HASH = np.array([1.0, np.e, np.pi, np.sqrt(2.0), np.sqrt(3.0)])  # no two places of whole degrees meet


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowMode:
    """A second, slower mode of pipelined jobs.

    Args:
        stall_s: seconds that a pipeline of very many stages loses per micro batch.
        places: where jobs stand that could show it, ``[n_neighbours, n_coordinates]``.
        shown: probability that each did, ``[n_neighbours]``.
        trend: intercept and slope of its log odds over log2 of the devices.
    """

    stall_s: float
    places: Array
    shown: Array
    trend: Array

    def probability(self, layout: TrainingLayout) -> Array:
        """Return the probability that a job is slow, float64 ``[n]``; 0 without a pipeline."""
        chance = np.zeros(len(layout.pp))
        piped = np.flatnonzero(layout.pp > 1)
        if not len(piped):
            return chance
        # Candidates of one search share few places: each is looked at once.
        here = _places(layout)[piped]
        _, first, which = np.unique(here @ _HASH, return_index=True, return_inverse=True)
        found = [self._chance(here[first[start : start + _CHUNK]]) for start in range(0, len(first), _CHUNK)]
        chance[piped] = np.concatenate(found)[which]
        return chance

    def _chance(self, here: Array) -> Array:
        towards = 1.0 / (1.0 + np.exp(-self.trend[0] - self.trend[1] * here[:, 0]))
        apart = (here**2).sum(axis=1)[:, None] + (self.places**2).sum(axis=1) - 2.0 * here @ self.places.T
        kernel = np.exp(-np.maximum(apart, 0.0) / (2.0 * _REACH**2))
        return np.asarray(
            (kernel @ self.shown + _NEIGHBOUR_WEIGHT * towards) / (kernel.sum(axis=1) + _NEIGHBOUR_WEIGHT)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStepTime:
    """How long steps take by a calibration; logarithms of seconds, float64 ``[n]`` each.

    Args:
        times: of the fast mode, part by part.
        logarithm: what to expect.
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
    """Constants of the formulas as a cluster taught them.

    Args:
        constants: as in ``PRIORS``.
        slow: the second mode; ``None`` where there is none.
    """

    constants: Constants = field(default_factory=lambda: DEFAULTS)
    slow: SlowMode | None = None

    def expect(self, layout: TrainingLayout) -> ExpectedStepTime:
        """Return how long the steps of ``layout`` are expected to take."""
        times = step_time(layout, self.constants)
        with np.errstate(invalid="ignore", divide="ignore"):
            fast = np.log(times.total())
            if self.slow is None:
                return ExpectedStepTime(times=times, logarithm=fast, fast=fast, slow=fast, chance=np.zeros_like(fast))
            slow = np.log(times.total(self.slow.stall_s))
        chance = self.slow.probability(layout)
        # A job is fast or slow, never in between: what is likelier draws more than its share.
        weight = chance**2 / (chance**2 + (1.0 - chance) ** 2)
        return ExpectedStepTime(
            times=times, logarithm=fast + weight * (slow - fast), fast=fast, slow=slow, chance=chance
        )


def calibrate(layout: TrainingLayout, seconds: Array, uncertainty: Array, *, rng: np.random.Generator) -> Calibration:
    """Return the constants that explain measured steps.

    Args:
        layout: ``n`` trainings, all covered; none at all is legal.
        seconds: per step, float64 ``[n]``, > 0.
        uncertainty: of their logarithms, as each run told it, float64 ``[n]``.
        rng: chooses the rows that are looked at where there are more than needed.
    """
    if not len(seconds):
        return Calibration()
    if len(seconds) > _MOST_ROWS:
        chosen = np.sort(rng.choice(len(seconds), _MOST_ROWS, replace=False))
        layout, seconds, uncertainty = layout.rows(chosen), seconds[chosen], uncertainty[chosen]
    one_mode = _Fit(layout, np.log(seconds), np.hypot(_NOISE, uncertainty))
    one_mode.solve(steps=30)
    # A mixture has several optima: it is sought from several sides, and the likeliest is followed to its end.
    starts = [one_mode.split(stall_s) for stall_s in one_mode.stalls()]
    for start in starts:
        start.alternate(rounds=1, steps=8)
    best = max([one_mode, *starts], key=_Fit.log_posterior)
    best.alternate(rounds=_ROUNDS, steps=15)
    return max([one_mode, best], key=_Fit.log_posterior).found()


class _Fit:
    """One calibration under way: constants, then the second mode, then both in turn."""

    def __init__(self, layout: TrainingLayout, measured: Array, noise: Array) -> None:
        self.layout, self.measured, self.noise = layout, measured, noise
        self.theta = np.append(CENTRE, 0.0)  # the last is the logarithm of the stall
        self.centre, self.width = np.append(CENTRE, 0.0), np.append(WIDTH, _STALL_WIDTH)
        self.slow: Array = np.zeros(len(measured))
        self.prior: Array = np.zeros(len(measured))
        self.free = self._free()

    def solve(self, *, steps: int) -> None:
        """Move to the most probable constants, given which rows are slow."""
        free = self.free if self.slow.any() else self.free[self.free < len(CENTRE)]
        if not len(free):
            return

        def misfit(values: Array) -> Array:
            theta = self.theta.copy()
            theta[free] = values
            return self._misfit(theta)

        self.theta[free] = least_squares(misfit, self.theta[free], steps=steps)

    def stalls(self) -> list[float]:
        """Return stalls to begin with: about as long as a micro batch of the jobs that could have them."""
        piped = self.layout.pp > 1
        if piped.sum() < _FEWEST_WITNESSES:
            return []
        usual = float(np.median(step_time(self.layout, constants_of(self.theta[:-1])).micro_batch[piped]))
        return [factor * usual for factor in _STALLS]

    def split(self, stall_s: float) -> _Fit:
        """Return a fit with a second mode that begins where this one stands."""
        fit = copy(self)
        fit.theta, fit.centre = self.theta.copy(), self.centre.copy()
        fit.theta[-1] = fit.centre[-1] = np.log(stall_s)
        fit.prior = np.where(self.layout.pp > 1, _FIRST_GUESS, 0.0)
        return fit

    def alternate(self, *, rounds: int, steps: int) -> None:
        """Tell slow rows from fast ones and fit the constants to both, in turn."""
        for _ in range(rounds):
            self.slow = self._responsibility()
            if self.slow.sum() < _FEWEST_WITNESSES:
                self.slow, self.prior = np.zeros_like(self.slow), np.zeros_like(self.prior)
                return
            self.solve(steps=steps)
            self.prior = self._mode().probability(self.layout)

    def found(self) -> Calibration:
        """Return the constants, and the second mode if there is one."""
        return Calibration(constants=constants_of(self.theta[:-1]), slow=self._mode() if self.slow.any() else None)

    def log_posterior(self) -> float:
        """Return how well constants and modes explain the rows and agree with the priors."""
        fast, slow = self._errors(self.theta)
        belief = (self.theta - self.centre) / self.width
        return float(
            np.log(self.prior * self._density(slow) + (1.0 - self.prior) * self._density(fast)).sum()
            - 0.5 * belief @ belief
        )

    def _mode(self) -> SlowMode:
        rows = np.flatnonzero(self.layout.pp > 1)
        trend = _log_odds(np.log2(self.layout.world[rows]), self.slow[rows])
        rows = rows[:: int(np.ceil(len(rows) / _MOST_NEIGHBOURS))]
        return SlowMode(
            stall_s=float(np.exp(self.theta[-1])),
            places=_places(self.layout.rows(rows)),
            shown=self.slow[rows],
            trend=trend,
        )

    def _responsibility(self) -> Array:
        prior = self.prior
        fast, slow = self._errors(self.theta)
        shown, hidden = prior * self._density(slow), (1.0 - prior) * self._density(fast)
        odds = shown / (shown + hidden)
        return np.asarray(odds)

    def _errors(self, theta: Array) -> tuple[Array, Array]:
        times = step_time(self.layout, constants_of(theta[:-1]))
        fast = self.measured - np.log(times.total())
        slow = self.measured - np.log(times.total(float(np.exp(theta[-1])))) if self.prior.any() else fast
        return fast, slow

    def _misfit(self, theta: Array) -> Array:
        fast, slow = self._errors(theta)
        belief = (theta - self.centre) / self.width
        mixed = (1.0 - self.slow) * self._misfits(fast) + self.slow * self._misfits(slow)
        # Signed, so that the solver sees a smooth function through zero.
        sign = np.sign(np.where(self.slow > 0.5, slow, fast))
        return np.concatenate([sign * np.sqrt(mixed), belief])

    def _misfits(self, errors: Array) -> Array:
        """Return twice the pseudo-Huber loss."""
        return np.asarray(2.0 * (np.sqrt(1.0 + (errors / self.noise) ** 2) - 1.0))

    def _density(self, errors: Array) -> Array:
        """Return Student's t density without its constant, which is the same in both modes."""
        return np.asarray((1.0 + (errors / self.noise) ** 2 / _TAIL) ** (-(_TAIL + 1.0) / 2.0))

    def _free(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return the constants that move any of these rows; the others would only cost time."""
        base = self._errors(self.theta)[0]
        moved = [np.abs(self._errors(self.theta + step)[0] - base).max() for step in 0.1 * np.eye(len(CENTRE) + 1)[:-1]]
        return np.append(np.flatnonzero(np.array(moved) > 1e-4), len(CENTRE))


def _places(layout: TrainingLayout) -> Array:
    """Return coordinates in which jobs of alike fate are neighbours; the number of devices counts most."""
    size = layout.layers * layout.layer_params
    columns = (layout.world, size**0.3, layout.micro**0.3, layout.tp**0.3, layout.pp**0.3)
    return np.asarray(np.log2(np.stack(columns, axis=1)))


def _log_odds(doublings: Array, shown: Array) -> Array:
    """Return intercept and slope of a logistic regression.

    The prior says rare, and twice as likely with twice the devices: as if each brought it along on its own.
    """
    design = np.stack([np.ones_like(doublings), doublings - 5.0], axis=1)
    prior, precision = np.array([-2.0, np.log(2.0)]), np.diag([1.0, 1.0 / 0.25**2])
    weights = prior
    for _ in range(20):
        chance = 1.0 / (1.0 + np.exp(-design @ weights))
        gradient = design.T @ (shown - chance) - precision @ (weights - prior)
        curvature = design.T @ ((chance * (1.0 - chance))[:, None] * design) + precision
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step * min(1.0, 1.0 / (np.abs(step).max() + 1e-12))
    return np.array([weights[0] - 5.0 * weights[1], weights[1]])
