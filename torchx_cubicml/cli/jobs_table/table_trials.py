"""Trials of the rows of a table; malformed rows are reported and the others kept."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.cells import blank_value, is_text_column, read_cell
from torchx_cubicml.cli.jobs_table.checks import disagreements, without_impossible_peak
from torchx_cubicml.cli.jobs_table.column_roles import DEVICE_BATCH, GLOBAL_BATCH_TOKENS, PRECISION_SWITCH, STEP_TIMES
from torchx_cubicml.cli.jobs_table.headings import is_certain_outcome, read_heading, states_time_heading
from torchx_cubicml.cli.jobs_table.rates import count, dp_degree, job_rates, known_world_size
from torchx_cubicml.cli.jobs_table.source import MISSING, SourceTable
from torchx_cubicml.cli.jobs_table.stated_mfu import StatedMfu
from torchx_cubicml.cli.jobs_table.statuses import state_of_word
from torchx_cubicml.cli.jobs_table.times import sortable_time
from torchx_cubicml.cli.jobs_table.written_numbers import gibibytes, rate, seconds, states_time
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.measurement import MEAN, Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.records.values import freeze_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.cli.jobs_table.headings import Heading
    from torchx_cubicml.cli.jobs_table.mapping import TableMapping
    from torchx_cubicml.records.values import Scalar

_TIME_SHARE = 0.5  # of the cells of a throughput column that make it a column of times
_ROUNDING = 1e-3  # relative, of tokens of a step that are written in thousands or millions
_WIDEST = ("fp8", "nvfp4", "mxfp8", "fp4")  # formats that layers add to another one


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Content of a table.

    Args:
        trials: trials of the well-formed rows, in their order.
        labels: label of each of them in the table, such as its line.
        disagreements: rows whose facts cannot all be true, a sentence each.
        problems: label and cause of each malformed row.
        other_statuses: status of the jobs that neither ran nor ran out of memory -> number of jobs.
        gaps: fact -> number of rows without a value, where others have one.
        unknown_words: fact -> words that are no standard ones and were kept -> number of rows.
    """

    trials: list[Trial] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    other_statuses: Counter[str] = field(default_factory=Counter)
    gaps: Counter[str] = field(default_factory=Counter)
    unknown_words: dict[str, Counter[str]] = field(default_factory=dict)


def table_trials(source: SourceTable, mapping: TableMapping) -> ReadTable:
    """Return the trials of a table; malformed rows are reported and the others kept.

    Trial ids are digests of the rows, so that importing is idempotent: a table imported twice counts once.

    Raises:
        RecordError: the table lacks a column, or a column cannot be what the mapping says.
    """
    missing = sorted(mapping.columns - set(source.headings))
    if missing:
        raise RecordError(f"{source.place}: no column {missing[0]!r}; choose from {', '.join(source.headings)}")
    reader = _RowReader(source, mapping)
    table, seen = ReadTable(unknown_words=reader.unknown_words), Counter[str]()
    problems = list(source.problems)
    for label, row in source.records():
        try:
            trial = reader.trial(row, seen)
        except RecordError as error:
            problems.append(f"{source.counted} {label}: {error}")
            continue
        table.trials.append(trial)
        table.labels.append(f"{source.counted} {label}")
        if trial.state is State.UNKNOWN:
            table.other_statuses[reader.cause(row)] += 1
    table.problems.extend(sorted(problems, key=_line))
    table.gaps.update(_gaps(table.trials, {**mapping.workload, **mapping.parameters}))
    table.disagreements.extend(disagreements(table.trials, table.labels))
    table.trials[:] = map(without_impossible_peak, table.trials)
    return table


def _line(problem: str) -> int:
    """Return the number in a problem's label, 0 where it has none."""
    found = re.match(r"\w+ (\d+):", problem)
    return int(found[1]) if found else 0


def _gaps(trials: Sequence[Trial], names: Iterable[str]) -> dict[str, int]:
    counts = {name: sum(name not in {**trial.workload, **trial.config} for trial in trials) for name in names}
    legal = (
        name
        for name in names
        if not name.startswith(PRECISION_SWITCH) and name not in {GLOBAL_BATCH_TOKENS, DEVICE_BATCH}
    )
    return {name: counts[name] for name in legal if counts[name]}


class _RowReader:
    """Reader of rows by one mapping."""

    def __init__(self, source: SourceTable, mapping: TableMapping) -> None:
        self.unknown_words: dict[str, Counter[str]] = {}
        self._mapping, self._comma = mapping, source.decimal_comma
        self._program = mapping.program or source.stem
        named = {**mapping.workload, **mapping.parameters}
        self._headings = {column: read_heading(column) for column in source.headings}
        self._texts = {
            column
            for name, column in named.items()
            if column in mapping.text or is_text_column(name, column, source.known_cells(column))
        }
        self._known: dict[tuple[str, str], tuple[Scalar | None, bool]] = {}
        self._blank = {name: blank_value(name, source.cells(column)) for name, column in named.items()}
        self._stated_mfu = StatedMfu(source)
        self._completed = frozenset(map(str.lower, mapping.completed))
        self._out_of_memory = frozenset(map(str.lower, mapping.out_of_memory))
        for name, column in named.items():
            _refuse_outcome(name, self._headings[column])
        _check_unit(mapping, self._headings[mapping.throughput], source.known_cells(mapping.throughput))

    def trial(self, row: Mapping[str, str], seen: Counter[str]) -> Trial:
        mapping = self._mapping
        workload = {**mapping.facts, **self._values(row, mapping.workload)}
        workload.setdefault("program", self._program)
        config = self._values(row, mapping.parameters)
        if not config:
            raise RecordError("no parameter has a value")
        _combine(workload, config)
        state = self._state(row)
        measurement = self._measurement(row, {**config, **workload}) if state is State.COMPLETED else None
        for name in (GLOBAL_BATCH_TOKENS, DEVICE_BATCH):
            workload.pop(name, None)
            config.pop(name, None)
        content = json.dumps([workload, config, sorted(row.items())], default=str)
        digest = hashlib.sha256(content.encode(errors="replace")).hexdigest()[:16]
        seen[digest] += 1
        return Trial(
            trial_id=f"import-{digest}" + (f"-{seen[digest]}" if seen[digest] > 1 else ""),
            workload=freeze_values(workload, where="workload"),
            config=freeze_values(config, where="config"),
            state=state,
            measurement=measurement,
            origin=Origin.IMPORT,
            started_at=sortable_time(row[mapping.time]) if mapping.time else "",
        )

    def _values(self, row: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, Scalar]:
        found: dict[str, Scalar] = {}
        for name, column in columns.items():
            text = row[column]
            if column in self._texts:
                if text.lower() not in MISSING:
                    found[name] = text
                continue
            value, is_known = self._read(name, text, self._headings[column])
            value = self._blank[name] if value is None else value
            if value is not None:
                found[name] = value
            if not is_known:
                self.unknown_words.setdefault(name, Counter())[text] += 1
        return found

    def _read(self, name: str, text: str, heading: Heading) -> tuple[Scalar | None, bool]:
        key = name, text
        if key not in self._known:
            self._known[key] = read_cell(name, text, heading, decimal_comma=self._comma)
        return self._known[key]

    def _state(self, row: Mapping[str, str]) -> State:
        mapping = self._mapping
        if not mapping.status:
            return self._state_of_throughput(row[mapping.throughput])
        status = row[mapping.status].lower()
        if status in self._completed:
            return self._state_of_throughput(row[mapping.throughput])
        return State.OUT_OF_MEMORY if status in self._out_of_memory else State.UNKNOWN

    def cause(self, row: Mapping[str, str]) -> str:
        """Return the word that says that a job failed: its status, or what stands in place of its throughput."""
        status = row[self._mapping.status] if self._mapping.status else ""
        return row[self._mapping.throughput] if status.lower() in self._completed | {""} else status

    def _state_of_throughput(self, text: str) -> State:
        """Return the state that a table without statuses tells: papers write OOM in place of a throughput."""
        if text.lower() in MISSING or self._rate(text) is not None:
            return State.COMPLETED
        state = state_of_word(text)
        return State.COMPLETED if state is None else state

    def _rate(self, text: str) -> float | None:
        heading = self._headings[self._mapping.throughput]
        if self._mapping.unit not in STEP_TIMES:
            value = rate(text, decimal_comma=self._comma)
            return None if value is None else value * heading.scale
        unit = heading.unit if states_time_heading(heading) and heading.unit else ""
        return seconds(text, unit=unit or self._mapping.unit.partition("_")[0], decimal_comma=self._comma)

    def _measurement(self, row: Mapping[str, str], facts: Mapping[str, Scalar]) -> Measurement:
        column, peak = self._mapping.throughput, self._mapping.peak_memory_gib
        value = self._rate(row[column])
        if value is None or not 0 < value < math.inf:
            raise RecordError(f"{column} must be a positive number, got {row[column]!r:.60}")
        rates = job_rates(self._mapping.unit, value, facts)
        steps = rates.get("steps_per_second")
        return Measurement(
            mean_step_time_s=1.0 / steps if steps else None,
            statistic=MEAN if steps else "",
            tokens_per_second=rates.get("tokens_per_second"),
            samples_per_second=rates.get("samples_per_second"),
            peak_memory_gib=self._peak(row[peak], self._headings[peak]) if peak else None,
            stated_mfu=self._stated_mfu.of(row),
        )

    def _peak(self, text: str, heading: Heading) -> float | None:
        if text.lower() in MISSING:
            return None
        size = gibibytes(text, unit=heading.unit or "gib", decimal_comma=self._comma)
        if size is None or size <= 0:
            raise RecordError(f"{heading.text} must be a positive number, got {text!r:.60}")
        return size


def _combine(workload: dict[str, Scalar], config: dict[str, Scalar]) -> None:
    """Add to a row what several of its facts say together."""
    _combine_precision(workload, config)
    memory, device = workload.get("device_memory_gib"), workload.get("device")
    if isinstance(device, str) and isinstance(memory, int | float) and f"{memory:.0f}" not in device:
        workload["device"] = f"{device} {memory:.0f}GB"
    facts = {**config, **workload}
    world = known_world_size(facts)
    if world is not None and "world_size" not in facts and world.is_integer():
        workload["world_size"] = int(world)
    tokens, length = facts.get(GLOBAL_BATCH_TOKENS), facts.get("seq_len")
    if isinstance(tokens, int) and isinstance(length, int) and "global_batch_size" not in facts:
        samples = tokens / length
        config["global_batch_size"] = round(samples) if abs(samples - round(samples)) < _ROUNDING * samples else samples
    _combine_device_batch({**config, **workload}, config)


def _combine_device_batch(facts: Mapping[str, Scalar], config: dict[str, Scalar]) -> None:
    """Add the accumulation and the global batch that follow from the batch of a step on one data-parallel rank."""
    batch, micro, dp = count(facts, DEVICE_BATCH), count(facts, "micro_batch_size"), dp_degree(facts)
    if batch is None:
        return
    if micro is not None and "gradient_accumulation_steps" not in facts and (batch / micro).is_integer():
        config["gradient_accumulation_steps"] = int(batch / micro)
    if dp is not None and "global_batch_size" not in facts and (batch * dp).is_integer():
        config["global_batch_size"] = int(batch * dp)


def _combine_precision(workload: dict[str, Scalar], config: dict[str, Scalar]) -> None:
    switches = [name for name in (*workload, *config) if name.startswith(PRECISION_SWITCH)]
    on = [name for name in switches if workload.pop(name, False) or config.pop(name, False)]
    formats = [name.removeprefix(PRECISION_SWITCH) for name in on]
    added = next((word for word in _WIDEST if word in formats), "")
    if added:
        config["precision"] = added
    elif formats and "precision" not in {**workload, **config}:
        config["precision"] = formats[0]


def _refuse_outcome(name: str, heading: Heading) -> None:
    if is_certain_outcome(heading) and name != "device_memory_gib":
        raise RecordError(
            f"column {heading.text!r} is an outcome of a run, which is unknown before it: leave it out of --workload, "
            "--parameters and --map"
        )


def _check_unit(mapping: TableMapping, heading: Heading, cells: list[str]) -> None:
    times = sum(map(states_time, cells))
    says_time = states_time_heading(heading) or times > _TIME_SHARE * max(len(cells), 1)
    if says_time and mapping.unit not in STEP_TIMES:
        raise RecordError(
            f"column {heading.text!r} is a time, not a throughput: give --unit seconds_per_step or "
            "--unit milliseconds_per_step"
        )
    if heading.name.partition("_per_")[2].startswith("second") and mapping.unit in STEP_TIMES:
        raise RecordError(f"column {heading.text!r} is a throughput, not a time: give --unit {heading.name}")
