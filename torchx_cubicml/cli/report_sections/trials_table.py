"""Columns of the report's table of trials, and of the details of each: all that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torchx_cubicml.records.kept_command import WORDS, command_text
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.redaction import excerpt, printable
from torchx_cubicml.records.resumption import RESUMED_FROM, resumed_from
from torchx_cubicml.records.suggestion import promised_round, promised_throughput
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.report.sections.all_trials import trials_html
from torchx_cubicml.report.table_columns import Column

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.report.markup import Html
    from torchx_cubicml.report.table_columns import Cell

_MOST_PARAMETERS = 8  # columns of the table; the others are in the details
_MOST_LETTERS = 2000  # of one text
_MOST_WHOLE = 2**53  # JavaScript has no larger whole number
_TWO_SIDED_90 = 164.5  # per cent of a standard deviation
_ALL_GROUPS = tuple(each.name for each in fields(Trial))
_GROUPS = tuple(name for name in _ALL_GROUPS if name not in {"config", "reason"})  # those have columns of their own
_EMPTY: tuple[object, ...] = (None, "", (), {})
_MEASURED = tuple(each.name for each in fields(Measurement))


def section(view: WorkloadView) -> Html:
    """Return the table, with the details of each trial."""
    return trials_html(trial_columns(view.trials, objective=view.objective), name=f"trials-{view.place}")


def trial_columns(trials: Sequence[Trial], *, objective: str) -> list[Column]:
    """Return the columns, with a row for each trial, oldest first.

    Args:
        trials: of one workload.
        objective: name of the throughput.
    """
    found = sorted(trials, key=lambda trial: (trial.started_at, trial.trial_id))
    columns = [
        Column(name="launch", values=[*range(1, len(found) + 1)], is_shown=True),
        Column(name="outcome", values=[_outcome(trial) for trial in found], is_shown=True, is_choice=True),
        Column(name="reason", values=[_reason(trial) for trial in found], is_shown=True),
        Column(name=_unit(objective), values=[_number(trial.throughput(objective)) for trial in found], is_shown=True),
        Column(name="± %", values=[_doubt(trial, objective) for trial in found], is_shown=True),
        Column(
            name="predicted",
            values=[_number(promised_throughput(trial.suggestion, objective)) for trial in found],
            is_shown=True,
        ),
        Column(name=RESUMED_FROM, values=[resumed_from(trial, found) or None for trial in found], is_shown=True),
        Column(name="round", values=[promised_round(trial.suggestion) for trial in found], is_shown=True),
        *_parameters(found),
        Column(name="memory GiB", values=[_memory(trial) for trial in found], is_shown=True),
        *_facts(found),
    ]
    return [column for column in columns if any(value is not None for value in column.values)]


def _outcome(trial: Trial) -> str:
    return str(trial.state).replace("_", " ")


def _unit(objective: str) -> str:
    return objective.replace("_per_second", "/s").replace("_", " ")


def _doubt(trial: Trial, objective: str) -> float | None:
    doubt = trial.uncertainty(objective)
    return _number(_TWO_SIDED_90 * doubt) if doubt > 0.0 else None


def _memory(trial: Trial) -> float | None:
    return _number(trial.measurement.peak_gib) if trial.measurement is not None else None


def _number(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None else None


def _parameters(trials: Sequence[Trial]) -> list[Column]:
    """Return a column for each parameter; the first of those that differ are shown."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.config))
    columns = [(name, [_cell(trial.config.get(name)) for trial in trials]) for name in names]
    differ = [name for name, values in columns if len(set(values)) > 1]
    shown = set(differ[:_MOST_PARAMETERS])
    return [Column(name=printable(name), values=values, is_shown=name in shown) for name, values in columns]


def _facts(trials: Sequence[Trial]) -> list[Column]:
    """Return a column for each recorded fact, for the details."""
    columns: dict[str, list[Cell]] = {}
    for row, trial in enumerate(trials):
        for name, value in recorded_values(trial, _GROUPS):
            if name not in columns:
                columns[name] = [None] * len(trials)
            columns[name][row] = _cell(value)
    return [Column(name=printable(name), values=values) for name, values in columns.items()]


def recorded_values(trial: Trial, groups: Sequence[str] = _ALL_GROUPS) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each recorded fact of a trial; facts in a group are named ``group.name``."""
    for group in groups:
        value = getattr(trial, group)
        if value in _EMPTY:
            continue
        if group == "command":
            text = command_text(value)
            yield from ((group, text),) if text else ()
        if group == "measurement":
            value = {name: getattr(value, name) for name in _MEASURED}
        if isinstance(value, str | int | float | tuple) or not isinstance(value, Mapping):
            yield group, value
            continue
        prefix, left_out = f"{group}.", WORDS if group == "command" else None
        for name, item in value.items():
            if item is not None and item != "" and item != () and name != left_out:
                yield prefix + name, item


def _reason(trial: Trial) -> str | None:
    return excerpt(trial.reason, most=_MOST_LETTERS) or None


def _cell(value: Hashable) -> Cell:
    kind = type(value)
    if kind is int and isinstance(value, int):
        return value if -_MOST_WHOLE <= value <= _MOST_WHOLE else str(value)
    if isinstance(value, float):
        return _number(value)
    if value is None:
        return None
    entries = tuple(map(type, value)) if isinstance(value, tuple) else None
    return _value_text(value, kind, entries)


@lru_cache(maxsize=65_536)  # most values recur in a store
def _value_text(value: Hashable, kind: type, entries: tuple[type, ...] | None) -> str:
    """Return a value as text; its kinds are part of the cache's key, as ``True`` equals 1."""
    del kind, entries
    return excerpt(value_text(value), most=_MOST_LETTERS)
