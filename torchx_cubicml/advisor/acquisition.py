"""What a next launch is worth: what it promises by an acquisition, and how likely it fits."""

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
    from torchx_cubicml.advisor.surrogates.base import Forecast
    from torchx_cubicml.records.trial import Config

Worth: TypeAlias = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
"""Maps log gains over the best measured config and their spreads to a logarithm of worth, ``[n]`` each."""

# The best configs lie on the memory wall, where a large gain times a small chance wins over any sure step: without a
# floor on the chance half of the launches run out of memory. The floor rises with those that do and falls with others.
_FLOOR, _LOWEST_FLOOR, _HIGHEST_FLOOR = 0.3, 0.1, 0.6
_FLOOR_STEP = 0.05  # for each config out of memory beyond the share that is fair
_FAIR_SHARE = 0.25  # of configs out of memory
_UNDER_FLOOR = 1000.0  # penalty that no improvement outweighs
_CONTENDERS = 300  # highest measurements among which the best config is
_BOUND = 1.5  # spreads above the mean at which ``upper_bound`` stands


class Acquisition:
    """The score of configs that were not run; ``-inf`` for those whose outcome is known or under way.

    Args:
        outlook: what is expected of configs.
        name: key of ``ACQUISITIONS``.
        rng: of the draws; only ``thompson`` draws.
    """

    def __init__(
        self, posterior: Posterior, name: str = "expected_improvement", *, rng: np.random.Generator | None = None
    ) -> None:
        if name not in ACQUISITIONS:
            raise SpaceError(f"unknown acquisition {name!r}; legal are {', '.join(ACQUISITIONS)}")
        self._space = posterior.space
        self._forecast_at: Callable[[NDArray[np.intp]], Forecast] = posterior.forecast_at
        beliefs = [
            belief.throughput for belief in posterior.beliefs(posterior.fastest(_CONTENDERS)) if belief is not None
        ]
        self._best = float(np.log(max(beliefs))) if beliefs else 0.0
        # Where nothing was measured there is nothing to improve on: the best of similar workloads comes first.
        self._worth = ACQUISITIONS["mean" if name == "expected_improvement" and not beliefs else name]
        surplus = posterior.n_out_of_memory - _FAIR_SHARE * len(posterior.records)
        self._floor = float(np.clip(_FLOOR + _FLOOR_STEP * surplus, _LOWEST_FLOOR, _HIGHEST_FLOOR))
        self._settled = posterior.settled_rows()
        if name == "thompson" and rng is not None:
            self._forecast_at = posterior.sample_function(rng)

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Return the score of each config, float64 ``[n]``; a ``Score``."""
        return self.of_vectors(vectors_of(self._space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the score of each legal row of choice indices, float64 ``[n]``; a ``VectorScore``."""
        forecast = self._forecast_at(vectors)
        gain, spread = np.nan_to_num(forecast.logarithm - self._best), np.nan_to_num(forecast.spread)
        worth = self._worth(gain, spread)
        score = weighed(worth, forecast.fits, floor=self._floor)
        settled = np.array([row.tobytes() in self._settled for row in vectors], dtype=np.bool_)
        return np.asarray(np.where(settled, -np.inf, score), dtype=np.float64)


def weighed(worth: NDArray[np.float64], fits: NDArray[np.float64], *, floor: float = _FLOOR) -> NDArray[np.float64]:
    """Return what launches are worth by how likely they fit, a logarithm as ``worth`` is, of its shape.

    Args:
        worth: logarithm of what those that fit are worth, ``[n]``, or by several opinions, ``[n_opinions, n]``.
        fits: probability to fit, ``[n]``.
        floor: probability under which no worth is enough; by default where nothing is known of the memory wall.
    """
    with np.errstate(divide="ignore"):
        score = worth + np.log(fits)
    return np.asarray(score - _UNDER_FLOOR * np.maximum(floor - fits, 0.0), dtype=np.float64)


def _mean(gain: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    del spread
    return gain


def _upper_bound(gain: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(gain + _BOUND * spread, dtype=np.float64)


def log_expected_improvement(gain: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of the expected positive part of a normal with mean ``gain`` and ``spread`` > 0, ``[n]``."""
    from scipy.special import log_ndtr, ndtr

    z = gain / spread
    # The factor of the spread is z Phi(z) + phi(z). Below zero its two terms cancel, so it is taken relative to
    # phi(z), and far below by its leading term phi(z) / z^2.
    high, low = np.maximum(z, -1.0), np.clip(z, -30.0, -1.0)
    direct = np.log(high * ndtr(high) + np.exp(_log_density(high)))
    relative = _log_density(low) + np.log1p(low * np.exp(log_ndtr(low) - _log_density(low)))
    far = _log_density(z) - 2.0 * np.log(np.maximum(np.abs(z), 1.0))
    return np.asarray(np.log(spread) + np.select([z > -1.0, z > -30.0], [direct, relative], far), dtype=np.float64)


ACQUISITIONS: dict[str, Worth] = {
    "expected_improvement": log_expected_improvement,
    "mean": _mean,
    "upper_bound": _upper_bound,
    "thompson": _mean,
}
"""What a config that fits is worth: ``mean`` is the paper's, ``thompson`` the mean of one function that is drawn."""


def _log_density(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-0.5 * z**2 - 0.5 * np.log(2 * np.pi), dtype=np.float64)
