"""Trials as one table of typed columns, for data frames: a row per trial, a column per fact.

A fact has its own name: the value from the workload, else as observed in the job, else as requested. A requested value
that differs from it has a second column, ``requested_`` before the name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.kept_command import command_text
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.objective_units import PER_COST, SOONEST_DONE
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.suggestion import promised_round, promised_throughput
from torchx_cubicml.records.trial import Origin, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from torchx_cubicml.records.trial import Trial

_CHOICES = {"state": tuple(State), "origin": tuple(Origin), "trust": tuple(Trust)}
_QUANTILES = ("step_time_s_p10", "step_time_s_p50", "step_time_s_p90")
_MOST_WHOLE = 2**63 - 1  # of a signed 64-bit number
_MOST_EXACT = 2**53  # whole numbers up to here have a float each
_REQUESTED = "requested_"


class ColumnKind(StrEnum):
    """Kind of the values of a column; each may be missing."""

    BOOLEAN = "boolean"
    WHOLE = "whole"  # of 64 bits
    REAL = "real"
    TEXT = "text"
    TIME = "time"  # with a zone, UTC
    CHOICE = "choice"  # a text of a closed set
    LIST = "list"  # of values of one kind, as a tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialColumn:
    """One column of the table.

    Args:
        name: unique in the table.
        kind: of its values.
        values: one per trial; ``None`` where there is none.
        choices: all legal values of a ``CHOICE``.
        items: kind of the items of a ``LIST``.
    """

    name: str
    kind: ColumnKind
    values: Sequence[Any]
    choices: tuple[str, ...] = ()
    items: ColumnKind = ColumnKind.TEXT


_RECORD = {
    "trial_id": ColumnKind.TEXT,
    "started_at": ColumnKind.TIME,
    "ended_at": ColumnKind.TIME,
    "state": ColumnKind.CHOICE,
    "reason": ColumnKind.TEXT,
    "origin": ColumnKind.CHOICE,
    "trust": ColumnKind.CHOICE,
    "launch_id": ColumnKind.TEXT,
    "attempts": ColumnKind.WHOLE,
    "round": ColumnKind.WHOLE,
    "command": ColumnKind.TEXT,
}
_MEASURED_KINDS = {
    "int": ColumnKind.WHOLE,
    "float": ColumnKind.REAL,
    "bool": ColumnKind.BOOLEAN,
    "str": ColumnKind.TEXT,
}
_MEASURED = {
    each.name: _MEASURED_KINDS[str(each.type).removesuffix(" | None")]
    for each in fields(Measurement)
    if each.name != "step_time_s"
} | dict.fromkeys(("steps_per_second", *_QUANTILES), ColumnKind.REAL)


def trial_columns(trials: Iterable[Trial]) -> list[TrialColumn]:
    """Return the columns, with a row for each trial, oldest first.

    Those of the record and of its measurement are always there; then come the predictions, and the facts that any trial
    has. A fact with the name of another column has its group before the name, such as ``workload.state``.

    Args:
        trials: of any workloads.
    """
    found = sorted(trials, key=lambda trial: (trial.started_at, trial.trial_id))
    tables = [
        _fixed([_record(trial) for trial in found], _RECORD),
        _fixed([_measured(trial.measurement) for trial in found], _MEASURED),
        _free([_predicted(trial) for trial in found]),
        _free([dict(trial.provenance) for trial in found]),
    ]
    columns = [column for table in tables for column in table]
    taken = {column.name for column in columns}
    facts = _free([_facts(trial, taken) for trial in found])
    return [*columns, *facts]


def _record(trial: Trial) -> dict[str, Any]:
    texts = {name: getattr(trial, name) for name in ("trial_id", "reason", "launch_id", "attempts")}
    return {
        **texts,
        "started_at": _time(trial.started_at),
        "ended_at": _time(trial.ended_at),
        **{name: str(getattr(trial, name)) for name in _CHOICES},
        "round": promised_round(trial.suggestion),
        "command": command_text(trial.command),
    }


def _measured(measurement: Measurement | None) -> dict[str, Any]:
    """Return the values of a measurement; one that no training can have is left out."""
    if measurement is None:
        return {}
    row = {name: getattr(measurement, name) for name in _MEASURED if name not in _QUANTILES}
    row |= {name: measurement.throughput(name) for name in ("tokens_per_second", "samples_per_second")}
    row |= {"peak_memory_gib": measurement.peak_gib, "power_watts": measurement.power}
    return row | dict(zip(_QUANTILES, measurement.step_time_s, strict=False))


def _predicted(trial: Trial) -> dict[str, Any]:
    """Return the throughput predicted for the launch, under the name of its unit."""
    unit = (trial.suggestion or {}).get("objective")
    if unit is None:
        return {"predicted_throughput": promised_throughput(trial.suggestion, "tokens_per_second")}
    known = isinstance(unit, str) and unit in {*PER_COST, SOONEST_DONE}
    return {f"predicted_{unit}": promised_throughput(trial.suggestion, str(unit))} if known else {}


def _facts(trial: Trial, taken: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for group in ("workload", "observed", "config"):
        for name, value in getattr(trial, group).items():
            if name in taken or name.startswith(_REQUESTED):
                row[f"{group}.{name}"] = value
            elif name not in row:
                row[name] = value
            elif group == "config" and row[name] != value:
                row[f"{_REQUESTED}{name}"] = value
    return row


def _time(text: str) -> datetime | None:
    parsed = parse_time(text)
    try:
        return parsed.astimezone(UTC) if parsed is not None else None
    except OverflowError:  # the first or the last day of the calendar, in another zone
        return None


def _fixed(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, ColumnKind]) -> list[TrialColumn]:
    return [
        TrialColumn(
            name=name,
            kind=kind,
            values=[None if row.get(name) in (None, "") else _converted(row[name], kind) for row in rows],
            choices=tuple(map(str, _CHOICES.get(name, ()))),
        )
        for name, kind in kinds.items()
    ]


def _free(rows: Sequence[Mapping[str, Any]]) -> list[TrialColumn]:
    """Return a column for each name of the rows that has a value, of the kind that all its values have."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        kind, items = _kind(values), ColumnKind.TEXT
        if kind is ColumnKind.LIST:
            items = _kind([item for value in values if value is not None for item in value])
        converted = [None if value is None else _converted(value, kind, items) for value in values]
        columns.append(TrialColumn(name=_text(name), kind=kind, values=converted, items=items))
    return columns


def _kind(values: Sequence[Any]) -> ColumnKind:
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if types == {bool}:
        return ColumnKind.BOOLEAN
    if types == {int} and max(map(abs, known)) <= _MOST_WHOLE:
        return ColumnKind.WHOLE
    if (
        float in types
        and types <= {int, float}
        and all(type(each) is float or abs(each) <= _MOST_EXACT for each in known)
    ):
        return ColumnKind.REAL
    return ColumnKind.LIST if types == {tuple} else ColumnKind.TEXT


def _converted(value: Any, kind: ColumnKind, items: ColumnKind = ColumnKind.TEXT) -> Any:
    if kind is ColumnKind.TEXT:
        return _text(value)
    if kind is ColumnKind.REAL:
        return float(value)
    return tuple(_converted(item, items) for item in value) if kind is ColumnKind.LIST else value


def _text(value: object) -> str:
    r"""Return a value as text: JSON where it is none, so that a column of several kinds stays readable.

    Half a surrogate, which stands for a byte of a file name that is no UTF-8, becomes its escape.

    >>> _text("bf16"), _text(("a", 1)), _text("x\udcff")
    ('bf16', '["a", 1]', 'x\\udcff')
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace").decode()
