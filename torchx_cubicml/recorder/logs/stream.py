"""Reader of the log lines that the program prints to stdout and stderr; its output stays unchanged.

The streams stay the same objects. Only their ``write`` is shadowed: it writes first, and reads the text afterwards.
Output that bypasses Python's streams is not seen.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.logs.formats import LOG_FORMATS, MAX_LINE, declared_format, read_line
from torchx_cubicml.recorder.logs.logged_measurement import measure_readings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from torchx_cubicml.recorder.logs.formats import LogFormat, LogReading
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.log_pattern import LogPattern
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.values import Value

_MAX_KEPT = 4096  # readings


class LogLines:
    """Log lines of this process in a known format.

    Args:
        guard: wraps the reading of the lines, so that a failure never reaches the program.
        devices: number of devices of the job.
        on_news: called after 1, 2, 4, ... lines were read.
        declared: the format that the user has declared; ``None`` to look for all known ones.
    """

    def __init__(
        self, guard: Guard, *, devices: int, on_news: Callable[[], None], declared: LogPattern | None = None
    ) -> None:
        self.is_declared = declared is not None
        self._take = guard(self._take_text)
        self._devices = devices
        self._on_news = on_news
        self._format: LogFormat | None = declared_format(declared) if declared is not None else None
        self._last_step = 0.0
        self._readings: list[LogReading] = []
        self._count = 0
        self._rests: dict[str, str] = {}
        self._busy = False
        self._undo: list[Callable[[], None]] = []

    def listen(self) -> None:
        """Attach to stdout and stderr; skip a stream whose ``write`` cannot be shadowed."""
        for name in ("stdout", "stderr"):
            self._attach(name, getattr(sys, name, None))

    def release(self) -> None:
        """Detach from the streams."""
        while self._undo:
            self._undo.pop()()

    def measurement(
        self, facts: Mapping[str, Value], *, paused_s: Callable[[float, float], float] = lambda begin, end: 0.0
    ) -> Measurement | None:
        """Return the measurement from the lines up to now; ``None`` without any.

        Args:
            facts: of the training; the batch among them gives the throughput of lines that print only step times.
            paused_s: see ``measure_readings``.
        """
        if self._format is None or not self._readings:
            return None
        batch, seq_len = facts.get("global_batch_size"), facts.get("seq_len")
        samples = batch if isinstance(batch, int) else None
        tokens = samples * seq_len if samples is not None and isinstance(seq_len, int) else None
        return measure_readings(
            self._readings, source=self._format.name, samples=samples, tokens=tokens, paused_s=paused_s
        )

    def _attach(self, name: str, stream: TextIO | None) -> None:
        if stream is None or "write" in getattr(stream, "__dict__", {"write": None}):
            return
        original = stream.write

        def write(text: str, /) -> int:
            count = original(text)
            self._take(name, text)
            return count

        def undo() -> None:
            if stream.__dict__.get("write") is write:
                del stream.__dict__["write"]

        stream.__dict__["write"] = write
        self._undo.append(undo)

    def _take_text(self, name: str, text: str) -> None:
        if self._busy:  # text printed while reading is the recorder's own
            return
        self._busy = True
        try:
            # A bar is drawn again behind a carriage return.
            *lines, rest = (self._rests.get(name, "") + text).replace("\r", "\n").split("\n")
            self._rests[name] = rest[-MAX_LINE:]
            for line in lines:
                self._take_line(line)
        finally:
            self._busy = False

    def _take_line(self, line: str) -> None:
        for log_format in (self._format,) if self._format is not None else LOG_FORMATS:
            reading = read_line(line, log_format, devices=self._devices)
            if reading is not None and not self._is_repeated(reading):
                self._format = log_format
                self._keep(replace(reading, at_s=perf_counter()))
                return

    def _is_repeated(self, reading: LogReading) -> bool:
        """Return whether a line has the same step as the line before, as when two log handlers print it."""
        last, self._last_step = self._last_step, reading.step or 0.0
        return reading.step is not None and reading.step == last

    def _keep(self, reading: LogReading) -> None:
        self._count += 1
        if len(self._readings) == _MAX_KEPT:  # the steady state counts, so the oldest are dropped
            del self._readings[: _MAX_KEPT // 2]
        self._readings.append(reading)
        if self._count & (self._count - 1) == 0:
            self._on_news()
