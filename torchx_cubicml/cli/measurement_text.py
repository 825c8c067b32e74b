"""Text form of a measurement, for people."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import interval_text, measured_rate_text, statistic_text
from torchx_cubicml.records.job_time import OVERHEADS, overheads_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.measurement import Measurement

_NOTHING: Mapping[str, object] = MappingProxyType({})


def throughput_text(measurement: Measurement | None) -> str:
    """Return the throughput of the whole job with its uncertainty, or a dash.

    >>> from torchx_cubicml.records.trial import Measurement
    >>> throughput_text(Measurement(tokens_per_second=1830.0, relative_error=0.024, is_steady=False))
    '1,830 tokens/s ± 4 %, not steady'
    """
    rate = measured_rate_text(measurement) if measurement is not None else ""
    if measurement is None or not rate:
        return "-"
    words = (rate, interval_text(measurement.uncertainty), statistic_text(measurement.statistic))
    return " ".join(filter(None, words)) + (", not steady" if measurement.is_steady is False else "")


def measurement_lines(measurement: Measurement | None, *, observed: Mapping[str, object] = _NOTHING) -> list[str]:
    """Return a throughput, its caveats and the overheads as lines; none without a measurement.

    Args:
        measurement: of a trial.
        observed: its observed facts, among them the time in the queue.
    """
    if measurement is None:
        return []
    steps = measurement.steps_counted + measurement.warmup_steps
    left_out = f"{measurement.warmup_steps} of {steps} steps excluded as warm-up" if measurement.warmup_steps else ""
    paused = [("evaluation", measurement.evaluation_s), ("saving", measurement.checkpoint_s)]
    excluded = ", ".join(f"{seconds:,.1f} s of {name}" for name, seconds in paused if seconds)
    before = overheads_text({name: observed.get(name, getattr(measurement, name, None)) for name in OVERHEADS})
    overall, other = (measured_rate_text(measurement, name) for name in ("{}_overall", "other_{}"))
    lines = [
        throughput_text(measurement),
        left_out,
        f"before the steady pace: {before}" if before else "",
        f"{excluded} excluded" if excluded else "",
        f"{overall} including evaluation and saving" if overall and excluded else "",
        "may include evaluation that was not detected" if measurement.may_include_evaluation else "",
        f"{measurement.other_source} reports {other}" if measurement.other_source and other else "",
    ]
    return [line for line in lines if line]
