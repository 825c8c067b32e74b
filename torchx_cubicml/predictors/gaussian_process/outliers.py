"""Outlier detection: measurements slowed down by a busy node, a slow disk or a shared network, not by their config.

Such a launch is slower by tens of per cent, never faster. If one launch in ten is such an outlier and is kept, all
differences look like noise. So a measurement far below those of similar configs is left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.gaussian_process.kernel import Kernel, Sample

_PROBABILITY = 0.01  # prior, of one launch
_LEAST_SLOWDOWN = 0.1  # log slowdown of an outlier; a smaller one is noise
_MOST_SHARE = 0.2  # of the launches
# Share of its prior variance that the other measurements may leave to an outlier. A config further from all others may
# really be slow.
_MOST_VARIANCE = 0.25

# Log probability of an outlier: log slowdowns are uniform from the least to 1 above it. The constant of the normal log
# density is left out, as it is there.
LOG_CHANCE = math.log(_PROBABILITY) + 0.5 * math.log(2.0 * math.pi)


def find_outliers(kernel: Kernel, sample: Sample, *, scale: float) -> NDArray[np.bool_]:
    """Return a mask of the outliers: measurements far below their leave-one-out prediction, bool ``[n]``.

    Outliers are removed one at a time, the least likely first, and the others are then predicted anew.

    Args:
        kernel: covariance of the standardised logarithms, and their noise.
        sample: the measurements, ``n`` of them; the uncertainty that a run reported counts as noise.
        scale: standard deviation of the logarithms, by which they were standardised.
    """
    points, rest = sample.points, sample.rest
    gram = kernel.between(points, points) + kernel.noise_of(sample.errors)
    prior_variance = np.diag(gram)
    outliers = np.zeros(len(points), dtype=np.bool_)
    for _ in range(int(_MOST_SHARE * len(points))):
        trusted = np.flatnonzero(~outliers)
        inverse = np.linalg.inv(gram[np.ix_(trusted, trusted)])
        variance = 1.0 / np.diag(inverse)  # leave-one-out
        loo_residuals = (inverse @ rest[trusted]) * variance
        log_density = -0.5 * loo_residuals**2 / variance - np.log(scale * np.sqrt(variance))
        candidates = (scale * loo_residuals < -_LEAST_SLOWDOWN) & (variance < _MOST_VARIANCE * prior_variance[trusted])
        gain = np.where(candidates, LOG_CHANCE - log_density, -np.inf)
        worst = int(np.argmax(gain))
        if gain[worst] <= 0.0:
            break
        outliers[trusted[worst]] = True
    return outliers
