"""Record of an estimated number: median, 80 % interval, and what it is based on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

_HIGH = NormalDist().inv_cdf(0.9)  # end of a two-sided 80 % interval, in standard deviations
FORMULAS = "formulas"
WIDEST = 10.0
"""Ratio of the ends of the widest interval of a step that is told, if nothing measured has shown that it holds."""
WIDEST_CHECKED = 100.0
"""Likewise of intervals that held public sources which had been left out: ten times either way, see ``PublicPrior``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated number with its 80 % interval.

    Args:
        low: end of the interval; equal to ``high`` where the number is exact.
        middle: median.
        high: end of the interval.
        basis: what it is based on, for people: formulas, public sources, launches, or where it was read.
    """

    low: float
    middle: float
    high: float
    basis: str

    @classmethod
    def log_normal(cls, logarithm: float, spread: float, basis: str) -> Self:
        """Return the estimate of a number whose logarithm is normal.

        >>> estimate = Estimate.log_normal(0.0, 0.1, "formulas")
        >>> round(estimate.low, 2), estimate.middle, round(estimate.high, 2)
        (0.88, 1.0, 1.14)
        """
        low, high = logarithm - _HIGH * spread, logarithm + _HIGH * spread
        return cls(low=math.exp(low), middle=math.exp(logarithm), high=math.exp(high), basis=basis)

    def times(self, factor: float) -> Estimate:
        """Return the estimate of ``factor`` times the number."""
        return Estimate(low=self.low * factor, middle=self.middle * factor, high=self.high * factor, basis=self.basis)

    def of_inverse(self, work: float) -> Estimate:
        """Return the estimate of ``work`` over the number: of a throughput by the seconds of a step, and back."""
        return Estimate(low=work / self.high, middle=work / self.middle, high=work / self.low, basis=self.basis)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Distribution of a positive number.

    Args:
        logarithm: of its median.
        spread: standard deviation of the logarithm.
    """

    logarithm: float
    spread: float

    def probability_below(self, limit: float) -> float:
        """Return the probability that the number is below a limit above zero.

        >>> LogNormal(0.0, 0.5).probability_below(1.0)
        0.5
        """
        return NormalDist().cdf((math.log(limit) - self.logarithm) / max(self.spread, 1e-9))
