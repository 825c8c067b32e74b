"""Error model of measured launches: one linear mixed model, integrated over its variances (random effects).

    log throughput = config + level of the machine + cost of the load + error of the run + error within the run

- The level of the machine varies over time (Ornstein-Uhlenbeck process): launches near in time share most of it.
  After a long pause it may be another one.
- The load beside a launch costs it a share common to all launches, and one of its own, both in proportion to it.
- The error of the run is independent; the error within the run is known, as the run reported it.

None of the variances is known. Draws from their prior (a Halton sequence) are weighted by the likelihood of the
launches (Bayesian model averaging), so repeats narrow each part. All gains that two configs have by their own
measurements come from here, for launches, tunes and the report alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.space.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial

LEVEL = 0.8
"""Share of the truth that a stated interval holds."""
SURE = 0.98
"""Least probability to be faster at which a gain is claimed."""
FEWEST_TO_CLAIM = 2
"""Measurements of each side of a claim: a single one has no spread."""

_DRAWS, _BASES = 256, (2, 3, 5, 7, 11)
# Medians, and log deviations, of the standard deviations of log throughput. Quiet machines repeat within 0.5 to 2 per
# cent, shared clusters within 2 to 10. ``benchmarks/promises.py`` tells how well intervals hold.
_RUN, _LEVEL, _LOAD, _SESSION = (0.03, 0.9), (0.06, 1.0), (0.15, 0.9), (0.04, 1.0)
_CONFIG = 0.5  # of the configs; were it learned, a sweep in order would pass for a drift of the machine
_STEADY = 0.4  # probability that the machine has one level
_LENGTHS = 1.0, 30.0  # of the level's correlation, in usual gaps between launches
_COST, _COMMON_LOAD = 0.4, 0.5  # mean and standard deviation of the common cost of load, per unit of load
_LONGEST_GAP, _PAUSE = 5.0, 20.0  # usual gaps after which a longer one adds nothing, and after which a session begins
_FLAT = 100.0  # variance of what all launches have in common, in logarithms: nothing is known of it
_LEAST = 1e-6  # variance of a run: two equal measurements do not prove zero noise
_MOST, _MOST_OTHERS = 24, 16  # latest launches of each of two configs that are compared, and of others
_MOST_ELSEWHERE, _MOST_WORKLOADS = 24, 6  # launches of another workload, and other workloads
_OUTLIER = 0.1  # probability that the program of another workload changed between its launches
_POWER, _TRUST = 0.5, 0.5  # of its likelihood (power prior, Ibrahim and Chen, 2000), and weight of all of them
_NEGLIGIBLE = 1e-4
_HALVINGS, _CERTAIN = 40, 1e-8  # steps of a bisection; spread of a gain that is known
_TRIED, _MOST_TRIED = 12, 3.0  # planned gains, and the logarithm of the largest
_SHARED_FACTS = frozenset({"device", "n_params", *STANDARD_PARAMETERS})  # observed facts that repeats must share


class Variances(NamedTuple):
    """Draws from the prior, each ``[n_draws]``: standard deviations, and the length over which the level correlates."""

    run: NDArray[np.float64]
    level: NDArray[np.float64]
    length: NDArray[np.float64]
    load: NDArray[np.float64]
    session: NDArray[np.float64]


@cache
def prior_draws() -> Variances:
    """Return the draws from the prior of the variances, always the same."""
    uniform = np.array([[_radical_inverse(number + 1, base) for base in _BASES] for number in range(_DRAWS)]).T
    varies = np.clip((uniform[1] - _STEADY) / (1.0 - _STEADY), 1e-6, 1.0 - 1e-6)
    run, level, load, session = (
        median * np.exp(deviation * np.array(list(map(NormalDist().inv_cdf, each.tolist()))))
        for (median, deviation), each in zip(
            (_RUN, _LEVEL, _LOAD, _SESSION), (uniform[0], varies, uniform[3], uniform[4]), strict=True
        )
    )
    shortest, longest = _LENGTHS
    length = shortest * (longest / shortest) ** uniform[2]
    return Variances(run, np.where(uniform[1] < _STEADY, 0.0, level), length, load, session)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """Measured launches of one workload, one entry each, in the order of time.

    Args:
        logarithm: of the throughput, float64 ``[n]``.
        error: standard deviation of the logarithm within the run, float64 ``[n]``; 0 where unknown.
        load: log slowdown that others on its host may have caused, float64 ``[n]``, >= 0.
        time: of the measurement, in seconds, float64 ``[n]``; NaN where unknown.
        config: number of the config, int ``[n]``.
    """

    logarithm: NDArray[np.float64]
    error: NDArray[np.float64]
    load: NDArray[np.float64]
    time: NDArray[np.float64]
    config: NDArray[np.intp]

    @classmethod
    def of(
        cls, trials: Iterable[Trial], *, objective: str, key: Callable[[Trial], Hashable | None] | None = None
    ) -> tuple[Self, dict[Hashable, int]]:
        """Return the launches of trials that were measured in the unit of an objective, and the number of each config.

        Args:
            trials: of one workload.
            objective: name of the throughput.
            key: config of a trial; ``None`` leaves it out. By default, what was requested: launches recorded without a
                space file are left out.
        """
        numbers: dict[Hashable, int] = {}
        rows: list[tuple[float, float, float, float, int]] = []
        for trial in sorted(trials, key=by_time):
            value, name = trial.throughput(objective), (key or requested)(trial)
            if value is not None and value > 0 and name is not None:
                whole, load = trial.uncertainty(objective), trial.load(objective)
                error = math.sqrt(max(whole**2 - load**2, 0.0))
                rows.append((math.log(value), error, load, trial.measured_at, numbers.setdefault(name, len(numbers))))
        table = np.array(rows, dtype=np.float64).reshape(-1, 5).T
        return cls(
            logarithm=table[0], error=table[1], load=table[2], time=table[3], config=table[4].astype(np.intp)
        ), numbers

    def __len__(self) -> int:
        return len(self.logarithm)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Self:
        """Return the launches at the indices ``chosen``, or where the mask ``chosen`` is true."""
        return replace(self, **{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    def compared(self, best: int, own: int) -> Self:
        """Return the launches that compare two configs: the latest of ``best``, and those of others nearest to them.

        Other configs tell of the machine. Where they compete, the first launch of ``best`` is left out: it was chosen
        for being high.
        """
        of_best, of_own = (np.flatnonzero(self.config == each) for each in (best, own))
        others = np.flatnonzero((self.config != best) & (self.config != own))
        of_best = of_best[1:] if len(others) and len(of_best) > 1 else of_best
        of_best = of_best[-_MOST:]

        def nearest(places: NDArray[np.intp], most: int) -> NDArray[np.intp]:
            apart = np.abs(places[:, None] - of_best).min(axis=1, initial=len(self))
            return places[np.argsort(apart, kind="stable")[:most]]

        return self.rows(np.sort(np.concatenate([of_best, nearest(of_own, _MOST), nearest(others, _MOST_OTHERS)])))

    def covariances(self, draws: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.float64]:
        """Return the covariance of the errors under draws of the variances, ``[n_draws, n, n]``."""
        prior = Variances(*(each[draws] for each in prior_draws()))
        own = prior.run[:, None] ** 2 + self.error**2 + (prior.load[:, None] * self.load) ** 2 + _LEAST
        covariances = own[:, :, None] * np.eye(len(self)) + (_COMMON_LOAD**2 * np.outer(self.load, self.load))
        place, session = self._positions()
        distance = np.abs(place[:, None] - place)
        shared = np.nan_to_num(np.exp(-distance / prior.length[:, None, None]))  # a level is told by times alone
        covariances += prior.session[:, None, None] ** 2 * (session[:, None] == session)
        return np.asarray(covariances + prior.level[:, None, None] ** 2 * shared, dtype=np.float64)

    def usual_errors(self) -> NDArray[np.float64]:
        """Return the usual standard deviation of each logarithm, apart from what neighbours share, ``[n]``."""
        return np.asarray(np.sqrt(self.error**2 + _RUN[0] ** 2 + (_LOAD[0] * self.load) ** 2), dtype=np.float64)

    def _positions(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the place of each launch in time, in usual gaps between launches, and the number of its session.

        Both ``[n]``, and NaN where the time is unknown. A session ends with a long pause.
        """
        times, places = np.unique(self.time, return_inverse=True)
        gaps = np.diff(times[np.isfinite(times)])
        gaps = gaps / np.median(gaps) if len(gaps) else gaps
        steps, pauses = (
            np.concatenate([[0.0], np.cumsum(each)]) for each in (np.minimum(gaps, _LONGEST_GAP), gaps > _PAUSE)
        )
        known, place = np.isfinite(self.time), np.minimum(places, len(steps) - 1)
        return np.where(known, steps[place], np.nan), np.where(known, pauses[place], np.nan)


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of one config over another: a mixture of normal distributions of its logarithm.

    Args:
        weights: of the components; their sum is 1.
        means: of the logarithm.
        spreads: standard deviations.
    """

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    spreads: NDArray[np.float64]

    @classmethod
    def certain(cls) -> Self:
        """Return the gain of a config over itself."""
        return cls(np.ones(1), np.zeros(1), np.full(1, 0.1 * _CERTAIN))

    def probability_above(self, logarithm: float) -> float:
        """Return the probability that the logarithm of the gain is above a value."""
        distances = (logarithm - self.means) / (math.sqrt(2.0) * self.spreads)
        return float(self.weights @ np.array([0.5 * math.erfc(each) for each in distances.tolist()]))

    def quantile(self, q: float) -> float:
        """Return the ``q`` quantile of the gain, as a ratio."""
        if self.spreads.max() < _CERTAIN:
            return math.exp(float(self.weights @ self.means))
        low = float((self.means - 8.0 * self.spreads).min())
        high = float((self.means + 8.0 * self.spreads).max())
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.probability_above(middle) < 1.0 - q else (middle, high)
        return math.exp(0.5 * (low + high))

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the interval that holds the truth with probability ``LEVEL``."""
        return self.quantile(0.5 - 0.5 * LEVEL), self.quantile(0.5 + 0.5 * LEVEL)


@dataclass(frozen=True, slots=True, eq=False)
class ErrorModel:
    """Error model of a machine.

    Args:
        log_weights: of the draws of the variances, before the launches of a workload, float64 ``[n_draws]``.
    """

    log_weights: NDArray[np.float64]

    @classmethod
    def of(cls, elsewhere: Iterable[Trial] = (), *, objective: str) -> Self:
        """Return what launches of other workloads tell of the machine; each of them may tell nothing.

        Args:
            elsewhere: trials of other workloads, or of other days.
            objective: name of the throughput.
        """
        workloads: dict[str, list[Trial]] = {}
        for trial in sorted(elsewhere, key=lambda each: each.ended_at or each.started_at, reverse=True):
            workloads.setdefault(config_key(trial.workload), []).append(trial)
        log_weights, used = np.zeros(_DRAWS), 0
        for trials in workloads.values():
            launches, _ = Launches.of(trials, objective=objective)
            repeated = np.bincount(launches.config, minlength=1)[launches.config] > 1
            if repeated.any() and used < _MOST_WORKLOADS:
                used += 1
                found = _likelihood(launches.rows(np.flatnonzero(repeated)[-_MOST_ELSEWHERE:]))
                likelihood = np.exp(found - found.max())
                wild = likelihood[np.argmax(prior_draws().run)]
                log_weights = log_weights + _POWER * np.log((1.0 - _OUTLIER) * likelihood + _OUTLIER * wild + 1e-300)
        # Workloads differ in noise, however many of them agree (robust mixture prior, Schmidli et al., 2014).
        return cls(np.log(_TRUST * _normalized(log_weights) + (1.0 - _TRUST) / _DRAWS))

    @classmethod
    def unknown(cls) -> Self:
        """Return the prior of a machine of which nothing is known."""
        return cls(np.zeros(_DRAWS))

    def weights(self, launches: Launches) -> NDArray[np.float64]:
        """Return the posterior probability of each draw of the variances, ``[n_draws]``."""
        if len(launches) < 2:
            return _normalized(self.log_weights)
        latest = np.argsort(launches.time, kind="stable")[-(2 * _MOST + _MOST_OTHERS) :]
        return _normalized(self.log_weights + _likelihood(launches.rows(latest)))

    def noise(self, launches: Launches) -> float:
        """Return the standard deviation of the logarithm from run to run, apart from level and load."""
        return math.sqrt(float(self.weights(launches) @ prior_draws().run ** 2))

    def usual_noise(self, launches: Launches) -> float:
        """Return the median of ``noise``, for a predictor that also fits the noise to its residuals."""
        order, weights = np.argsort(prior_draws().run), self.weights(launches)
        return float(np.interp(0.5, np.cumsum(weights[order]) - 0.5 * weights[order], prior_draws().run[order]))

    def usual(self, launches: Launches) -> NDArray[np.float64]:
        """Return the covariance of errors that load and the runs themselves explain, ``[n, n]``."""
        own_load = float(self.weights(launches) @ prior_draws().load ** 2)
        alone = launches.error**2 + own_load * launches.load**2
        return np.diag(alone) + _COMMON_LOAD**2 * np.outer(launches.load, launches.load)

    def likely(self, launches: Launches, *, most: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the log prior and the covariance of the likeliest draws, for a model that weighs them itself.

        Args:
            launches: of a workload, ``n`` of them.
            most: number of draws.

        Returns:
            Log priors ``[n_draws]`` and covariances of the errors ``[n_draws, n, n]``.
        """
        draws = np.argsort(-self.weights(launches), kind="stable")[:most]
        return self.log_weights[draws], launches.covariances(draws)

    def gain(self, launches: Launches, best: int, own: int) -> Gain:
        """Return the gain of a config over the own one by the measurements of a workload alone.

        Args:
            launches: of the workload, as ``Launches.compared`` returns them.
            best: number of the config.
            own: number of the user's own config.
        """
        contrast = (launches.config == best).astype(np.float64) - (launches.config == own)
        with one_thread():
            log_likelihood, white = _whitened(launches, contrast)
        weights = _normalized(self.log_weights + log_likelihood)
        kept = weights > _NEGLIGIBLE
        of_contrast, of_values = white[kept, :, 0], white[kept, :, 1]
        means = _CONFIG**2 * (of_contrast * of_values).sum(axis=1)
        spreads = np.sqrt(np.maximum(2.0 * _CONFIG**2 - _CONFIG**4 * (of_contrast**2).sum(axis=1), 1e-12))
        return Gain(weights[kept] / weights[kept].sum(), means, spreads)

    def least_gain(self, launch: Launches, count: int) -> float:
        """Return about the least gain of which launches of two configs in turn are sure, as a ratio.

        The model itself is asked, about launches that scatter as usual: both configs by the same normal scores.

        Args:
            launch: one, as loaded and as uncertain as each of them.
            count: launches of each config, > 1.
        """
        places, scores = np.arange(2 * count), [NormalDist().inv_cdf((each + 0.5) / count) for each in range(count)]
        planned = replace(launch.rows(0 * places), time=places.astype(np.float64), config=places % 2)
        errors = planned.usual_errors() * np.column_stack([scores, scores[::-1]]).ravel()
        low, high = 0.0, _MOST_TRIED
        for _ in range(_TRIED):
            middle = 0.5 * (low + high)
            found = self.gain(replace(planned, logarithm=errors + middle * planned.config), 1, 0)
            low, high = (low, middle) if found.probability_above(0.0) > SURE else (middle, high)
        return math.exp(high)


def repeat_noise(trials: Iterable[Trial], *, objective: str, elsewhere: Iterable[Trial] = ()) -> float:
    """Return the standard deviation of the logarithm of throughput from run to run; see ``ErrorModel.noise``.

    Args:
        trials: of one workload.
        objective: name of the throughput.
        elsewhere: trials of other workloads, or of other days.
    """
    return ErrorModel.of(elsewhere, objective=objective).noise(Launches.of(trials, objective=objective)[0])


def by_time(trial: Trial) -> tuple[bool, float, str]:
    """Return the key that sorts trials by time, those without one last, and by their ids."""
    is_unknown = math.isnan(trial.measured_at)
    return is_unknown, 0.0 if is_unknown else trial.measured_at, trial.trial_id


def requested(trial: Trial) -> Hashable | None:
    """Return what a trial requested, with the observed facts that repeats must share; ``None`` without a config."""
    if not trial.config:
        return None
    shared = {name: value for name, value in trial.observed.items() if name in _SHARED_FACTS}
    return config_key(trial.config), config_key(trial.workload), config_key(shared)


def _likelihood(launches: Launches) -> NDArray[np.float64]:
    return _whitened(launches, np.zeros(len(launches)))[0]


def _whitened(launches: Launches, contrast: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log likelihood of launches under each draw, and contrast and values whitened, ``[n_draws, n, 2]``."""
    n = len(launches)
    alike = launches.config[:, None] == launches.config
    roots = np.linalg.cholesky(launches.covariances() + _CONFIG**2 * alike + _FLAT)
    values = launches.logarithm + _COST * launches.load
    sides = np.column_stack([contrast, values - values.mean()])
    white = np.linalg.solve(roots, np.broadcast_to(sides, (len(roots), n, 2)))
    scale = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    return -scale - 0.5 * (white[:, :, 1] ** 2).sum(axis=1), white


def _normalized(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _radical_inverse(number: int, base: int) -> float:
    """Return the number with its digits mirrored at the point: the Halton sequence (1964) of one dimension."""
    share, found = 1.0, 0.0
    while number:
        share /= base
        found += share * (number % base)
        number //= base
    return found
