"""Measurement from the lines of one log format, and its merge with the measurement by optimizer steps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.logs.formats import WHOLE_RUN_FORMATS, over
from torchx_cubicml.recorder.steps.rate_error import relative_error
from torchx_cubicml.recorder.steps.steady_state import count_warmup, quantile
from torchx_cubicml.records.measurement import MEAN, Measurement
from torchx_cubicml.records.objective_units import RATES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.recorder.logs.formats import LogReading

_TOLERANCE = 1.1  # factor up to which a printed throughput may differ from that of the steps
_BURST_S = 1e-3  # mean time between lines below which they were buffered and flushed together
_MIN_ELAPSED = 0.9  # share of the printed step times: lines that came within less were buffered
_TYPICAL_STEP = 0.25  # quantile of printed step times: more than half of them may contain evaluation
_MIN_READINGS = 5  # fewer do not show whether the run was steady
STEPS = "optimizer steps"


@dataclass(frozen=True, slots=True)
class _Interval:
    """Work processed between two lines, and the time between them."""

    samples: float | None
    tokens: float | None
    seconds: float
    steps: float


def measure_readings(
    readings: Sequence[LogReading],
    *,
    source: str,
    samples: int | None = None,
    tokens: int | None = None,
    paused_s: Callable[[float, float], float] = lambda begin, end: 0.0,
) -> Measurement | None:
    """Return the measurement from the lines of one format; ``None`` without a usable line.

    Throughput is the work between the lines over the time between them. The work is the number of steps between the
    lines times the batch of one. Without step numbers it is each line's rate times the time since the line before. If
    lines were buffered and flushed together, each one counts for its printed step time instead.

    Args:
        readings: in the order of their lines.
        source: name of the format.
        samples: of one step of the whole job, if known from elsewhere.
        tokens: likewise.
        paused_s: returns the seconds of evaluation and saving between two points in time.
    """
    timed = [(reading, duration) for reading in readings if (duration := _seconds(reading)) is not None]
    if not timed:
        return None
    usable = [reading for reading, _ in timed]
    warmup, has_settled = count_warmup([duration for _, duration in timed])
    warmup = min(warmup, len(usable) - 1)
    steady = usable[warmup:]
    between = [
        _interval(before, reading, samples=samples, tokens=tokens, paused_s=paused_s)
        for before, reading in pairwise(usable[max(warmup - 1, 0) :])
    ]
    known = [interval for interval in between if interval is not None]
    if not known or len(known) < len(between) or not _are_unbuffered(known, steady):
        known = [_printed_step(*each, samples=samples, tokens=tokens) for each in timed[warmup:]]
    seconds = [interval.seconds for interval in known]
    steps = sorted(reading.step_s for reading in steady if reading.step_s is not None)
    all_have_steps = len(steps) == len(steady)
    amounts = {name: _known([getattr(interval, name) for interval in known]) for name in ("samples", "tokens")}
    work = amounts["tokens"] or amounts["samples"]
    n_steps = _steps_between(usable[max(warmup - 1, 0)], usable[-1]) or sum(interval.steps for interval in known)
    return Measurement(
        tokens_per_second=_over_time(amounts["tokens"], seconds),
        samples_per_second=_over_time(amounts["samples"], seconds),
        steps_counted=max(round(n_steps), 1),
        warmup_steps=_steps_before(usable, warmup),
        step_time_s=(quantile(steps, 0.1), quantile(steps, 0.5), quantile(steps, 0.9)) if all_have_steps else (),
        mean_step_time_s=sum(seconds) / sum(interval.steps for interval in known) if all_have_steps else None,
        source=source,
        statistic="" if source in WHOLE_RUN_FORMATS else MEAN,
        relative_error=relative_error(work, seconds) if work is not None else None,
        is_steady=has_settled if len(usable) >= _MIN_READINGS else None,
        may_include_evaluation=True if source in WHOLE_RUN_FORMATS else None,
    )


def encode_measurement(measurement: Measurement) -> str:
    """Encode a measurement as JSON, to be sent from the rank that prints to rank 0."""
    return json.dumps(asdict(measurement))


def decode_measurement(text: str) -> Measurement | None:
    """Decode a measurement that another rank has sent; return ``None`` for an empty text."""
    if not text:
        return None
    fields = json.loads(text)
    return Measurement(**{**fields, "step_time_s": tuple(fields["step_time_s"])})


def has_throughput(measurement: Measurement | None) -> bool:
    """Return whether samples or tokens per second are known."""
    return measurement is not None and bool(measurement.samples_per_second or measurement.tokens_per_second)


def merged(measured: Measurement | None, logged: Measurement | None, *, prefer_log: bool = True) -> Measurement | None:
    """Merge the measurements by steps and by log lines; return the other one if either is ``None``.

    If both have a throughput and the two differ, both are kept.

    Args:
        measured: by the optimizer steps.
        logged: by log lines.
        prefer_log: whether the throughput of the lines takes precedence.
    """
    if measured is None or logged is None:
        return measured or logged
    other = logged if has_throughput(measured) and not prefer_log else measured
    result = measured
    if other is measured:
        samples = logged.samples_per_second or measured.samples_per_second
        tokens = logged.tokens_per_second or measured.tokens_per_second
        result = replace(
            measured,
            samples_per_second=samples,
            tokens_per_second=tokens,
            samples_per_second_overall=_overall(measured, "samples_per_second", samples),
            tokens_per_second_overall=_overall(measured, "tokens_per_second", tokens),
            source=logged.source,
            statistic=logged.statistic,
            relative_error=measured.relative_error if logged.relative_error is None else logged.relative_error,
        )
    if not has_throughput(other) or not disagreement(measured, logged):
        return result
    return replace(
        result,
        other_source=other.source or STEPS,
        other_tokens_per_second=other.tokens_per_second,
        other_samples_per_second=other.samples_per_second,
    )


def disagreement(measured: Measurement | None, logged: Measurement | None) -> str:
    """Return the difference between the throughput of the lines and of the steps, in words; empty if they agree.

    Lines of the whole run may report any lower throughput, as they include warm-up, evaluation and saving.
    """
    least = 0.0 if logged is not None and logged.source in WHOLE_RUN_FORMATS else 1 / _TOLERANCE
    for unit in RATES:
        pair = [getattr(source, unit) for source in (measured, logged) if source is not None]
        if len(pair) == 2 and all(pair) and not least < pair[1] / pair[0] < _TOLERANCE:
            return f"log lines give {pair[1]:.4g} {unit} for the whole job, {STEPS} give {pair[0]:.4g}"
    return ""


def _overall(measured: Measurement, name: str, rate: float | None) -> float | None:
    """Scale a rate so that its time includes evaluation and saving, by the same ratio as for the steps."""
    before, overall = getattr(measured, name), getattr(measured, f"{name}_overall")
    return rate * overall / before if rate and before and overall else None


def _interval(
    before: LogReading,
    reading: LogReading,
    *,
    samples: int | None,
    tokens: int | None,
    paused_s: Callable[[float, float], float],
) -> _Interval | None:
    """Return the work since the line before; ``None`` if the times of the lines are unknown."""
    if before.at_s is None or reading.at_s is None:
        return None
    seconds = reading.at_s - before.at_s
    seconds -= min(paused_s(before.at_s, reading.at_s), seconds)
    steps = _steps_between(before, reading) or None
    n_steps = over(seconds, reading.step_s) if steps is None else steps
    return _Interval(
        samples=_processed(reading, reading.samples_per_second, samples, seconds=seconds, steps=steps),
        tokens=_processed(reading, reading.tokens_per_second, tokens, seconds=seconds, steps=steps),
        seconds=max(seconds, 1e-9),
        steps=1.0 if n_steps is None else n_steps,
    )


def _steps_before(readings: Sequence[LogReading], warmup: int) -> int:
    """Return the number of steps in the first ``warmup`` lines: one each if their steps have no numbers."""
    return round(_steps_between(readings[0], readings[warmup - 1]) + 1) if warmup > 1 else warmup


def _steps_between(first: LogReading, last: LogReading) -> float:
    return max(last.step - first.step, 0.0) if first.step is not None and last.step is not None else 0.0


def _processed(
    reading: LogReading, rate: float | None, batch: int | None, *, seconds: float, steps: float | None
) -> float | None:
    """Return the work of an interval: of its steps if they are counted, else the line's rate times the seconds."""
    line_rate = rate or over(batch, reading.step_s)
    if steps is None:
        return None if line_rate is None else line_rate * seconds
    per_step = batch if rate is None else rate * reading.step_s if reading.step_s else None
    if per_step is not None:
        return per_step * steps
    return None if line_rate is None else line_rate * seconds


def _printed_step(reading: LogReading, seconds: float, *, samples: int | None, tokens: int | None) -> _Interval:
    """Return the step that a line reports; if it has no step time, the time of one token or sample at its rate."""
    rates = (
        reading.samples_per_second or over(samples, reading.step_s),
        reading.tokens_per_second or over(tokens, reading.step_s),
    )
    n_samples, n_tokens = (None if rate is None else rate * seconds for rate in rates)
    return _Interval(samples=n_samples, tokens=n_tokens, seconds=seconds, steps=1.0)


def _are_unbuffered(intervals: Sequence[_Interval], steady: Sequence[LogReading]) -> bool:
    """Return whether the lines were printed in time, and not flushed together from a buffer.

    A line may give the time of a single step that contains evaluation or saving, not the mean since the line before.
    The check therefore uses a low quantile of the printed step times.
    """
    seconds = sum(interval.seconds for interval in intervals)
    step_s = quantile(sorted(reading.step_s or 0.0 for reading in steady), _TYPICAL_STEP)
    steps = sum(max(interval.steps, 1.0) for interval in intervals)
    return seconds >= max(_BURST_S * len(intervals), _MIN_ELAPSED * step_s * steps)


def _seconds(reading: LogReading) -> float | None:
    """Return a duration that is longer for a slower reading: of a step, or of one token or sample."""
    return reading.step_s or over(1.0, reading.tokens_per_second or reading.samples_per_second)


def _known(amounts: Sequence[float | None]) -> list[float] | None:
    known = [amount for amount in amounts if amount is not None]
    return known if len(known) == len(amounts) and sum(known) > 0 else None


def _over_time(amounts: Sequence[float] | None, seconds: Sequence[float]) -> float | None:
    return sum(amounts) / sum(seconds) if amounts is not None else None
