"""Two configs compared by their repeated measurements, with the spread told: a gain inside the noise is not claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.history import config_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.trial import Config, Trial

_Z_95 = 1.96  # two-sided 95 % of a normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """All measurements of one config on one workload.

    Args:
        config: requested config.
        throughputs: of the whole job, in the objective's unit, in the order of the trials; at least one.
    """

    config: Config
    throughputs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.throughputs:
            raise RecordError("repeats need at least one measurement")

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
        """Whether the whole interval stands above one."""
        return self.gain_low > 1.0

    def __str__(self) -> str:
        span = f"{self.gain_low:.2f}x to {self.gain_high:.2f}x (95 %)"
        if self.claims_gain:
            return f"gain {self.gain:.2f}x, {span}"
        return f"ratio {self.gain:.2f}x, {span}: inside the spread between repeats, so no gain is claimed"


def repeats_of(trials: Iterable[Trial], config: Config, *, objective: str) -> Repeats | None:
    """Return the measurements of ``config`` among ``trials`` of one workload; ``None`` where there is none."""
    key = config_key(config)
    measured = (trial.measurement for trial in trials if trial.measurement and config_key(trial.config) == key)
    values = [value for measurement in measured if (value := measurement.throughput(objective)) is not None]
    return Repeats(config=config, throughputs=tuple(values)) if values else None


def compare(baseline: Repeats, best: Repeats, *, objective: str, noise: float) -> Comparison:
    """Return how ``best`` compares with ``baseline``.

    Args:
        baseline: measurements of the user's own config.
        best: measurements of the other.
        objective: unit of the throughputs.
        noise: standard deviation of the logarithm of one measurement, pooled over all configs, > 0.
    """
    centre = fmean(map(math.log, best.throughputs)) - fmean(map(math.log, baseline.throughputs))
    error = _Z_95 * noise * math.sqrt(1 / len(best.throughputs) + 1 / len(baseline.throughputs))
    return Comparison(
        objective=objective,
        baseline=baseline,
        best=best,
        gain=math.exp(centre),
        gain_low=math.exp(centre - error),
        gain_high=math.exp(centre + error),
    )
