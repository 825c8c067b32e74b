"""Lines of two streams, one by one."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.logs import stream
from torchx_cubicml.recorder.logs.formats import LogReading
from torchx_cubicml.recorder.logs.stream import LogLines

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE = "iter {}: loss 3.1, time 500.00ms, mfu 1%"


class Listening:
    """Lines that are listened to, on streams of the test's own."""

    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.news = 0
        self.lines = LogLines(lambda hook: hook, devices=4, on_news=self.hear)

    def hear(self) -> None:
        self.news += 1
        print(LINE.format(99))  # the recorder's own text is not read

    @property
    def steps(self) -> list[float | None]:
        return [reading.step for reading in self.lines._readings]


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    made = Listening()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", made.out)
        patch.setattr(sys, "stderr", made.err)
        made.lines.listen()
        yield made
        made.lines.release()


def write(to: Any, text: str) -> None:
    assert to.write(text) == len(text)


def test_both_streams_are_read_apart(listening: Listening) -> None:
    line = LINE.format(7) + "\n"
    write(listening.out, line[:20])
    write(listening.err, LINE.format(8) + "\n" + LINE.format(9))
    write(listening.out, line[20:])
    assert listening.steps == [8.0, 7.0]
    write(listening.err, "\n")
    assert listening.steps == [8.0, 7.0, 9.0]


def test_news_come_at_powers_of_two(listening: Listening) -> None:
    heard = []
    for step in range(1, 10):
        write(listening.out, LINE.format(step) + "\n")
        heard.append(listening.news)
    assert heard == [1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert listening.steps == [float(step) for step in range(1, 10)]


def test_a_repeated_step_counts_once(listening: Listening) -> None:
    for step in (1, 1, 2, 2, 1):
        write(listening.out, LINE.format(step) + "\n")
    assert listening.steps == [1.0, 2.0, 1.0]


def test_lines_without_a_step_never_repeat(listening: Listening) -> None:
    for text in (
        "global_step=1, CurrSamplesPerSec=8",
        "CurrSamplesPerSec=8",
        "CurrSamplesPerSec=8",
        "global_step=1, CurrSamplesPerSec=8",
    ):
        write(listening.out, f"{text}\n")
    assert listening.steps == [1.0, None, None, 1.0]


def test_the_older_half_is_dropped(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_MAX_KEPT", 8)
    for step in range(1, 9):
        write(listening.out, LINE.format(step) + "\n")
    assert len(listening.steps) == 8
    write(listening.out, LINE.format(9) + "\n")
    assert listening.steps == [5.0, 6.0, 7.0, 8.0, 9.0]


def test_a_line_has_the_moment_of_its_end(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "perf_counter", lambda: 12.5)
    write(listening.out, LINE.format(1) + "\n")
    assert listening.lines._readings == [LogReading(step_s=0.5, step=1.0, at_s=12.5)]


def test_the_end_of_a_long_line_is_kept(listening: Listening) -> None:
    write(listening.out, "x" * 9000)
    write(listening.out, LINE.format(1))
    assert len(listening.lines._rests["stdout"]) == 8192
    write(listening.out, "\n")
    assert listening.lines._rests["stdout"] == ""


@pytest.mark.parametrize(
    ("facts", "rates"),
    [
        ({}, (None, None)),
        ({"global_batch_size": 8}, (16.0, None)),
        ({"global_batch_size": 8, "seq_len": 4}, (16.0, 64.0)),
        ({"seq_len": 4}, (None, None)),
        ({"global_batch_size": "8", "seq_len": 4}, (None, None)),
        ({"global_batch_size": 8, "seq_len": "4"}, (16.0, None)),
    ],
)
def test_the_batch_is_a_fact(
    facts: dict[str, Any], rates: tuple[float | None, float | None], listening: Listening
) -> None:
    assert listening.lines.measurement(facts) is None
    write(listening.out, LINE.format(1) + "\n")
    measured = listening.lines.measurement(facts)
    assert measured is not None
    assert (measured.samples_per_second, measured.tokens_per_second, measured.source) == (*rates, "nanoGPT")


def test_pauses_are_left_out(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 100, 2))
    monkeypatch.setattr(stream, "perf_counter", lambda: float(next(moments)))
    for step in range(1, 11):
        write(listening.out, LINE.format(step) + "\n")
    plain = listening.lines.measurement({"global_batch_size": 8})
    paused = listening.lines.measurement({"global_batch_size": 8}, paused_s=lambda begin, end: (end - begin) / 2)
    assert (plain.samples_per_second, paused.samples_per_second) == (4.0, 8.0)


def test_a_stream_with_a_write_of_its_own_is_left_alone(listening: Listening) -> None:
    theirs = listening.out.write
    again = LogLines(lambda hook: hook, devices=4, on_news=lambda: None)
    again.listen()
    assert listening.out.write is theirs
    again.release()
    own = listening.out.__dict__["write"] = lambda text: 3
    listening.lines.release()
    assert listening.out.write is own
    assert "write" not in listening.err.__dict__
