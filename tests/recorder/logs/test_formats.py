from __future__ import annotations

from pathlib import Path

import pytest

from torchx_cubicml.recorder.logs.formats import (
    LOG_FORMATS,
    WHOLE_RUN_FORMATS,
    LogReading,
    declared_format,
    read_line,
)
from torchx_cubicml.recorder.logs.logged_measurement import measure_readings
from torchx_cubicml.records.log_pattern import LogPattern

LOGS = Path(__file__).parents[2] / "data" / "logs"
BY_NAME = {log_format.name: log_format for log_format in LOG_FORMATS}


EXCERPTS = [
    ("torchtitan.txt", "torchtitan", 5, 4 * 10_010, None, None),
    ("megatron_lm.txt", "Megatron-LM", 5, None, 768 / 9.6, 9.6),
    ("hf_trainer.txt", "HF Trainer", 1, None, 6.709, None),
    ("deepspeed.txt", "DeepSpeed", 5, None, 25.5, None),
    ("nanogpt.txt", "nanoGPT", 5, 16_384 / 0.4, 128 / 0.4, 0.4),
]


def readings(log: str, name: str, devices: int = 4) -> list[LogReading]:
    found = [read_line(line, BY_NAME[name], devices=devices) for line in (LOGS / log).read_text().splitlines()]
    return [reading for reading in found if reading is not None]


@pytest.mark.parametrize(
    ("log", "name", "count", "tokens", "samples", "step_s"),
    EXCERPTS,
    ids=[name for _, name, *_ in EXCERPTS],
)
def test_an_excerpt_is_measured(
    log: str, name: str, count: int, tokens: float | None, samples: float | None, step_s: float | None
) -> None:
    found = readings(log, name)
    assert len(found) == count
    measured = measure_readings(found, source=name, samples=128, tokens=16_384) if step_s else None
    if name != "nanoGPT":  # it alone tells nothing of the batch
        measured = measure_readings(found, source=name)
    assert measured is not None
    assert measured.source == name
    assert measured.tokens_per_second == (pytest.approx(tokens, rel=2e-3) if tokens else None)
    assert measured.samples_per_second == (pytest.approx(samples, rel=2e-3) if samples else None)
    assert measured.step_time_s[1:2] == ((pytest.approx(step_s),) if step_s else ())
    steps = [reading.step for reading in found if reading.step is not None]
    assert measured.steps_counted + measured.warmup_steps == (steps[-1] - steps[0] + 1 if steps else count)


@pytest.mark.parametrize("log_format", LOG_FORMATS, ids=lambda log_format: log_format.name)
def test_no_format_takes_the_lines_of_another(log_format: object) -> None:
    logs = {path.name for path in LOGS.glob("*.txt") if readings(path.name, log_format.name)}
    assert logs == {log for log, name, *_ in EXCERPTS if name == log_format.name}


def test_other_words_than_numbers_are_not_read() -> None:
    assert read_line("step:  1  loss: 1  tps: -  tflops", BY_NAME["torchtitan"], devices=1) is None
    zero = read_line("step:  1  loss: 1  tps: 0  tflops", BY_NAME["torchtitan"], devices=1)
    assert zero == LogReading(step=1.0)
    assert measure_readings([zero, LogReading()], source="torchtitan") is None
    assert measure_readings([], source="torchtitan") is None


def test_a_step_of_an_unknown_batch_is_timed() -> None:
    measured = measure_readings(readings("nanogpt.txt", "nanoGPT"), source="nanoGPT")
    assert measured is not None
    assert (measured.samples_per_second, measured.tokens_per_second) == (None, None)
    assert measured.mean_step_time_s == pytest.approx(0.40063, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("41,500.0", 41_500.0),
        ("1,234,567", 1_234_567.0),
        ("41.5k", 41_500.0),
        ("41.5K", 41_500.0),
        ("2 M", 2e6),
        ("3G", 3e9),
        ("7.", 7.0),
        ("1.5e+3", 1500.0),
        ("2E-1", 0.2),
        ("41,5", None),
        ("1,2345", None),
        ("0", None),
        ("-3", None),
        ("1e999", None),
        ("5T", None),
        ("nan", None),
    ],
)
def test_a_declared_number_is_read_as_printed(text: str, number: float | None) -> None:
    declared = declared_format(LogPattern(pattern=r"rate=(?P<samples_per_second>[^;]*);"))
    expected = None if number is None else pytest.approx(number)
    assert read_line(f"x rate={text};", declared, devices=3).samples_per_second == expected


@pytest.mark.parametrize(
    ("groups", "line", "expected"),
    [
        ("tokens_per_second", "5", LogReading(tokens_per_second=5.0)),
        ("samples_per_second", "5", LogReading(samples_per_second=5.0)),
        ("tokens_per_second_per_device", "5", LogReading(tokens_per_second=20.0)),
        ("samples_per_second_per_device", "5", LogReading(samples_per_second=20.0)),
        ("step_time_s", "0.5", LogReading(step_s=0.5)),
        ("step_time_ms", "500", LogReading(step_s=0.5)),
        ("step step_time_s samples", "3 0.5 8", LogReading(step=3.0, step_s=0.5, samples_per_second=16.0)),
        ("step_time_ms tokens", "250 8", LogReading(step_s=0.25, tokens_per_second=32.0)),
        ("samples step_time_s", "8 0", LogReading()),
    ],
)
def test_groups_give_unit_and_scope(groups: str, line: str, expected: LogReading) -> None:
    pattern = " ".join(rf"(?P<{group}>\S+)" for group in groups.split())
    assert read_line(line, declared_format(LogPattern(pattern=pattern)), devices=4) == expected


def test_colours_and_endless_lines_are_read() -> None:
    torchtitan = BY_NAME["torchtitan"]
    coloured = "\x1b[31mstep:\x1b[32m  7  \x1b[0mloss: 1  tps: \x1b[1;34m1,000\x1b[0m"
    assert read_line(coloured, torchtitan, devices=2) == LogReading(step=7.0, tokens_per_second=2000.0)
    line = "step: 7 tps: 5"
    for padding, is_read in ((8192 - len(line), True), (8193 - len(line), False)):
        assert (
            read_line("." * padding + line, torchtitan, devices=1) == LogReading(step=7.0, tokens_per_second=5.0)
        ) is is_read


def test_a_line_of_megatron_may_tell_no_batch() -> None:
    line = " iteration       20/     100 | elapsed time per iteration (ms): 500.0 |"
    megatron = BY_NAME["Megatron-LM"]
    assert read_line(line, megatron, devices=2) == LogReading(step=20.0, step_s=0.5)
    assert read_line(f"{line} global batch size: 64 |", megatron, devices=2).samples_per_second == 128.0


def test_only_the_rate_of_the_hf_trainer_is_of_the_whole_run() -> None:
    assert {"HF Trainer"} == WHOLE_RUN_FORMATS
