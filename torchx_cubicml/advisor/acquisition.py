"""Acquisition functions: scores of configs from predicted gain and probability to fit in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.encoding import vectors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.predictors import Prediction
    from torchx_cubicml.records.values import Config

AcquisitionFunction: TypeAlias = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
"""Acquisition function: maps log gains over the incumbent and their spreads to log utility, ``[n]`` each."""

# The best configs lie close to the memory limit. There a large gain times a small probability to fit exceeds any safe
# gain, so that without a floor on the probability half of the launches run out of memory. The floor rises with each
# config out of memory and falls with the others.
_FLOOR, _LOWEST_FLOOR, _HIGHEST_FLOOR = 0.3, 0.1, 0.6
_FLOOR_STEP = 0.05  # for each config out of memory beyond the accepted share
_ACCEPTED_SHARE = 0.25  # of configs that may run out of memory
_FLOOR_PENALTY = 1000.0  # log penalty per unit of probability below the floor; exceeds any improvement
_INCUMBENT_CANDIDATES = 300  # fastest measured configs among which the incumbent is sought
_UPPER_BOUND_SPREADS = 1.5  # spreads above the mean of ``upper_bound``


class Acquisition:
    """Acquisition score of configs that were not run; ``-inf`` for configs already decided or under way.

    Args:
        posterior: predicted throughput and fit of configs.
        name: key of ``ACQUISITIONS``.
        rng: source of the Thompson sample; only ``thompson`` uses it.
    """

    def __init__(
        self, posterior: Posterior, name: str = "expected_improvement", *, rng: np.random.Generator | None = None
    ) -> None:
        if name not in ACQUISITIONS:
            raise SpaceError(f"unknown acquisition {name!r}; choose from {', '.join(ACQUISITIONS)}")
        self._space = posterior.space
        self._forecast_at: Callable[[NDArray[np.intp]], Prediction] = posterior.forecast_at
        estimates = posterior.estimates(posterior.fastest(_INCUMBENT_CANDIDATES)).logarithm
        self._best = float(estimates.max()) if len(estimates) else 0.0
        # Without a measurement there is no incumbent to improve on, so the highest predicted mean comes first.
        self._utility = ACQUISITIONS["mean" if name == "expected_improvement" and not len(estimates) else name]
        excess = posterior.n_out_of_memory - _ACCEPTED_SHARE * len(posterior.outcomes)
        self._floor = float(np.clip(_FLOOR + _FLOOR_STEP * excess, _LOWEST_FLOOR, _HIGHEST_FLOOR))
        self._decided_rows = posterior.decided_rows()
        if name == "thompson" and rng is not None:
            self._forecast_at = posterior.sample_function(rng)

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Return the score of each config, float64 ``[n]``; a ``Score``."""
        return self.of_vectors(vectors_of(self._space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the score of each legal row of choice indices, float64 ``[n]``; a ``VectorScore``."""
        forecast = self._forecast_at(vectors)
        gain, spread = np.nan_to_num(forecast.logarithm - self._best), np.nan_to_num(forecast.spread)
        utility = self._utility(gain, spread)
        score = weighted_by_fit(utility, forecast.fits, floor=self._floor)
        decided = np.array([row.tobytes() in self._decided_rows for row in vectors], dtype=np.bool_)
        return np.asarray(np.where(decided, -np.inf, score), dtype=np.float64)


def weighted_by_fit(
    utility: NDArray[np.float64], fits: NDArray[np.float64], *, floor: float = _FLOOR
) -> NDArray[np.float64]:
    """Return log utility weighted by the probability to fit in memory, of the shape of ``utility``.

    Args:
        utility: logarithm of the utility of configs that fit, ``[n]``, or one row per surrogate, ``[n_surrogates, n]``.
        fits: probability to fit, ``[n]``.
        floor: probability below which no utility suffices; the default applies where no memory limit is known.
    """
    with np.errstate(divide="ignore"):
        score = utility + np.log(fits)
    return np.asarray(score - _FLOOR_PENALTY * np.maximum(floor - fits, 0.0), dtype=np.float64)


def _mean(gain: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    del spread
    return gain


def _upper_bound(gain: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(gain + _UPPER_BOUND_SPREADS * spread, dtype=np.float64)


def log_expected_improvement(gain: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of expected improvement, ``[n]``.

    Expected improvement is the mean of the positive part of a normal with mean ``gain`` and ``spread`` > 0.
    """
    z = gain / spread
    factor = np.piecewise(z, [z > -1.0, z < -30.0], [_log_factor, _log_factor_far_below, _log_factor_below_zero])
    return np.asarray(np.log(spread) + factor, dtype=np.float64)


# Expected improvement is the spread times z Phi(z) + phi(z). Below zero the two terms cancel, so this factor is taken
# relative to phi(z), and far below by its leading term phi(z) / z^2.
def _log_factor(z: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import ndtr

    return np.asarray(np.log(z * ndtr(z) + np.exp(_log_density(z))), dtype=np.float64)


def _log_factor_below_zero(z: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import log_ndtr

    density = _log_density(z)
    return np.asarray(density + np.log1p(z * np.exp(log_ndtr(z) - density)), dtype=np.float64)


def _log_factor_far_below(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(_log_density(z) - 2.0 * np.log(-z), dtype=np.float64)


ACQUISITIONS: dict[str, AcquisitionFunction] = {
    "expected_improvement": log_expected_improvement,
    "mean": _mean,
    "upper_bound": _upper_bound,
    "thompson": _mean,
}
"""Acquisition functions by name: ``mean`` is the paper's, ``thompson`` the mean of one sampled function."""


def _log_density(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-0.5 * z**2 - 0.5 * np.log(2 * np.pi), dtype=np.float64)
