from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.logs import stream
from torchx_cubicml.recorder.logs.formats import LogReading
from torchx_cubicml.recorder.logs.logged_measurement import (
    decode_measurement,
    disagreement,
    encode_measurement,
    has_throughput,
    measure_readings,
    merged,
)
from torchx_cubicml.recorder.logs.stream import LogLines
from torchx_cubicml.records.log_pattern import LogPattern
from torchx_cubicml.records.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOGS = Path(__file__).parents[2] / "data" / "logs"


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of lines: they are printed together, however busy the machine is."""
    monkeypatch.setattr(stream, "perf_counter", lambda: 0.0)


@contextlib.contextmanager
def own_stdout() -> Iterator[io.TextIOWrapper]:
    # No fixture: pytest puts its own streams in place between the fixtures and the test.
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)) as stream:
        yield stream


def listening(guard: Callable[..., object] = lambda hook: hook) -> tuple[LogLines, list[None]]:
    news: list[None] = []
    lines = LogLines(guard, devices=4, on_news=lambda: news.append(None))
    lines.listen()
    return lines, news


def test_lines_are_read_along_and_printed_as_they_are() -> None:
    with own_stdout() as stdout:
        text = (LOGS / "torchtitan.txt").read_text()
        lines, news = listening()
        assert sys.stdout is stdout
        for start in range(0, len(text), 7):
            assert sys.stdout.write(text[start : start + 7]) == len(text[start : start + 7])
        assert stdout.buffer.getvalue() == text.encode()
        assert len(news) == 3  # lines 1, 2 and 4
        measured = lines.measurement({})
        assert measured is not None
        rates = 10_007, 10_050, 10_010  # of steps alike: their harmonic mean
        assert measured.tokens_per_second == pytest.approx(4 * 3 / sum(1 / rate for rate in rates))
        lines.release()
        assert "write" not in stdout.__dict__
        print(text)
        assert len(news) == 3


def test_a_line_that_is_drawn_again_is_read() -> None:
    news: list[None] = []
    declared = LogPattern(pattern=r"it (?P<step>\d+) (?P<tokens_per_second>\d+)")
    lines = LogLines(lambda hook: hook, devices=1, on_news=lambda: news.append(None), declared=declared)
    with own_stdout():
        lines.listen()
        for step in range(1, 6):  # the last one may go on
            sys.stdout.write(f"\rit {step} 100")
        lines.release()
    assert len(news) == 3


def test_the_first_known_format_is_kept() -> None:
    with own_stdout():
        lines, _ = listening()
        print(
            "epoch=0/micro_step=1/global_step=1, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=8.0, MemAllocated=4GB"
        )
        print("iter 10: loss 3.1461, time 410.55ms, mfu -100.00%")
        lines.release()
        measured = lines.measurement({})
        assert (measured.source, measured.samples_per_second, measured.steps_counted) == ("DeepSpeed", 8.0, 1)


def test_a_known_batch_turns_step_times_into_throughput() -> None:
    with own_stdout():
        lines, _ = listening()
        for index in range(3):
            print(f"iter {index}: loss 3.1461, time 500.00ms, mfu -100.00%")
        lines.release()
        measured = lines.measurement({"global_batch_size": 8, "seq_len": 16})
        assert (measured.samples_per_second, measured.tokens_per_second) == (16.0, 256.0)


def test_a_replaced_stream_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slotted:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

    monkeypatch.setattr(sys, "stdout", Slotted())
    monkeypatch.setattr(sys, "stderr", None)
    lines, news = listening()
    print("iter 1: loss 3.1461, time 500.00ms, mfu -100.00%")
    lines.release()
    assert news == []
    assert lines.measurement({}) is None


def test_memory_stays_bounded() -> None:
    with own_stdout():
        lines, news = listening()
        for index in range(5000):
            print(f"iter {index}: loss 3.1461, time 500.00ms, mfu -100.00%")
        sys.stdout.write("x" * 100_000)
        lines.release()
        assert len(lines._readings) <= 4096
        assert len(lines._rests["stdout"]) <= 8192
        assert len(news) == 13


def test_measurements_pass_between_ranks() -> None:
    measured = Measurement(samples_per_second=4.0, step_time_s=(1.0, 2.0, 3.0), source="Megatron-LM")
    assert decode_measurement(encode_measurement(measured)) == measured
    assert decode_measurement("") is None
    steps = Measurement(steps_counted=9, step_time_s=(0.1, 0.2, 0.3), peak_memory_gib=2.0)
    both = merged(steps, measured)
    assert (both.samples_per_second, both.source, both.steps_counted, both.peak_memory_gib) == (
        4.0,
        "Megatron-LM",
        9,
        2.0,
    )
    assert merged(None, measured) is measured
    assert merged(steps, None) is steps
    assert (has_throughput(steps), has_throughput(both), has_throughput(None)) == (False, True, False)


def test_a_declared_format_excludes_the_others() -> None:
    declared = LogPattern(pattern=r"it (?P<step>\d+) (?P<tokens_per_second_per_device>\S+) tok")
    with own_stdout():
        lines = LogLines(lambda hook: hook, devices=4, on_news=lambda: None, declared=declared)
        lines.listen()
        assert lines.measurement({}) is None
        print("iter 10: loss 3.1461, time 410.55ms, mfu -100.00%")
        for step in (1, 1, 2, 3, 3, 1):  # the last after a restart from a checkpoint
            print(f"it {step} {100.0 * step} tok/s/gpu")
        lines.release()
        measured = lines.measurement({})
    assert (measured.source, measured.steps_counted + measured.warmup_steps) == ("space file", 4)


def test_a_disagreement_of_lines_and_steps_is_reported() -> None:
    steps = Measurement(tokens_per_second=400.0, samples_per_second=4.0)
    assert disagreement(steps, Measurement(tokens_per_second=430.0)) == ""
    assert disagreement(steps, None) == disagreement(None, steps) == ""
    assert "100 tokens_per_second for the whole job, optimizer steps give 400" in disagreement(
        steps, Measurement(tokens_per_second=100.0)
    )
    assert "samples_per_second" in disagreement(steps, Measurement(samples_per_second=40.0))
    log = Measurement(tokens_per_second=100.0, source="space file")
    both = merged(steps, log)
    assert (both.tokens_per_second, both.samples_per_second, both.source) == (100.0, 4.0, "space file")
    assert (both.other_source, both.other_tokens_per_second) == ("optimizer steps", 400.0)
    both = merged(steps, log, prefer_log=False)
    assert (both.tokens_per_second, both.source) == (400.0, "")
    assert (both.other_source, both.other_tokens_per_second) == ("space file", 100.0)
    assert merged(steps, Measurement(tokens_per_second=401.0, source="x"), prefer_log=False) == steps


def test_the_rate_of_a_run_may_be_below_that_of_its_steps() -> None:
    steps = Measurement(samples_per_second=400.0)
    lower, higher = (Measurement(samples_per_second=rate, source="HF Trainer") for rate in (100.0, 800.0))
    assert disagreement(steps, lower) == ""
    assert merged(steps, lower, prefer_log=False) == steps
    assert "800 samples_per_second" in disagreement(steps, higher)


def line(step: int, at_s: float, *, rate: float | None = None, step_s: float | None = None) -> LogReading:
    return LogReading(samples_per_second=rate, step_s=step_s, step=float(step), at_s=at_s)


def test_lines_count_the_time_between_them() -> None:
    # Steps of 0.1 s as the lines tell, and as long again for what comes between them.
    lines = [line(10 * index, 2.0 * index, rate=80.0, step_s=0.1) for index in range(1, 21)]
    found = measure_readings(lines, source="x")
    assert found.samples_per_second == pytest.approx(40.0)
    assert found.mean_step_time_s == pytest.approx(0.2)
    assert (found.steps_counted, found.warmup_steps) == (180, 11)
    assert found.relative_error == pytest.approx(0.0, abs=1e-6)
    paused = measure_readings(lines, source="x", paused_s=lambda begin, end: 0.5)
    assert paused.samples_per_second == pytest.approx(8 * 180 / (18 * 1.5))


def test_rates_are_weighed_by_the_time_that_they_were_true_for() -> None:
    slow, fast = (LogReading(samples_per_second=rate, at_s=0.0) for rate in (10.0, 90.0))
    lines, now = [slow, slow, slow], 0.0
    for index in range(20):
        now += 9.0 if index % 2 else 1.0
        lines.append(replace(slow if index % 2 else fast, at_s=now))
    found = measure_readings(lines, source="x")
    assert found.samples_per_second == pytest.approx(18.0, rel=0.06)


def test_late_lines_count_as_printed() -> None:
    lines = [line(index, 7.0 + 1e-6 * index, rate=80.0, step_s=0.1) for index in range(1, 21)]
    assert measure_readings(lines, source="x").samples_per_second == pytest.approx(80.0)


@pytest.mark.parametrize(("interval", "every"), [(1, 10), (10, 2), (10, 25)])
def test_a_step_with_evaluation_is_not_taken_for_a_late_line(interval: int, every: int) -> None:
    """Lines as nanoGPT prints them: each tells of one step, and of the evaluation before it, which lasts 9 s."""
    lines, pauses, now = [], [], 0.0
    for index in range(1, 101):
        evaluation_s = 9.0 * (index % every == 0)
        pauses.append((now, now + evaluation_s))
        now += 0.1 * interval + evaluation_s
        lines.append(line(interval * index, now, step_s=0.1 + evaluation_s))

    def paused_s(begin: float, end: float) -> float:
        return sum(max(min(high, end) - max(low, begin), 0.0) for low, high in pauses)

    found = measure_readings(lines, source="x", samples=8, paused_s=paused_s)
    assert found.samples_per_second == pytest.approx(80.0)
