from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.cli.starter.log_lines import log_section
from torchx_cubicml.launch import Launch
from torchx_cubicml.recorder.logs.formats import declared_format, read_line
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.recorder.logs.formats import LogReading

BASE = '[parameters.a]\nchoices = [1]\nenv = "A"\n'
VALUES = {"step": 12, "n": 100, "loss": 3.25, "rate": 41234.5, "dt": 0.0125, "lr": 0.001}


def proposed(folder: Path, source: str) -> list[str]:
    (folder / "train.py").write_text(source)
    return log_section(Launch(program=str(folder / "train.py")))


def printed(source: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the statement, and return the line that it prints."""
    capsys.readouterr()
    logger = logging.getLogger("printed")
    logger.handlers, logger.propagate = [logging.StreamHandler(__import__("sys").stdout)], False
    logger.setLevel(logging.INFO)
    exec(source, {**VALUES, "logger": logger, "print0": print})
    return capsys.readouterr().out


def reading(lines: list[str], line: str) -> LogReading | None:
    """Return what the recorder reads from a line by the proposed section, uncommented."""
    section = [text.removeprefix("# ") for text in lines if text.startswith(("# [log]", "# pattern"))]
    log = parse_space(BASE + "\n".join(section), where="x.toml").log
    assert log is not None
    return read_line(line, declared_format(log), devices=2)


@pytest.mark.parametrize(
    ("source", "unit", "value", "step"),
    [
        (
            'print(f"step {step:5d} | loss: {loss:.6f} | dt: {dt*1000:.2f}ms | tok/sec: {rate:.2f}")',
            "tokens",
            41234.5,
            12,
        ),
        ('print(f"step {step} loss {loss:.3f} {rate:,.0f} tokens/s")', "tokens", 41234, 12),
        ('print(f"Step {step}/{n} | {rate:,.1f} tok/s per GPU, loss {loss}")', "tokens", 82469, 12),
        ('print0(f"[{step}] {rate:.1f} tokens/sec/gpu")', "tokens", 82469, None),
        ('print("step", step, "tokens/s", rate)', "tokens", 41234.5, 12),
        ('print("samples per second", rate)', "samples", 41234.5, None),
        ('print("iter", step, "samples/s:", rate, sep=" ")', "samples", 41234.5, 12),
        ('print("throughput: %.2fk tok/s" % (rate / 1e3))', "tokens", 41230, None),
        ('print("iter {}: {:.1f} imgs/s".format(step, rate))', "samples", 41234.5, 12),
        ('logger.info("step %d: %8.1f samples/sec", step, rate)', "samples", 41234.5, 12),
        ('logger.info(f"tokens_per_second={rate:.1f}, loss={loss:.2f}")', "tokens", 41234.5, None),
        (
            'text = f"step={step}"\ntext += f" rate {rate:.1f} examples per second."\nprint(text)',
            "samples",
            41234.5,
            None,
        ),
        ('print(f"iteration {step} step time: {dt:.4f} s")', "s", 0.0125, 12),
        ('print(f"iteration {step} {dt*1e3:.2f} ms/iter")', "s", 0.0125, 12),
        ('print(f"it\'s step {step}, step_time_ms: {dt * 1000:.2f}")', "s", 0.0125, 12),
        ('print(f"epoch 1\\nstep {step}: {rate:.3e} seq/s")', "samples", 41230, 12),
        ('print("step " + str(step) + ": " + str(rate) + " samples/s")', "samples", 41234.5, 12),
        ('print("step %-6d %-12.1f tok/s" % (step, rate))', "tokens", 41234.5, 12),
        ('print("step %s %10s tok/s" % (step, round(rate, 1)))', "tokens", 41234.5, 12),
    ],
)
def test_a_printed_line_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, unit: str, value: float, step: int | None
) -> None:
    lines = printed(source, capsys).splitlines()
    found = [reading(proposed(tmp_path, source), line) for line in lines]
    (read,) = filter(None, found)
    values = {"tokens": read.tokens_per_second, "samples": read.samples_per_second, "s": read.step_s}
    assert values[unit] == pytest.approx(value)
    assert read.step == step


@pytest.mark.parametrize(
    "source",
    [
        'print(f"{1/dt:.2f} it/s")',
        'print(f"epoch 1, val samples/s {rate:.1f}")',
        'print(f"iter {step}: loss {loss:.4f}, time {dt*1000:.2f}ms, mfu 1.00%")',  # nanoGPT's: read without a section
        'print("lr", lr, "tokens/s", rate)',  # the unit of which?
        'print(f"speed {rate} tok/s {loss}")',
        'raise ValueError(f"{rate} tok/s")',
        'title = f"{rate} tok/s"',
        'print("tokens/s")',
        'print(f"{rate:_} tok/s")',  # a form that the recorder does not read
        'print(f"took {dt:.1f} s")',
        "print(",
        "",
    ],
)
def test_no_section_is_proposed(tmp_path: Path, source: str) -> None:
    assert proposed(tmp_path, source) == []


def test_the_best_line_is_proposed_with_its_place(tmp_path: Path) -> None:
    source = (
        'print(f"{dt:.1f} s/step")\nprint(f"{rate:.1f} tok/s in all")\n'
        'if True:\n    print(f"step {step}: {rate:.1f} tok/s")\n'
    )
    place, scope, heading, pattern = proposed(tmp_path, source)
    path = tmp_path / "train.py"
    assert place == f"# Line 4 of {path} prints its throughput. Uncomment to use it in place of step timing."
    assert scope == "# If it is the rate of one device, add _per_device to the name of the group."
    assert heading == "# [log]"
    assert pattern == r"# pattern = 'step *(?P<step>\d+)\b.*?(?P<tokens_per_second>\d+\.\d+) tok/s'"


def test_a_line_of_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text('print(f"{rate:.1f} tok/s")')
    assert str(tmp_path / "trainer.py") in proposed(tmp_path, "import trainer")[0]


LABELS = st.sampled_from(["", "loss ", "| ", "[rank0] ", "lr=", "(", "épo ", "\\t", "a.b*c "])
UNITS = st.sampled_from(["tokens/s", "tok/sec", "tokens per second", "samples/s", "imgs/sec", "seq/s"])
SPECS = st.sampled_from(["", ":.1f", ":8.2f", ":,.1f", ":.0f", ":<9.3f", ":e", ":g"])


@settings(deadline=None)
@given(
    before=LABELS, unit=UNITS, spec=SPECS, after=st.sampled_from(["", ".", ", x", "]", " | 5 ms"]), first=st.booleans()
)
def test_generated_lines_are_read(
    tmp_path_factory: pytest.TempPathFactory, before: str, unit: str, spec: str, after: str, first: bool
) -> None:
    field = f"{{rate{spec}}}"
    body = f"{before}{unit}: {field}{after}" if first else f"{before}{field} {unit}{after}"
    source = f'print(f"step {{step}} {body}")'
    line = eval(f'f"step {{step}} {body}"', dict(VALUES))
    lines = proposed(tmp_path_factory.mktemp("job"), source)
    assert lines
    read = reading(lines, line)
    assert read is not None
    text = re.search(r"\S+", format(VALUES["rate"], spec[1:]))
    assert text is not None
    rates = {read.tokens_per_second, read.samples_per_second} - {None}
    assert rates == {float(text[0].replace(",", ""))}
    assert read.step == 12
