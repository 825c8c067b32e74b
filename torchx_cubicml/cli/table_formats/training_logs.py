"""Logs of torchtitan and Megatron-LM: one run per file, or one per folder, as rows of facts and throughput."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.log_facts import OUT_OF_MEMORY, megatron_facts, peak_memory_gib, torchtitan_facts
from torchx_cubicml.cli.table_formats.records import table_of_records, whole_number
from torchx_cubicml.errors import RecordError
from torchx_cubicml.recorder.logs.formats import LOG_FORMATS, read_line
from torchx_cubicml.recorder.logs.logged_measurement import measure_readings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place
    from torchx_cubicml.recorder.logs.formats import LogFormat, LogReading

_FACTS = {"torchtitan": torchtitan_facts, "Megatron-LM": megatron_facts}
_FORMATS = tuple(log_format for log_format in LOG_FORMATS if log_format.name in _FACTS)
_MOST_READINGS = 100_000
_MOST_FILES_PER_RUN = 64  # of which each rank may write one
_ENDINGS = re.compile(r"\.(?:log|out|err|txt|stdout|stderr|\d+)$|(?:^|/)(?:stdout|stderr|log|output)$")


@dataclass(slots=True)
class _ParsedLog:
    """Content of one log.

    Args:
        facts: standard name -> text.
        readings: lines with a throughput.
        is_out_of_memory: whether a process ran out of memory.
        log_format: of the readings; ``None`` without any.
    """

    facts: dict[str, str] = field(default_factory=dict)
    readings: list[LogReading] = field(default_factory=list)
    is_out_of_memory: bool = False
    log_format: LogFormat | None = None


def is_training_log(text: str) -> bool:
    """Return whether a text holds a line in which torchtitan or Megatron-LM prints its throughput."""
    return any(_reading(line, log_format) for log_format in _FORMATS for line in _marked(text, log_format))


def read_training_logs(place: Place) -> SourceTable:
    """Return one row per run: a file, or a folder with the files of its ranks, of which the fullest counts.

    Raises:
        RecordError: no file is a log, or none can be read.
    """
    if not place.is_folder:
        logs = {place.name: [""]}
    else:
        logs = {}
        for file in place.files():
            if _ENDINGS.search(file):
                logs.setdefault(file.partition("/")[0], []).append(file)
    if not logs:
        raise RecordError(
            f"{place.text} holds no records of a known format: name a table, or a folder of runs of W&B, MLflow or "
            "DeepSpeed's autotuner, or of logs that end in .log, .txt, .out or .err"
        )
    records, problems = [], []
    for label, files in sorted(logs.items()):
        try:
            records.append((label, _record([_parsed(place, file) for file in islice(files, _MOST_FILES_PER_RUN)])))
        except RecordError as error:
            problems.append(f"run {label}: {error}")
    return table_of_records(place, records, counted="run", problems=problems)


def _parsed(place: Place, file: str) -> _ParsedLog:
    text = place.read(file).decode(errors="replace")
    parsed = _ParsedLog(is_out_of_memory=OUT_OF_MEMORY.search(text) is not None)
    for log_format in _FORMATS:
        found = (_reading(line, log_format) for line in _marked(text, log_format))
        readings = list(islice((reading for reading in found if reading is not None), _MOST_READINGS))
        facts = _FACTS[log_format.name](text)
        if len(readings) > len(parsed.readings) or (not parsed.readings and len(facts) > len(parsed.facts)):
            parsed.facts, parsed.readings, parsed.log_format = facts, _distinct(readings), log_format
    if parsed.readings:
        parsed.facts |= peak_memory_gib(text)
    return parsed


def _marked(text: str, log_format: LogFormat) -> Iterable[str]:
    """Yield the lines that hold the mark of a format."""
    start = text.find(log_format.mark)
    while start >= 0:
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        yield text[text.rfind("\n", 0, start) + 1 : stop]
        start = text.find(log_format.mark, stop)


def _reading(line: str, log_format: LogFormat) -> LogReading | None:
    return read_line(line, log_format, devices=1)


def _distinct(readings: Iterable[LogReading]) -> list[LogReading]:
    """Return the readings without repeated steps: several ranks, or two log handlers, print the same line."""
    kept: dict[float, LogReading] = {}
    for number, reading in enumerate(readings):
        kept.setdefault(-1.0 - number if reading.step is None else reading.step, reading)
    return list(kept.values())


def _record(logs: list[_ParsedLog]) -> dict[str, str]:
    best = max(logs, key=lambda log: (len(log.readings), len(log.facts)))
    if not best.facts and not best.readings:
        raise RecordError("no line of torchtitan or Megatron-LM")
    record: dict[str, str] = {}
    for log in (*(log for log in logs if log is not best), best):
        record |= log.facts
    is_out_of_memory = any(log.is_out_of_memory for log in logs)
    rates = {} if is_out_of_memory else _rates(best, record)
    record |= {"status": "out of memory" if is_out_of_memory else "completed" if rates else "failed"}
    return record | rates


def _rates(log: _ParsedLog, facts: dict[str, str]) -> dict[str, str]:
    """Return the throughput under the name that says its unit and scope."""
    if log.log_format is None:
        return {}
    batch, length = (whole_number(facts.get(name, "")) for name in ("global_batch_size", "seq_len"))
    is_per_device = "tokens_per_second_per_device" in log.log_format.groups
    measured = measure_readings(
        log.readings,
        source=log.log_format.name,
        samples=None if is_per_device else batch,
        tokens=batch * length if batch and length and not is_per_device else None,
    )
    if measured is None:
        return {}
    if is_per_device:
        return {"tokens_per_second_per_device": f"{measured.tokens_per_second:.6g}"}
    if measured.tokens_per_second:
        return {"tokens_per_second": f"{measured.tokens_per_second:.6g}"}
    return {"samples_per_second": f"{measured.samples_per_second:.6g}"} if measured.samples_per_second else {}
