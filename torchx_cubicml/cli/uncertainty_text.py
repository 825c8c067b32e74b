"""Text on why the throughput of a launch is uncertain, and what helps: recorded facts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import interval_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.records.measurement import Measurement

_WIDE = 0.06  # log standard deviation: an interval of +- 10 %
_FEW_STEPS = 20  # counted ones
_LEAST_DRIFT = 0.05  # what counts as steady is less
_WIDE_SPREAD = 1.5  # of the step times: quantile 0.9 over quantile 0.1


def uncertainty_text(measurement: Measurement | None, *, crowded: bool = False) -> str:
    """Return a sentence on the causes of an unsteady or wide measurement; empty for others, or where none is recorded.

    Args:
        measurement: of a launch.
        crowded: whether other processes or launches ran beside it.

    >>> from torchx_cubicml.records.measurement import Measurement
    >>> uncertainty_text(Measurement(tokens_per_second=9.0, steps_counted=8, relative_error=0.1))
    'uncertain, as only 8 steps were counted; more steps help'
    """
    if measurement is None or not (measurement.uncertainty > _WIDE or measurement.is_steady is False):
        return ""
    causes = list(_causes(measurement))
    cures = [*(["a free machine"] if crowded else []), *(["more steps"] if causes else [])]
    causes = [*(["it was crowded"] if crowded else []), *causes]
    if not causes:
        return ""
    head = "uncertain" if interval_text(measurement.uncertainty) else "not steady"
    verb = "helps" if len(cures) == 1 and crowded else "help"
    return f"{head}, as {', and '.join(causes)}; {' and '.join(cures)} {verb}"


def _causes(measurement: Measurement) -> Iterator[str]:
    drift = measurement.drift or 0.0
    if measurement.is_steady is False and abs(drift) > _LEAST_DRIFT:
        change = "longer" if drift > 0 else "shorter"
        yield f"its steps became {abs(drift) * 100:.0f} % {change} from its first quarter to its last"
    elif measurement.is_steady is False and measurement.warmup_steps:
        yield f"its pace had not settled after {_steps_text(measurement.warmup_steps)} of warm-up"
    if measurement.steps_counted < _FEW_STEPS and not measurement.source:
        verb = "was" if measurement.steps_counted == 1 else "were"
        yield f"only {_steps_text(measurement.steps_counted)} {verb} counted"
    if len(measurement.step_time_s) == 3:
        short, _, long = measurement.step_time_s
        if long > _WIDE_SPREAD * short:
            yield f"four of five steps took {short:.3g} to {long:.3g} s"


def _steps_text(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
