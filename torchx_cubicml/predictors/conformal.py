"""How wide intervals must be to hold what they promise: split conformal prediction (Lei et al., arXiv 1604.04173)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOISE_FLOOR = 0.02  # log spread between repeats of one config on a quiet machine
PRIOR_SPREAD = 0.3  # log spread believed before anything was measured
PRIOR_TRIALS = 3.0  # how many trials that belief weighs
FEWEST = 10  # errors from which a scale is learned
_SHARE = 0.8
_Z = 1.2816  # two-sided 80 % of a normal distribution
_LEAST, _MOST = 0.2, 5.0  # a scale beyond says more of the errors' number than of the spreads


def prior_variance(n_measured: float) -> float:
    """Return what is left of the variance that was believed before anything was measured.

    Args:
        n_measured: measurements, each counting by its weight.
    """
    return PRIOR_SPREAD**2 * PRIOR_TRIALS / (PRIOR_TRIALS + n_measured)


def conformal_scale(errors: NDArray[np.float64], spreads: NDArray[np.float64], *, fewest: int = FEWEST) -> float:
    """Return the factor on ``spreads`` that makes 80 % intervals hold four fifths of ``errors``, 1 for too few.

    Args:
        errors: absolute ones of rows predicted without themselves, ``[n]``.
        spreads: standard deviations that were predicted for them, ``[n]``.
        fewest: errors without which nothing is scaled.
    """
    if len(errors) < fewest:
        return 1.0
    share = min(1.0, _SHARE * (len(errors) + 1) / len(errors))  # the correction for a finite sample
    return float(np.clip(np.quantile(errors / spreads, share) / _Z, _LEAST, _MOST))
