from __future__ import annotations

from pathlib import Path

import pytest

from torchx_cubicml.recorder.logs.formats import LOG_FORMATS, LogReading, read_line
from torchx_cubicml.recorder.logs.measurement import measure_readings

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
