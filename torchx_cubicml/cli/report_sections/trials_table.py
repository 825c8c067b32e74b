"""Columns of the report's table of trials, and of the details of each: all that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torchx_cubicml.records.kept_command import WORDS, command_text
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.suggestion import promised_round, promised_throughput
from torchx_cubicml.records.trial import Measurement
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.report.sections.all_trials import trials_html
from torchx_cubicml.report.table_columns import Column

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.report.markup import Html
    from torchx_cubicml.report.table_columns import Cell

_MOST_PARAMETERS = 8  # columns of the table; the others are in the details
_MOST_LETTERS = 2000  # of one text
_TWO_SIDED_90 = 164.5  # per cent of a standard deviation


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
        Column(name="reason", values=[_text(trial.reason) or None for trial in found], is_shown=True),
        Column(name=_unit(objective), values=[_number(trial.throughput(objective)) for trial in found], is_shown=True),
        Column(name="± %", values=[_doubt(trial, objective) for trial in found], is_shown=True),
        Column(
            name="predicted",
            values=[_number(promised_throughput(trial.suggestion, objective)) for trial in found],
            is_shown=True,
        ),
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
    rows = [dict(_recorded(trial)) for trial in trials]
    names = dict.fromkeys(name for row in rows for name in row)
    return [Column(name=printable(name), values=[_cell(row.get(name)) for row in rows]) for name in names]


def _recorded(trial: Trial) -> list[tuple[str, Any]]:
    """Return name and value of each recorded fact of a trial, its config and its reason left out."""
    rows: list[tuple[str, Any]] = []
    for group in (each.name for each in fields(trial) if each.name not in {"config", "reason"}):
        value = getattr(trial, group)
        if group == "command":
            rows.append((group, command_text(trial.command) or None))
        if isinstance(value, Measurement):
            value = {each.name: getattr(value, each.name) for each in fields(value)}
        if isinstance(value, Mapping):
            rows += [(f"{group}.{name}", item) for name, item in value.items() if (group, name) != ("command", WORDS)]
        else:
            rows.append((group, value))
    return [(name, value) for name, value in rows if value not in (None, "", ())]


def _cell(value: Hashable) -> Cell:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float):
            return _number(value)
        return value if abs(value) <= 2**53 else str(value)  # JavaScript has no larger whole number
    return _value_text(value)


@lru_cache(maxsize=65_536)  # most values recur in a store
def _value_text(value: Hashable) -> str:
    return _text(value_text(value))


def _text(text: str) -> str:
    text = printable(mask(text[: 2 * _MOST_LETTERS]))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}… (cut)"
