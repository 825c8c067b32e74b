"""Proposed mapping of a table as text for people and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.cells import COUNTS, blank_value, is_text_column, is_vocabulary, read_cell
from torchx_cubicml.cli.jobs_table.column_roles import (
    DEVICE_BATCH,
    GLOBAL_BATCH_TOKENS,
    OUTCOME,
    PEAK_MEMORY,
    PRECISION_SWITCH,
    STARTED_AT,
    STATUS,
    STEP_TIMES,
    UNITS,
)
from torchx_cubicml.cli.jobs_table.statuses import states_of_words
from torchx_cubicml.cli.jobs_table.written_numbers import memory_unit
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.standard_words import SWITCHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.jobs_table.proposal import ColumnPlan
    from torchx_cubicml.cli.jobs_table.source import SourceTable

_MOST_WORDS = 4  # values of one column that are shown
_MOST_NAMED = 12  # columns that a line names


def proposal_rows(source: SourceTable, plans: Sequence[ColumnPlan], text: frozenset[str]) -> list[tuple[str, ...]]:
    """Return column, name, reading and example of each column that is imported.

    Args:
        source: the table.
        plans: of its columns.
        text: columns that the user declared as texts.
    """
    rows: list[tuple[str, ...]] = []
    for plan in plans:
        if plan.name and plan.name != OUTCOME:
            reading = "text" if plan.heading.text in text else _reading(source, plan)
            rows.append((plan.heading.text, plan.name, reading, _example(source, plan, text)))
    return rows


def left_over_lines(source: SourceTable, plans: Sequence[ColumnPlan]) -> list[str]:
    """Return lines on the columns that are not imported: outcomes, those without a known name, and open questions."""
    outcomes = [plan.heading.text for plan in plans if plan.name == OUTCOME]
    lines = []
    if outcomes:
        named = ", ".join(outcomes[:_MOST_NAMED])
        more = f" and {len(outcomes) - _MOST_NAMED} more" if len(outcomes) > _MOST_NAMED else ""
        lines.append(f"outcomes, never used as facts: {named}{more}")
    left = [plan for plan in plans if not plan.name and not plan.choices]
    lines += [
        f"left over: {plan.heading.text!r} ({plan.reason}{_values_text(source, plan)})"
        for plan in left
        if plan.reason != "empty"
    ]
    empty = [plan.heading.text for plan in left if plan.reason == "empty"]
    return [*lines, *([f"empty: {', '.join(empty)}"] if empty else [])]


def skipped_lines(source: SourceTable) -> list[str]:
    """Return a line on the rows that cannot be read, with the first of them."""
    count = len(source.problems)
    return [f"cannot read {count} {source.counted}{'' if count == 1 else 's'}: {source.problems[0]}"] if count else []


def question_lines(plans: Sequence[ColumnPlan]) -> list[str]:
    """Return a line with the legal answers for each column that may have several names."""
    lines = []
    for plan in plans:
        if plan.choices:
            answers = " or ".join(f"--map {shlex.quote(f'{plan.heading.text}={name}')}" for name in (*plan.choices, ""))
            lines.append(f"column {plan.heading.text!r} {plan.reason}: give {answers}")
    return lines


def ready_command(place: str, words: Sequence[str], plans: Sequence[ColumnPlan]) -> str:
    """Return the command that imports the table as proposed; a question has its answers in angle brackets.

    Args:
        place: path or URL of the table.
        words: options that the user gave.
        plans: of the columns.
    """
    open_ = [(plan.heading.text, "|".join(plan.choices)) for plan in plans if plan.choices]
    answers = [f"--map {shlex.quote(f'{heading}=<{choices}>')}" for heading, choices in open_]
    given = [shlex.quote(word) for word in words if word != place]
    return " ".join(["torchx cubicml history import", shlex.quote(place), *given, *answers, "--yes"])


def proposal_json(source: SourceTable, plans: Sequence[ColumnPlan], text: frozenset[str]) -> dict[str, object]:
    """Return the proposal as JSON values."""
    rows = proposal_rows(source, plans, text)
    return {
        "proposed": [dict(zip(("column", "name", "reading", "example"), row, strict=True)) for row in rows],
        "questions": {plan.heading.text: list(plan.choices) for plan in plans if plan.choices},
        "outcomes": [plan.heading.text for plan in plans if plan.name == OUTCOME],
        "left_over": {plan.heading.text: plan.reason for plan in plans if not plan.name and not plan.choices},
        "skipped": list(source.problems),
    }


def _reading(source: SourceTable, plan: ColumnPlan) -> str:
    name, heading = plan.name, plan.heading
    fixed = {
        STATUS: _status_text(source, heading.text),
        STARTED_AT: "start of the job, ISO 8601",
        GLOBAL_BATCH_TOKENS: "tokens of a step, divided by seq_len",
        DEVICE_BATCH: "samples of a step on one data-parallel rank",
    }
    if name in fixed:
        return fixed[name]
    if name in {PEAK_MEMORY, "device_memory_gib"}:
        unit = memory_unit(heading.unit)
        return f"GiB, from {unit.upper().replace('I', 'i')}" if unit.startswith(("m", "k", "t", "byte")) else "GiB"
    if name in STEP_TIMES:
        unit = heading.unit or name.partition("_")[0]
        work = "micro batch" if name.endswith("micro_batch") else "step"
        return f"time of a {work} in {unit}; with the batch of a step it gives the throughput"
    if name in UNITS:
        return "throughput" + ("" if heading.scale == 1 else f", x {heading.scale:g}")
    return _kind(source, plan)


def _kind(source: SourceTable, plan: ColumnPlan) -> str:
    name, heading = plan.name, plan.heading
    if is_text_column(name, heading.text, source.known_cells(heading.text)):
        return "text"
    if name in COUNTS:
        return "whole number" + ("" if heading.scale == 1 else f", x {heading.scale:g}")
    if not is_vocabulary(name):
        return f"switch of {name.partition('=')[2]}" if name.startswith(PRECISION_SWITCH) else "as it stands"
    blank = blank_value(name, source.cells(heading.text))
    kind = "switch" if name in SWITCHES else "word"
    return kind if blank is None else f"{kind}; empty is {blank}"


def _example(source: SourceTable, plan: ColumnPlan, text: frozenset[str]) -> str:
    cells = list(dict.fromkeys(source.known_cells(plan.heading.text)))
    shown = []
    for cell in cells[: 1 if plan.name in COUNTS | {*UNITS, PEAK_MEMORY, STARTED_AT} else _MOST_WORDS]:
        try:
            is_text = plan.heading.text in text or is_text_column(plan.name, plan.heading.text, cells)
            value = cell if is_text else read_cell(plan.name, cell, plan.heading, decimal_comma=source.decimal_comma)[0]
        except RecordError:
            value = cell
        is_plain = str(value) == cell or plan.name in {*UNITS, PEAK_MEMORY, STARTED_AT, STATUS}
        shown.append(f"{cell:.40}" if is_plain else f"{cell:.40} -> {value}")
    return ", ".join(shown)


def _status_text(source: SourceTable, column: str) -> str:
    states = states_of_words(source.cells(column), heading=column)
    words = [
        f"{word:.24}: {'failed' if state is None or state == 'unknown' else state}" for word, state in states.items()
    ]
    return ", ".join(words[:_MOST_WORDS])


def _values_text(source: SourceTable, plan: ColumnPlan) -> str:
    distinct = len(set(source.known_cells(plan.heading.text)))
    return f", {distinct} values" if plan.reason.startswith("unknown heading") else ""
