"""Whether a launch under way is so much slower than the best that its end needs not be waited for."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.noise import repeat_noise
from torchx_cubicml.predictors.features.history import config_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Measurement, Trial

_FEWEST_STEPS = 10  # counted after warm-up
_SIGMAS = 3.0  # by which it must stand under the best; before repeats, the noise is believed to be large
_SLOWER = 0.1  # and by this part at least: a config a little slower is worth its whole measurement
_UNKNOWN = 0.1  # log error of a throughput of which nothing is known
_DECILES = 2.5631  # standard deviations between the first and the last decile of a normal distribution
_OF_A_MEDIAN = 1.2533  # its standard error, in those of a mean


def why_hopeless(trial: Trial, others: Sequence[Trial], *, objective: str) -> str:
    """Return why a running trial cannot catch up with the best measured config, in words; empty where it may.

    Args:
        trial: under way, with what it measured so far.
        others: trials to compare with.
        objective: name of the throughput.
    """
    if trial.measurement is None or trial.measurement.steps_counted < _FEWEST_STEPS:
        return ""
    own, best = trial.measurement.throughput(objective), _best(others, objective)
    if own is None or best is None:
        return ""
    between = repeat_noise(others, objective=objective)
    noise = math.hypot(own_noise(trial.measurement), between * math.sqrt(2))
    behind = math.log(best / own)
    if behind < max(_SIGMAS * noise, _SLOWER):
        return ""
    return (
        f"ended early: {own:,.0f} {objective} after {trial.measurement.steps_counted} steps are "
        f"{1 - own / best:.0%} under the best, {behind / noise:.0f} times the noise"
    )


def own_noise(measurement: Measurement) -> float:
    """Return the standard deviation of the logarithm of a throughput, as its run told it.

    Where it did not, that of the median from the spread of the steps, as if each were a chance of its own, counts too.

    >>> from torchx_cubicml.records.trial import Measurement
    >>> steps = Measurement(tokens_per_second=9.0, steps_counted=100, step_time_s=(0.9, 1.0, 1.1))
    >>> round(own_noise(steps), 4), own_noise(Measurement(tokens_per_second=9.0, relative_error=0.03))
    (0.0098, 0.03)
    """
    if measurement.relative_error:
        return measurement.uncertainty
    if not measurement.step_time_s:
        return math.hypot(_UNKNOWN, measurement.uncertainty)
    low, _, high = measurement.step_time_s
    of_steps = _OF_A_MEDIAN * math.log(high / low) / _DECILES / math.sqrt(measurement.steps_counted)
    return math.hypot(of_steps, measurement.uncertainty)


def _best(trials: Sequence[Trial], objective: str) -> float | None:
    """Return the throughput of the fastest config, its repeats averaged."""
    groups: dict[str, list[float]] = {}
    for trial in trials:
        value = trial.measurement.throughput(objective) if trial.measurement and trial.state.ended else None
        if value is not None:
            groups.setdefault(config_key(trial.config), []).append(math.log(value))
    return max((math.exp(fmean(values)) for values in groups.values()), default=None)
