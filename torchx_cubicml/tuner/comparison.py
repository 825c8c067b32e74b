"""Statistics of the repeated measurements of two configs: the gain with its confidence interval (Student's t)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean, median, variance
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError
from torchx_cubicml.launch.messages import per_cost_text
from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

FEWEST_TO_CLAIM = 2  # measurements of each side: a single one has no spread
_IMPRECISE = "the measurements are too imprecise (see the uncertainty of one launch)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """All measurements of one config on one workload.

    Args:
        config: requested config.
        throughputs: throughput of the whole job, in the objective's unit, in the order of the trials; at least one.
        uncertainties: standard deviation of the logarithm of each, as its run reported it; empty if all are unknown.
        time_to_done: median seconds of each part until a job is done; empty for other objectives.
        global_batch: global batch size that all of them were observed with; ``None`` if unknown, or if it varied.
        left_out: further measured launches of the config, which a comparison leaves out.
    """

    config: Config
    throughputs: tuple[float, ...]
    uncertainties: tuple[float, ...] = ()
    time_to_done: Mapping[str, float] = field(default_factory=dict)
    global_batch: int | None = None
    left_out: int = 0

    def __post_init__(self) -> None:
        if not self.throughputs:
            raise RecordError("repeats need at least one measurement")
        if self.uncertainties and len(self.uncertainties) != len(self.throughputs):
            raise RecordError(f"{len(self.throughputs)} measurements have {len(self.uncertainties)} uncertainties")

    @classmethod
    def of(cls, config: Config, trials: Iterable[Trial], *, objective: str, left_out: int = 0) -> Self:
        """Collect the repeats of one config, without trials that lack a throughput in the unit of ``objective``.

        Raises:
            RecordError: no trial is left.
        """
        measured = [each for each in trials if each.measurement is not None]
        pairs = [
            (value, each.uncertainty(objective))
            for each in measured
            if (value := each.throughput(objective)) is not None
        ]
        return cls(
            config=config,
            throughputs=tuple(value for value, _ in pairs),
            uncertainties=tuple(uncertainty for _, uncertainty in pairs),
            time_to_done=_median_parts(measured),
            global_batch=_global_batch(measured),
            left_out=left_out,
        )

    @property
    def middle(self) -> float:
        """Median throughput."""
        return median(self.throughputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Gain of the best config over the baseline, with its 95 % confidence interval.

    Args:
        objective: unit of the throughputs.
        baseline: measurements of the user's own config.
        best: measurements of the other config.
        gain: ratio of the geometric means, best over baseline.
        gain_low: lower end of the interval.
        gain_high: upper end of the interval.
        is_imprecise: whether the error comes from the uncertainty of the single runs rather than from their spread.
    """

    objective: str
    baseline: Repeats
    best: Repeats
    gain: float
    gain_low: float
    gain_high: float
    is_imprecise: bool = False

    @property
    def claims_gain(self) -> bool:
        """Return whether each side was measured at least twice and the whole interval is above one."""
        return self.gain_low > 1.0 and not self.launches_lacking

    @property
    def launches_lacking(self) -> int:
        """Launches until each side is measured twice: before, no gain can be claimed."""
        return launches_lacking(len(self.baseline.throughputs), len(self.best.throughputs))

    def __str__(self) -> str:
        span = f"(95 % interval: {self.gain_low:.2f}x to {self.gain_high:.2f}x)"
        if self.claims_gain:
            return " ".join(filter(None, (f"Gain {self.gain:.2f}x", per_cost_text(self.objective), span)))
        if lacking := self.launches_lacking:
            doubt = f"; {_IMPRECISE}" if self.is_imprecise else ""
            return f"Ratio {self.gain:.2f}x; {too_few_text(lacking)}{doubt}"
        why = "within the spread between repeats"
        if self.is_imprecise:
            why = _IMPRECISE
        return f"Ratio {self.gain:.2f}x {span}; no gain is claimed: {why}"


def _global_batch(trials: Iterable[Trial]) -> int | None:
    """Return the global batch size that all launches observed; ``None`` where they differ or one did not."""
    found = {trial.observed.get("global_batch_size") for trial in trials}
    (batch,) = found if len(found) == 1 else (None,)
    return batch if is_count(batch) else None


def _median_parts(trials: Iterable[Trial]) -> dict[str, float]:
    """Return the median seconds of each part until a job is done."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for each in trials:
        for name, value in each.time_to_done.items():
            seconds[name].append(value)
    return {name: median(values) for name, values in seconds.items()}


def launches_lacking(*counts: int) -> int:
    """Return the launches until each of two configs, measured so many times, is measured often enough for a claim."""
    return sum(max(0, FEWEST_TO_CLAIM - count) for count in counts)


def too_few_text(lacking: int) -> str:
    """Return the sentence on a comparison for which so many launches lack; a small gain takes more than these."""
    more = f"at least {lacking} more launch{'es' if lacking > 1 else ''}"
    return f"no gain is claimed: too few measurements (it takes {more})"


def compare(baseline: Repeats, best: Repeats, *, objective: str, noise: float) -> Comparison:
    """Compare ``best`` with ``baseline`` by Student's t on the logarithms of throughput.

    Args:
        baseline: measurements of the user's own config.
        best: measurements of the other config.
        objective: unit of the throughputs.
        noise: standard deviation of the logarithm of throughput from run to run, pooled over all configs, > 0. The
            error combines it with each run's uncertainty; if these measurements spread wider, their spread is used.
    """
    from scipy.stats import t

    sides = [list(map(math.log, side.throughputs)) for side in (baseline, best)]
    centre = fmean(sides[1]) - fmean(sides[0])
    degrees_of_freedom = max(1, sum(map(len, sides)) - len(sides))
    pooled = sum(variance(side) * (len(side) - 1) for side in sides if len(side) > 1) / degrees_of_freedom
    from_runs = sum(_variance_of_mean(side, noise) for side in (baseline, best))
    from_repeats = pooled * sum(1 / len(side) for side in sides)
    from_spread = max(from_repeats, sum(noise**2 / len(side) for side in sides))
    error = math.sqrt(max(from_runs, from_repeats)) * float(t.ppf(0.975, degrees_of_freedom))
    return Comparison(
        objective=objective,
        baseline=baseline,
        best=best,
        gain=math.exp(centre),
        gain_low=math.exp(centre - error),
        gain_high=math.exp(centre + error),
        is_imprecise=from_runs > 2.0 * from_spread,
    )


def least_confirmed(uncertainty: float, repeats: int) -> float:
    """Return the ratio above which ``compare`` can claim a gain, if no other noise adds to the launches' own.

    Args:
        uncertainty: standard deviation of the logarithm of the throughput of each launch.
        repeats: launches of each side.

    >>> round(least_confirmed(1.0, 3), 2), round(least_confirmed(0.01, 3), 2)
    (9.65, 1.02)
    """
    from scipy.stats import t

    count = max(repeats, FEWEST_TO_CLAIM)
    return math.exp(uncertainty * math.sqrt(2.0 / count) * float(t.ppf(0.975, 2 * count - 2)))


def _variance_of_mean(repeats: Repeats, noise: float) -> float:
    count = len(repeats.throughputs)
    return (noise**2 + sum(each**2 for each in repeats.uncertainties) / count) / count
