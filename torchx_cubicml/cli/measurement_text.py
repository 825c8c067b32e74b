"""What a launch measured, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import doubt_text, rate_text, statistic_text
from torchx_cubicml.records.trial import OBJECTIVES

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Measurement


def throughput_text(measurement: Measurement | None) -> str:
    """Return the throughput of the whole job with how sure its run is of it, or a dash.

    >>> from torchx_cubicml.records.trial import Measurement
    >>> throughput_text(Measurement(tokens_per_second=1830.0, relative_error=0.024, is_steady=False))
    '1,830 tokens/s ± 4 %, not steady'
    """
    rate = _rate(measurement, "{}") if measurement is not None else ""
    if measurement is None or not rate:
        return "-"
    words = (rate, doubt_text(measurement.uncertainty), statistic_text(measurement.statistic))
    return " ".join(filter(None, words)) + (", not steady" if measurement.is_steady is False else "")


def measurement_lines(measurement: Measurement | None) -> list[str]:
    """Return what is to be known of a throughput before it is believed, line by line; nothing without one."""
    if measurement is None:
        return []
    steps = measurement.steps_counted + measurement.warmup_steps
    left_out = f"{measurement.warmup_steps} of {steps} steps left out as warm-up" if measurement.warmup_steps else ""
    seen = [("evaluation", measurement.evaluation_s), ("saving", measurement.checkpoint_s)]
    apart = ", ".join(f"{seconds:,.1f} s of {name}" for name, seconds in seen if seconds)
    overall, other = _rate(measurement, "{}_overall"), _rate(measurement, "other_{}")
    lines = [
        throughput_text(measurement),
        left_out,
        f"{apart} left out" if apart else "",
        f"{overall} over the whole time, evaluation and saving with it" if overall and apart else "",
        "evaluation may have gone unseen, and counts as training then" if measurement.may_include_evaluation else "",
        f"{measurement.other_source} tells {other}" if measurement.other_source and other else "",
    ]
    return [line for line in lines if line]


def _rate(measurement: Measurement, name: str) -> str:
    """Return the throughput in the first unit that is known under names such as ``{}_overall``; empty without one."""
    found = ((objective, getattr(measurement, name.format(objective))) for objective in OBJECTIVES)
    return next((rate_text(value, objective) for objective, value in found if value is not None), "")
