"""What the lines of one log format measure, and how that goes together with what steps measure."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from statistics import fmean, median
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.log_formats import over
from torchx_cubicml.recorder.steps import count_warmup, quantile
from torchx_cubicml.trial import Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.log_formats import Reading

_ALIKE = 1.25  # by which factor a throughput that a program prints may differ from that of its steps


def measure_readings(
    readings: Sequence[Reading], *, source: str, samples: int | None = None, tokens: int | None = None
) -> Measurement | None:
    """Return the measurement that the lines of one format make; ``None`` without a usable one.

    Args:
        readings: in the order of their lines.
        source: name of the format.
        samples: of one step of the whole job, where it is known otherwise.
        tokens: likewise.
    """
    usable = [reading for reading in readings if _seconds(reading) is not None]
    if not usable:
        return None
    seconds = [second for second in map(_seconds, usable) if second is not None]
    warmup = min(count_warmup(seconds), len(usable) - 1)
    steady = usable[warmup:]
    steps = sorted(reading.step_s for reading in steady if reading.step_s is not None)
    whole = len(steps) == len(steady)
    return Measurement(
        tokens_per_second=_median([reading.tokens_per_second for reading in steady])
        or (over(tokens, median(steps)) if whole else None),
        samples_per_second=_median([reading.samples_per_second for reading in steady])
        or (over(samples, median(steps)) if whole else None),
        steps_counted=len(steady),
        warmup_steps=warmup,
        step_time_s=(quantile(steps, 0.1), quantile(steps, 0.5), quantile(steps, 0.9)) if whole else (),
        mean_step_time_s=fmean(steps) if whole else None,
        source=source,
    )


def as_word(measurement: Measurement) -> str:
    """Return a measurement as a rank that prints hands it to the one that writes."""
    return json.dumps(asdict(measurement))


def from_word(word: str) -> Measurement | None:
    """Return the measurement that a rank has handed over; ``None`` for an empty word."""
    if not word:
        return None
    fields = json.loads(word)
    return Measurement(**{**fields, "step_time_s": tuple(fields["step_time_s"])})


def has_throughput(measurement: Measurement | None) -> bool:
    """Whether samples or tokens per second are known."""
    return measurement is not None and bool(measurement.samples_per_second or measurement.tokens_per_second)


def merged(measured: Measurement | None, told: Measurement | None) -> Measurement | None:
    """Return what was measured with the throughput that log lines tell; either of them where the other is ``None``."""
    if measured is None or told is None:
        return measured or told
    return replace(
        measured,
        samples_per_second=told.samples_per_second or measured.samples_per_second,
        tokens_per_second=told.tokens_per_second or measured.tokens_per_second,
        source=told.source,
    )


def disagreement(measured: Measurement | None, told: Measurement | None) -> str:
    """Return in words by how much the lines tell another throughput than the steps; empty where they are alike."""
    for unit in ("tokens_per_second", "samples_per_second"):
        pair = [getattr(source, unit) for source in (measured, told) if source is not None]
        if len(pair) == 2 and all(pair) and not 1 / _ALIKE < pair[1] / pair[0] < _ALIKE:
            return (
                f"the lines that the space file's [log] describes tell {pair[1]:.4g} {unit} of the whole job, the "
                f"optimizer steps {pair[0]:.4g}; the former is recorded"
            )
    return ""


def _seconds(reading: Reading) -> float | None:
    """Return a time that grows as the reading gets slower."""
    return reading.step_s or over(1.0, reading.tokens_per_second or reading.samples_per_second)


def _median(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return median(known) if len(known) == len(rates) else None
