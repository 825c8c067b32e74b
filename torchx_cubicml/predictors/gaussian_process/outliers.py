"""Measurements that something else than their config has slowed down: a busy node, a slow disk, a shared network.

Such a launch is slower by tens of per cent, never faster. Taken for the config's own, one in ten of them makes all
differences look like noise; so what is far slower than configs like it is left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.gaussian_process.kernel import Kernel, Sample

_CHANCE = 0.01  # of one launch
_LEAST = 0.1  # log by which it is slower; what is less is noise
_MOST = 0.2  # share of the launches
_TOLD = 0.25  # share of its variance left by the others up to which they tell a config: slow ones far from all are real

# Log probability of such a measurement, any log slowdown from the least to one more being alike, without the constant
# that the log density of a normal is told without.
LOG_CHANCE = math.log(_CHANCE) + 0.5 * math.log(2.0 * math.pi)


def find_outliers(kernel: Kernel, sample: Sample, *, scale: float) -> NDArray[np.bool_]:
    """Return which measurements were likelier held up than what the others let expect, ``[n]``.

    One after the other is left out, the least likely first, and the rest is asked anew.

    Args:
        kernel: covariance of the standardised logarithms, and their noise.
        sample: the measurements, ``n`` of them; what its own run was unsure of is no outlier.
        scale: standard deviation of the logarithms, by which they were standardised.
    """
    points, rest = sample.points, sample.rest
    gram = kernel.between(points, points) + np.diag(kernel.noise_of(sample.own_noise))
    alone = np.diag(gram)
    doubted = np.zeros(len(points), dtype=np.bool_)
    for _ in range(int(_MOST * len(points))):
        kept = np.flatnonzero(~doubted)
        inverse = np.linalg.inv(gram[np.ix_(kept, kept)])
        variance = 1.0 / np.diag(inverse)  # of each, told by the others
        off = (inverse @ rest[kept]) * variance
        normal = -0.5 * off**2 / variance - np.log(scale * np.sqrt(variance))
        possible = (scale * off < -_LEAST) & (variance < _TOLD * alone[kept])
        gain = np.where(possible, LOG_CHANCE - normal, -np.inf)
        worst = int(np.argmax(gain))
        if gain[worst] <= 0.0:
            break
        doubted[kept[worst]] = True
    return doubted
