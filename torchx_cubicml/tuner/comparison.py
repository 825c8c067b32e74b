"""Two configs compared by their repeated measurements, with the spread told: a gain inside the noise is not claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.records.trial import Config, Measurement

_FEWEST_TO_CLAIM = 2  # measurements of each side: one alone says nothing of the spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """All measurements of one config on one workload.

    Args:
        config: requested config.
        throughputs: of the whole job, in the objective's unit, in the order of the trials; at least one.
        uncertainties: standard deviation of the logarithm of each, as its run told it; empty where all are unknown.
    """

    config: Config
    throughputs: tuple[float, ...]
    uncertainties: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.throughputs:
            raise RecordError("repeats need at least one measurement")
        if self.uncertainties and len(self.uncertainties) != len(self.throughputs):
            raise RecordError(f"{len(self.throughputs)} measurements have {len(self.uncertainties)} uncertainties")

    @classmethod
    def of(cls, config: Config, measurements: Iterable[Measurement], *, objective: str) -> Self:
        """Return the repeats of one config; what was not measured in the unit of ``objective`` is left out.

        Raises:
            RecordError: that leaves nothing.
        """
        told = [(value, each.uncertainty) for each in measurements if (value := each.throughput(objective)) is not None]
        return cls(
            config=config,
            throughputs=tuple(value for value, _ in told),
            uncertainties=tuple(uncertainty for _, uncertainty in told),
        )

    @property
    def middle(self) -> float:
        """Median throughput."""
        return median(self.throughputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One config against another.

    Args:
        objective: unit of the throughputs.
        baseline: measurements of the user's own config.
        best: measurements of the other.
        gain: ratio of the geometric means, best over baseline.
        gain_low: lower end of its 95 % interval.
        gain_high: upper end.
    """

    objective: str
    baseline: Repeats
    best: Repeats
    gain: float
    gain_low: float
    gain_high: float

    @property
    def claims_gain(self) -> bool:
        """Whether each side was measured more than once and the whole interval stands above one."""
        return self.gain_low > 1.0 and self._repeated

    @property
    def _repeated(self) -> bool:
        return min(len(self.baseline.throughputs), len(self.best.throughputs)) >= _FEWEST_TO_CLAIM

    def __str__(self) -> str:
        span = f"{self.gain_low:.2f}x to {self.gain_high:.2f}x (95 %)"
        if self.claims_gain:
            return f"gain {self.gain:.2f}x, {span}"
        if not self._repeated:
            return f"ratio {self.gain:.2f}x, from too few measurements to claim a gain"
        return f"ratio {self.gain:.2f}x, {span}: inside the spread between repeats, so no gain is claimed"


def compare(baseline: Repeats, best: Repeats, *, objective: str, noise: float) -> Comparison:
    """Return how ``best`` compares with ``baseline``, by Student's t on the logarithms.

    Args:
        baseline: measurements of the user's own config.
        best: measurements of the other.
        objective: unit of the throughputs.
        noise: standard deviation of the logarithm of throughput from run to run, pooled over all configs, > 0. With
            what each run is unsure of it makes the error; where these measurements spread wider, their own spread does.
    """
    from scipy.stats import t

    sides = [list(map(math.log, side.throughputs)) for side in (baseline, best)]
    centre = fmean(sides[1]) - fmean(sides[0])
    freedom = max(1, sum(map(len, sides)) - len(sides))
    own = sum(variance(side) * (len(side) - 1) for side in sides if len(side) > 1) / freedom
    known = sum(_variance_of_mean(side, noise) for side in (baseline, best))
    seen = own * sum(1 / len(side) for side in sides)
    error = math.sqrt(max(known, seen)) * float(t.ppf(0.975, freedom))
    return Comparison(
        objective=objective,
        baseline=baseline,
        best=best,
        gain=math.exp(centre),
        gain_low=math.exp(centre - error),
        gain_high=math.exp(centre + error),
    )


def _variance_of_mean(repeats: Repeats, noise: float) -> float:
    count = len(repeats.throughputs)
    return (noise**2 + sum(each**2 for each in repeats.uncertainties) / count) / count
