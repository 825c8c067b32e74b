"""The memory formula's constants, fitted on peaks and outcomes; they stay at their defaults where nothing is known.

Most probable values under log-normal priors. A logged peak says how large the parts are together; what ran and what ran
out of memory say where the wall stands. A failure of unknown cause may have another reason, whose rate is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors.roofline.training_layout import Array, Layout

# Parts that one factor scales -> standard deviation of its logarithm.
_GROUPS: dict[tuple[str, ...], float] = {
    ("weights", "gradients", "gathered"): 0.3,
    ("optimizer",): 0.3,
    ("activations",): 0.5,
    ("logits",): 0.5,
    ("reserved",): 0.7,
}
N_GROUPS = len(_GROUPS)
# After the factors: share of the memory that is of use, sharpness of the wall per doubling, log odds of other failures.
_CENTRE = np.array([*[0.0] * N_GROUPS, np.log(0.92), np.log(6.0), -3.0])
_WIDTH = np.array([*_GROUPS.values(), 0.1, 0.7, 1.5])
_NOISE = 0.1  # log error of a peak up to which a misfit counts squared, beyond it linearly
_STEPS = 100
_MOST_LOGIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """What outcomes taught of memory.

    Args:
        theta: logarithms of the factors on groups of parts, of the usable share and of the sharpness; then the log odds
            of a failure for another reason. Float64 ``[n_groups + 3]``.
    """

    theta: Array

    @classmethod
    def default(cls) -> MemoryCalibration:
        """Return what is believed before anything was seen."""
        return cls(theta=_CENTRE.copy())

    def pressure(self, layout: Layout) -> Array:
        """Return log2 of the peak over the usable memory, then of each group's share, float64 ``[n, 1 + n_groups]``."""
        shares = _shares(layout) * np.exp(self.theta[:N_GROUPS] - self.theta[N_GROUPS])
        return np.asarray(np.log2(np.maximum(np.column_stack([shares.sum(axis=1), shares]), 2.0**-20)))

    def log_odds(self, layout: Layout) -> Array:
        """Return log odds to run through, other reasons of failure among them, float64 ``[n]``."""
        fits = _logit_to_fit(self.theta, _shares(layout))
        runs = np.exp(-np.logaddexp(0.0, -fits)) / (1.0 + np.exp(self.theta[-1]))
        return np.asarray(np.log(np.maximum(runs, 1e-12)) - np.log1p(-np.minimum(runs, 1.0 - 1e-12)))


def calibrate_memory(layout: Layout, *, ran: Array, certain: Array, peak_bytes: Array) -> MemoryCalibration:
    """Return the constants that explain outcomes and peaks.

    Args:
        layout: ``n`` trainings, all covered; none at all is legal.
        ran: 1.0 where it fitted, float64 ``[n]``.
        certain: 1.0 where memory is known to be why it did not, float64 ``[n]``.
        peak_bytes: measured on the fullest device, NaN where unknown, float64 ``[n]``.
    """
    if not len(ran):
        return MemoryCalibration.default()
    from scipy.optimize import minimize

    shares, peaks = _shares(layout), np.log(peak_bytes / layout.memory)
    told = np.isfinite(peaks)

    def surprise(theta: Array) -> float:
        belief = (theta - _CENTRE) / _WIDTH
        errors = np.log(shares[told] @ np.exp(theta[:N_GROUPS])) - peaks[told]
        misfit = (np.sqrt(1.0 + (errors / _NOISE) ** 2) - 1.0).sum()
        return float(0.5 * belief @ belief + misfit - _log_likelihood(theta, shares, ran, certain))

    solver: Callable[..., _Solution] = minimize
    with one_thread():
        return MemoryCalibration(theta=solver(surprise, _CENTRE, method="L-BFGS-B", options={"maxiter": _STEPS}).x)


class _Solution(Protocol):
    x: Array


def _shares(layout: Layout) -> Array:
    found = memory_parts(layout)
    groups = [sum((found[name] for name in names), np.zeros(len(layout.memory))) for names in _GROUPS]
    return np.column_stack(groups) / layout.memory[:, None]


def _logit_to_fit(theta: Array, shares: Array) -> Array:
    doublings = np.log2(np.maximum(shares @ np.exp(theta[:N_GROUPS]), 1e-9)) - theta[N_GROUPS] / np.log(2.0)
    return np.asarray(np.clip(-np.exp(theta[N_GROUPS + 1]) * doublings, -_MOST_LOGIT, _MOST_LOGIT))


def _log_likelihood(theta: Array, shares: Array, ran: Array, certain: Array) -> float:
    fits = _logit_to_fit(theta, shares)
    runs = -np.logaddexp(0.0, -fits) - np.log1p(np.exp(theta[-1]))
    lost = np.log(-np.expm1(np.minimum(runs, -1e-12)))
    failed = np.where(certain > 0.0, -np.logaddexp(0.0, fits), lost)
    return float(np.where(ran > 0.0, runs, failed).sum())
