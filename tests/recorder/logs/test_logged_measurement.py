from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.recorder.logs.formats import LogReading
from torchx_cubicml.recorder.logs.logged_measurement import disagreement, has_throughput, measure_readings, merged
from torchx_cubicml.recorder.steps.rate_error import relative_error
from torchx_cubicml.recorder.steps.steady_state import count_warmup
from torchx_cubicml.records.measurement import MEAN, Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, float | None]  # seconds, steps, samples and tokens of one line or of the time between two


def steps_between(first: LogReading, last: LogReading) -> float:
    return 0.0 if first.step is None or last.step is None else max(last.step - first.step, 0.0)


def rate_of(line: LogReading, unit: str) -> float | None:
    return line.samples_per_second if unit == "samples" else line.tokens_per_second


def time_of(line: LogReading) -> float | None:
    rate = line.tokens_per_second or line.samples_per_second
    return line.step_s or (1 / rate if rate else None)


def between(before: LogReading, line: LogReading, batch: dict[str, int | None], pause_s: float) -> Row | None:
    if before.at_s is None or line.at_s is None:
        return None
    seconds = max(line.at_s - before.at_s - pause_s, 0.0)
    steps = steps_between(before, line)
    row: Row = {"seconds": max(seconds, 1e-9), "steps": steps}
    if not steps:
        row["steps"] = seconds / line.step_s if seconds and line.step_s else 1.0
    for unit, size in batch.items():
        rate = rate_of(line, unit)
        if steps and rate is None:
            row[unit] = size * steps if size is not None else None
        elif steps and line.step_s:
            row[unit] = rate * line.step_s * steps
        elif rate is not None:
            row[unit] = rate * seconds
        else:
            row[unit] = size / line.step_s * seconds if size and line.step_s else None
    return row


def printed(line: LogReading, batch: dict[str, int | None]) -> Row:
    row: Row = {"seconds": time_of(line), "steps": 1.0}
    for unit, size in batch.items():
        rate = rate_of(line, unit)
        row[unit] = rate * time_of(line) if rate is not None else size if line.step_s else None
    return row


def are_in_time(rows: Sequence[Row | None], steady: Sequence[LogReading]) -> bool:
    if not rows or None in rows:
        return False
    typical = np.quantile([line.step_s or 0.0 for line in steady], 0.25)
    least = max(0.001 * len(rows), 0.9 * typical * sum(max(row["steps"], 1.0) for row in rows))
    return sum(row["seconds"] for row in rows) >= least


PAUSE_S = 0.25
LINES = st.lists(
    st.tuples(
        st.sampled_from([None, 80.0, 100.0]),
        st.sampled_from([None, 640.0, 900.0]),
        st.sampled_from([None, 0.1, 0.2]),
        st.sampled_from([0.0, 1.0, 1.0, 10.0]),
        st.sampled_from([0.0, 0.0005, 0.09, 0.1, 0.2, 2.0, 2.0]),
    ),
    max_size=16,
)


@given(LINES, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 8]))
def test_lines_are_measured_as_by_a_plain_sum(
    drawn: list[tuple[float | None, ...]], has_steps: bool, has_times: bool, has_rates: bool, pauses: bool, size: int
) -> None:
    numbers, times = (list(accumulate(each[place] for each in drawn)) for place in (3, 4))
    lines = [
        LogReading(
            samples_per_second=samples if has_rates else None,
            tokens_per_second=tokens if has_rates else None,
            step_s=step_s or (0.1 if not has_rates else None),
            step=number if has_steps else None,
            at_s=now if has_times else None,
        )
        for (samples, tokens, step_s, _, _), number, now in zip(drawn, numbers, times, strict=True)
    ]
    batch = {"samples": size, "tokens": None if size is None else 16 * size}
    found = measure_readings(lines, source="x", paused_s=lambda begin, end: PAUSE_S * pauses, **batch)
    usable = [line for line in lines if time_of(line) is not None]
    if not usable:
        assert found is None
        return
    warmup, has_settled = count_warmup([time_of(line) for line in usable])
    warmup = min(warmup, len(usable) - 1)
    first, steady = usable[max(warmup - 1, 0)], usable[warmup:]
    rows = [between(*each, batch, PAUSE_S * pauses) for each in pairwise(usable[max(warmup - 1, 0) :])]
    if not are_in_time(rows, steady):
        rows = [printed(line, batch) for line in steady]
    seconds, steps = [row["seconds"] for row in rows], sum(row["steps"] for row in rows)
    work = {unit: [row[unit] for row in rows] for unit in batch}
    totals = {unit: sum(each) or None if None not in each else None for unit, each in work.items()}
    for unit, total in totals.items():
        assert getattr(found, f"{unit}_per_second") == (total and pytest.approx(total / sum(seconds)))
    assert found.steps_counted == max(round(steps_between(first, usable[-1]) or steps), 1)
    assert found.warmup_steps == (round(steps_between(usable[0], usable[warmup - 1]) + 1) if warmup > 1 else warmup)
    step_times = [line.step_s for line in steady]
    if None in step_times:
        assert (found.step_time_s, found.mean_step_time_s) == ((), None)
    else:
        assert found.step_time_s == pytest.approx(tuple(np.quantile(step_times, [0.1, 0.5, 0.9])))
        assert found.mean_step_time_s == pytest.approx(sum(seconds) / steps)
    amounts = work["tokens"] if totals["tokens"] else work["samples"] if totals["samples"] else None
    error = relative_error(amounts, seconds) if amounts else None
    assert found.relative_error == (None if error is None else pytest.approx(error))
    assert found.is_steady is (has_settled if len(usable) >= 5 else None)
    assert (found.source, found.statistic, found.may_include_evaluation) == ("x", MEAN, None)


def test_lines_of_the_whole_run_say_so() -> None:
    found = measure_readings([LogReading(samples_per_second=4.0)], source="HF Trainer")
    assert (found.statistic, found.may_include_evaluation, found.samples_per_second) == ("", True, 4.0)


@pytest.mark.parametrize(
    ("step_s", "gap_s", "rate"),
    [(0.1, 0.091, 8 / 0.091), (0.1, 0.089, 80.0), (1e-4, 0.0011, 8 / 0.0011), (1e-4, 0.0009, 80_000.0)],
    ids=["in time", "within the step times", "fast", "within a millisecond"],
)
def test_buffered_lines_count_as_printed(step_s: float, gap_s: float, rate: float) -> None:
    lines = [LogReading(step_s=step_s, at_s=gap_s * index, step=float(index)) for index in range(1, 12)]
    assert measure_readings(lines, source="x", samples=8).samples_per_second == pytest.approx(rate)


STEPS = Measurement(
    samples_per_second=100.0,
    tokens_per_second=1000.0,
    samples_per_second_overall=80.0,
    tokens_per_second_overall=750.0,
    relative_error=0.02,
    statistic=MEAN,
    steps_counted=9,
)


@pytest.mark.parametrize(
    ("logged", "is_reported"),
    [(90.0, True), (90.92, False), (109.9, False), (110.1, True)],
)
@pytest.mark.parametrize("unit", ["samples_per_second", "tokens_per_second"])
def test_a_tenth_is_no_disagreement(unit: str, logged: float, is_reported: bool) -> None:
    factor = getattr(STEPS, unit) / 100
    text = disagreement(STEPS, Measurement(**{unit: logged * factor}))
    assert bool(text) is is_reported
    if is_reported:
        assert text == (
            f"log lines give {logged * factor:.4g} {unit} for the whole job, optimizer steps give {100 * factor:.4g}"
        )


@pytest.mark.parametrize(("logged", "is_reported"), [(1.0, False), (99.0, False), (109.0, False), (111.0, True)])
def test_a_whole_run_may_be_slower(logged: float, is_reported: bool) -> None:
    assert bool(disagreement(STEPS, Measurement(samples_per_second=logged, source="HF Trainer"))) is is_reported


def test_lines_give_way_to_steps_or_take_precedence() -> None:
    lines = Measurement(samples_per_second=50.0, source="x", relative_error=0.1, statistic="p50", steps_counted=3)
    preferred = merged(STEPS, lines)
    assert (preferred.samples_per_second, preferred.tokens_per_second) == (50.0, 1000.0)
    assert (preferred.samples_per_second_overall, preferred.tokens_per_second_overall) == (40.0, 750.0)
    assert (preferred.source, preferred.statistic, preferred.relative_error) == ("x", "p50", 0.1)
    assert (preferred.other_source, preferred.steps_counted) == ("optimizer steps", 9)
    assert (preferred.other_samples_per_second, preferred.other_tokens_per_second) == (100.0, 1000.0)
    second = merged(STEPS, lines, prefer_log=False)
    assert (second.samples_per_second, second.source, second.relative_error) == (100.0, "", 0.02)
    assert (second.other_source, second.other_samples_per_second, second.other_tokens_per_second) == ("x", 50.0, None)


def test_lines_replace_steps_of_unknown_work() -> None:
    timed = Measurement(steps_counted=9, relative_error=0.02)
    lines = Measurement(tokens_per_second=50.0, source="x")
    for prefer_log in (True, False):
        found = merged(timed, lines, prefer_log=prefer_log)
        assert (found.tokens_per_second, found.tokens_per_second_overall, found.source) == (50.0, None, "x")
        assert (found.relative_error, found.other_source, found.steps_counted) == (0.02, "", 9)
    assert merged(lines, Measurement(step_time_s=(1.0, 1.0, 1.0))).other_source == ""
    assert merged(None, None) is None


def test_lines_that_agree_are_no_second_opinion() -> None:
    found = merged(STEPS, Measurement(samples_per_second=101.0, tokens_per_second=1010.0, source="x"))
    assert (found.samples_per_second, found.tokens_per_second, found.other_source) == (101.0, 1010.0, "")
    assert (found.samples_per_second_overall, found.tokens_per_second_overall) == pytest.approx((80.8, 757.5))


@pytest.mark.parametrize("unit", ["samples_per_second", "tokens_per_second"])
def test_either_rate_is_a_throughput(unit: str) -> None:
    assert has_throughput(Measurement(**{unit: 1.0}))
    assert has_throughput(Measurement()) is False


@pytest.mark.parametrize(
    ("logged", "agrees"), [(440.0, False), (439.9, True), (400.0, True), (363.7, True), (400 / 1.1, False)]
)
def test_rates_may_differ_by_less_than_a_tenth(logged: float, agrees: bool) -> None:
    steps, lines = (Measurement(samples_per_second=rate) for rate in (400.0, logged))
    assert (disagreement(steps, lines) == "") is agrees
