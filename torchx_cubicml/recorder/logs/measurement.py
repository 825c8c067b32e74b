"""What the lines of one log format measure, and how that goes together with what steps measure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.logs.formats import OF_WHOLE_RUN, over
from torchx_cubicml.recorder.steps.long_run import relative_error
from torchx_cubicml.recorder.steps.steady_state import count_warmup, quantile
from torchx_cubicml.records.trial import MEAN, OBJECTIVES, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.recorder.logs.formats import LogReading

_ALIKE = 1.1  # by which factor a throughput that a program prints may differ from that of its steps
_BURST_S = 1e-3  # between lines, in the mean: they were held back and came together
_PROMPT = (
    0.9  # of the time that the steps of the lines took: lines that came within less did not come when they were due
)
_USUAL = 0.25  # quantile of the steps that lines tell of: evaluation may be in more than half of those
_FEWEST = 5  # readings without which nothing is said of whether the run was steady
STEPS = "optimizer steps"


@dataclass(frozen=True, slots=True)
class _Interval:
    """What was processed between two lines, and in which time."""

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
    """Return the measurement that the lines of one format make; ``None`` without a usable one.

    Throughput is what was processed between the lines over the time between them: by the numbers of their steps and the
    batch of one, or else by each line's own rate for the time since the line before. Where lines were held back and
    came together, each counts for the time that it tells of.

    Args:
        readings: in the order of their lines.
        source: name of the format.
        samples: of one step of the whole job, where it is known otherwise.
        tokens: likewise.
        paused_s: returns the seconds of evaluation and saving between two moments.
    """
    usable = [reading for reading in readings if _seconds(reading) is not None]
    if not usable:
        return None
    warmup, has_settled = count_warmup([second for second in map(_seconds, usable) if second is not None])
    warmup = min(warmup, len(usable) - 1)
    steady = usable[warmup:]
    between = [
        _interval(before, reading, samples=samples, tokens=tokens, paused_s=paused_s)
        for before, reading in pairwise(usable[max(warmup - 1, 0) :])
    ]
    known = [interval for interval in between if interval is not None]
    if not known or len(known) < len(between) or not _are_prompt(known, steady):
        known = [_as_told(reading, samples=samples, tokens=tokens) for reading in steady]
    seconds = [interval.seconds for interval in known]
    steps = sorted(reading.step_s for reading in steady if reading.step_s is not None)
    whole = len(steps) == len(steady)
    amounts = {name: _known([getattr(interval, name) for interval in known]) for name in ("samples", "tokens")}
    work = amounts["tokens"] or amounts["samples"]
    n_steps = _steps_between(usable[max(warmup - 1, 0)], usable[-1]) or sum(interval.steps for interval in known)
    return Measurement(
        tokens_per_second=_over_time(amounts["tokens"], seconds),
        samples_per_second=_over_time(amounts["samples"], seconds),
        steps_counted=max(round(n_steps), 1),
        warmup_steps=_steps_before(usable, warmup),
        step_time_s=(quantile(steps, 0.1), quantile(steps, 0.5), quantile(steps, 0.9)) if whole else (),
        mean_step_time_s=sum(seconds) / sum(interval.steps for interval in known) if whole else None,
        source=source,
        statistic="" if source in OF_WHOLE_RUN else MEAN,
        relative_error=relative_error(work, seconds) if work is not None else None,
        is_steady=has_settled if len(usable) >= _FEWEST else None,
        may_include_evaluation=True if source in OF_WHOLE_RUN else None,
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


def merged(measured: Measurement | None, told: Measurement | None, *, lines_first: bool = True) -> Measurement | None:
    """Return one measurement of what steps and log lines tell; either of them where the other is ``None``.

    Where both tell a throughput and they differ, both are kept.

    Args:
        measured: by the optimizer steps.
        told: by log lines.
        lines_first: whether the throughput of the lines counts.
    """
    if measured is None or told is None:
        return measured or told
    other = told if has_throughput(measured) and not lines_first else measured
    found = measured
    if other is measured:
        samples = told.samples_per_second or measured.samples_per_second
        tokens = told.tokens_per_second or measured.tokens_per_second
        found = replace(
            measured,
            samples_per_second=samples,
            tokens_per_second=tokens,
            samples_per_second_overall=_overall(measured, "samples_per_second", samples),
            tokens_per_second_overall=_overall(measured, "tokens_per_second", tokens),
            source=told.source,
            statistic=told.statistic,
            relative_error=measured.relative_error if told.relative_error is None else told.relative_error,
        )
    if not has_throughput(other) or not disagreement(measured, told):
        return found
    return replace(
        found,
        other_source=other.source or STEPS,
        other_tokens_per_second=other.tokens_per_second,
        other_samples_per_second=other.samples_per_second,
    )


def disagreement(measured: Measurement | None, told: Measurement | None) -> str:
    """Return in words by how much the lines tell another throughput than the steps; empty where they are alike.

    Lines of the whole run, whose warm-up, evaluation and saving count there, may tell of any less.
    """
    least = 0.0 if told is not None and told.source in OF_WHOLE_RUN else 1 / _ALIKE
    for unit in OBJECTIVES:
        pair = [getattr(source, unit) for source in (measured, told) if source is not None]
        if len(pair) == 2 and all(pair) and not least < pair[1] / pair[0] < _ALIKE:
            return f"the log lines tell {pair[1]:.4g} {unit} of the whole job, the {STEPS} {pair[0]:.4g}"
    return ""


def _overall(measured: Measurement, name: str, rate: float | None) -> float | None:
    """Return a rate with evaluation and saving in its time, as they were in the time of the steps."""
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
    """Return what was processed since the line before; ``None`` where nobody knows when the lines were printed."""
    if before.at_s is None or reading.at_s is None:
        return None
    seconds = reading.at_s - before.at_s
    seconds -= min(paused_s(before.at_s, reading.at_s), seconds)
    steps = _steps_between(before, reading) or None
    times = over(seconds, reading.step_s) if steps is None else steps
    return _Interval(
        samples=_processed(reading, reading.samples_per_second, samples, seconds=seconds, steps=steps),
        tokens=_processed(reading, reading.tokens_per_second, tokens, seconds=seconds, steps=steps),
        seconds=max(seconds, 1e-9),
        steps=1.0 if times is None else times,
    )


def _steps_before(readings: Sequence[LogReading], warmup: int) -> int:
    """Return how many steps the first ``warmup`` lines stand for: one each where their steps have no numbers."""
    return round(_steps_between(readings[0], readings[warmup - 1]) + 1) if warmup > 1 else warmup


def _steps_between(first: LogReading, last: LogReading) -> float:
    return max(last.step - first.step, 0.0) if first.step is not None and last.step is not None else 0.0


def _processed(
    reading: LogReading, rate: float | None, batch: int | None, *, seconds: float, steps: float | None
) -> float | None:
    """Return the work of an interval: of its steps, where they are counted, else at the rate of the line."""
    told = rate or over(batch, reading.step_s)
    if steps is None:
        return None if told is None else told * seconds
    of_step = batch if rate is None else rate * reading.step_s if reading.step_s else None
    if of_step is not None:
        return of_step * steps
    return None if told is None else told * seconds


def _as_told(reading: LogReading, *, samples: int | None, tokens: int | None) -> _Interval:
    """Return one step as a line tells of it, or a second's work at its rate, where it tells of no step."""
    seconds = reading.step_s or over(1.0, reading.tokens_per_second or reading.samples_per_second) or 1.0
    rates = (
        reading.samples_per_second or over(samples, reading.step_s),
        reading.tokens_per_second or over(tokens, reading.step_s),
    )
    of_samples, of_tokens = (None if rate is None else rate * seconds for rate in rates)
    return _Interval(samples=of_samples, tokens=of_tokens, seconds=seconds, steps=1.0)


def _are_prompt(intervals: Sequence[_Interval], steady: Sequence[LogReading]) -> bool:
    """Whether the lines came when they were due: not all at once, after they were held back.

    A line may tell of a step with evaluation or saving in it, in place of all the steps since the line before: what
    counts is the time that most of the lines tell of.
    """
    seconds = sum(interval.seconds for interval in intervals)
    told = quantile(sorted(reading.step_s or 0.0 for reading in steady), _USUAL)
    steps = sum(max(interval.steps, 1.0) for interval in intervals)
    return seconds >= max(_BURST_S * len(intervals), _PROMPT * told * steps)


def _seconds(reading: LogReading) -> float | None:
    """Return a time that grows as the reading gets slower."""
    return reading.step_s or over(1.0, reading.tokens_per_second or reading.samples_per_second)


def _known(amounts: Sequence[float | None]) -> list[float] | None:
    known = [amount for amount in amounts if amount is not None]
    return known if len(known) == len(amounts) and sum(known) > 0 else None


def _over_time(amounts: Sequence[float] | None, seconds: Sequence[float]) -> float | None:
    return sum(amounts) / sum(seconds) if amounts is not None else None
