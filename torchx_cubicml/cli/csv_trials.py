"""CSV tables of past jobs: maps columns to the fields of a trial, and reports malformed rows."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.standard_names import standard_name
from torchx_cubicml.records.trial import Measurement, Origin, State, Trial, freeze_values

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchx_cubicml.records.trial import Scalar

UNITS = {
    "tokens_per_second": ("tokens_per_second", False),
    "tokens_per_second_per_device": ("tokens_per_second", True),
    "samples_per_second": ("samples_per_second", False),
    "samples_per_second_per_device": ("samples_per_second", True),
}
"""Unit of a throughput column -> objective, and whether it is per device."""

# Spellings of a missing value in tables, in lower case; "none" is not here, as it may be a value.
_MISSING = frozenset({"", "-", "?", "na", "n/a", "#n/a", "<na>", "nan"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """Mapping from the columns of a table to the fields of a trial.

    Args:
        workload: name of a fact -> column.
        parameters: name of a parameter -> column.
        throughput: column of the throughput.
        unit: its unit, a name in ``UNITS``.
        program: program trained, where no workload column holds it.
        status: column of the job's status; empty where each row with a throughput is a job that ran.
        completed: status values of jobs that ran, in any case.
        out_of_memory: status values of jobs that ran out of memory; any other value is a failure of unknown cause.
        time: column of the job's start, ISO 8601 (a day or a month is enough); empty for none.
        peak_memory_gib: column of the largest memory of one device; empty for none.
    """

    workload: Mapping[str, str]
    parameters: Mapping[str, str]
    throughput: str
    unit: str = "tokens_per_second"
    program: str = ""
    status: str = ""
    completed: tuple[str, ...] = ()
    out_of_memory: tuple[str, ...] = ()
    time: str = ""
    peak_memory_gib: str = ""

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise RecordError(f"unknown unit {self.unit!r}; choose from {', '.join(UNITS)}")
        if not self.throughput:
            raise RecordError("no throughput column: give --throughput COLUMN, or throughput in the mapping file")
        if bool(self.status) != bool(self.completed):
            raise RecordError("status (a column) and completed (its values for jobs that ran) must be given together")

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a mapping from a TOML file whose keys are the fields; ``workload`` may be a list of columns.

        Raises:
            RecordError: the file cannot be read, or is no such mapping.
        """
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read mapping file {path}: {error}") from error
        legal = {item.name for item in fields(cls)}
        unknown = sorted(found.keys() - legal)
        if unknown:
            raise RecordError(
                f"mapping file {path}: unknown key {unknown[0]!r}; choose from {', '.join(sorted(legal))}"
            )
        texts = {
            name: str(found.get(name, "")) for name in ("throughput", "program", "status", "time", "peak_memory_gib")
        }
        return cls(
            workload=named_columns(found.get("workload", [])),
            parameters=named_columns(found.get("parameters", [])),
            throughput=texts["throughput"],
            unit=str(found.get("unit", "tokens_per_second")),
            program=texts["program"],
            status=texts["status"],
            completed=_status_values(found.get("completed", []), path),
            out_of_memory=_status_values(found.get("out_of_memory", []), path),
            time=texts["time"],
            peak_memory_gib=texts["peak_memory_gib"],
        )

    @property
    def columns(self) -> set[str]:
        """Columns that a table must have."""
        single = {self.throughput, self.status, self.time, self.peak_memory_gib}
        return {*self.workload.values(), *self.parameters.values(), *single} - {""}


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Content of a table.

    Args:
        trials: trials of the well-formed rows, in their order.
        problems: line and cause of each malformed row.
        other_statuses: status of the jobs that neither ran nor ran out of memory -> number of jobs.
    """

    trials: list[Trial] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    other_statuses: Counter[str] = field(default_factory=Counter)


def _status_values(values: object, path: Path) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise RecordError(f"mapping file {path}: completed and out_of_memory must be lists, got {values!r:.60}")
    return tuple(map(str, values))


def named_columns(columns: object) -> dict[str, str]:
    """Return name -> column, from a mapping or from a list of ``column`` or ``name=column``.

    A column with a known alias gets the standard name.

    Raises:
        RecordError: the argument is neither, or a name occurs twice.

    >>> named_columns(["tp", "layers=depth", "seed"])
    {'tp_degree': 'tp', 'layers': 'depth', 'seed': 'seed'}
    """
    if isinstance(columns, dict):
        return {str(name): str(column) for name, column in columns.items()}
    if not isinstance(columns, list):
        raise RecordError(f"columns must be a list or a table of names, got {type(columns).__name__}")
    found: dict[str, str] = {}
    for text in map(str, columns):
        name, _, column = text.rpartition("=")
        name = name or standard_name(column)
        if name in found:
            raise RecordError(f"two columns are named {name}: {found[name]} and {column}")
        found[name] = column
    return found


def read_table(path: Path, mapping: TableMapping) -> ReadTable:
    """Read the trials of a CSV file with a header; malformed rows are reported and the others kept.

    Trial ids are digests of the rows, so that importing is idempotent: a table imported twice counts once.

    Raises:
        RecordError: the file cannot be read, or lacks a column.
    """
    table, seen = ReadTable(), Counter[str]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = sorted(mapping.columns - set(reader.fieldnames or ()))
            if missing:
                raise RecordError(f"{path}: no column {missing[0]!r}; choose from {', '.join(reader.fieldnames or ())}")
            for row in reader:
                try:
                    table.trials.append(_trial(row, mapping, seen, default_program=path.stem))
                    if table.trials[-1].state is State.UNKNOWN:
                        table.other_statuses[row[mapping.status].strip()] += 1
                except RecordError as error:
                    table.problems.append(f"line {reader.line_num}: {error}")
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"cannot read {path}: {error}") from error
    return table


def _trial(row: Mapping[str, str], mapping: TableMapping, seen: Counter[str], *, default_program: str) -> Trial:
    if None in row or None in row.values():
        raise RecordError("the number of fields differs from the header")
    workload = _values(row, mapping.workload)
    workload.setdefault("program", mapping.program or default_program)
    config = _values(row, mapping.parameters)
    if not config:
        raise RecordError("no parameter has a value")
    state = _state(row, mapping)
    measurement = _measurement(row, mapping, {**config, **workload}) if state is State.COMPLETED else None
    digest = hashlib.sha256(json.dumps([workload, config, sorted(row.items())], default=str).encode()).hexdigest()[:16]
    seen[digest] += 1
    return Trial(
        trial_id=f"import-{digest}" + (f"-{seen[digest]}" if seen[digest] > 1 else ""),
        workload=freeze_values(workload, where="workload"),
        config=freeze_values(config, where="config"),
        state=state,
        measurement=measurement,
        origin=Origin.IMPORT,
        started_at=_sortable_time(row[mapping.time].strip()) if mapping.time else "",
    )


def _state(row: Mapping[str, str], mapping: TableMapping) -> State:
    if not mapping.status:
        return State.COMPLETED
    status = row[mapping.status].strip().lower()
    if status in map(str.lower, mapping.completed):
        return State.COMPLETED
    return State.OUT_OF_MEMORY if status in map(str.lower, mapping.out_of_memory) else State.UNKNOWN


def _sortable_time(text: str) -> str:
    """Return a time as sortable text: ISO 8601, in UTC where the text has a time zone.

    Raises:
        RecordError: the text is no time.

    >>> [_sortable_time(text) for text in ("2025-03", "2025-03-10", "2025-03-10T01:00:00+02:00", "")]
    ['2025-03', '2025-03-10', '2025-03-09T23:00:00Z', '']
    """
    if text.lower() in _MISSING or re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", text):
        return "" if text.lower() in _MISSING else text
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (OverflowError, ValueError) as error:  # OverflowError: outside the years of datetime in UTC
        raise RecordError(f"the time must be ISO 8601, such as 2025-03-10, got {text!r:.60}") from error
    if moment.tzinfo is not None:
        return moment.isoformat().replace("+00:00", "Z")
    return text if len(text) == len("2025-03-10") else moment.isoformat()


def _measurement(row: Mapping[str, str], mapping: TableMapping, facts: Mapping[str, Scalar]) -> Measurement:
    objective, per_device = UNITS[mapping.unit]
    value = _positive(row, mapping.throughput)
    if per_device:
        devices = facts.get("world_size")
        if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
            raise RecordError("a throughput per device needs world_size, a whole number >= 1")
        value *= devices
    peak = mapping.peak_memory_gib
    return Measurement(
        tokens_per_second=value if objective == "tokens_per_second" else None,
        samples_per_second=value if objective == "samples_per_second" else None,
        peak_memory_gib=_positive(row, peak) if peak and row[peak].strip().lower() not in _MISSING else None,
    )


def _positive(row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RecordError(f"{column} must be a positive number, got {row[column]!r:.60}")
    return value


def _values(row: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, Scalar]:
    cells = {name: row[column].strip() for name, column in columns.items()}
    known = {name: text for name, text in cells.items() if text.lower() not in _MISSING}
    return {name: _parameter_count(text) if name == "n_params" else _value(text) for name, text in known.items()}


def _parameter_count(text: str) -> Scalar:
    """Parse a parameter count, with an optional suffix M, B or T.

    >>> [_parameter_count(text) for text in ("7B", "1.3 b", "350M", "7000000000", "large")]
    [7000000000, 1300000000, 350000000, 7000000000, 'large']
    """
    found = re.fullmatch(r"([\d.]+)\s*([MBT])", text, flags=re.IGNORECASE)
    if found is None or found[1].count(".") > 1 or found[1] == ".":
        return _value(text)
    return _value(str(float(found[1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[found[2].upper()]))


def _value(text: str) -> Scalar:
    """Parse a cell as a boolean, a number or a text.

    >>> [_value(text) for text in ("8", "8.0", "0.5", "True", "bf16", "inf")]
    [8, 8, 0.5, True, 'bf16', 'inf']
    """
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
