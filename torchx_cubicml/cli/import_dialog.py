"""Dialog of ``history import``: proposes a mapping, asks what is ambiguous, and waits for a confirmation."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import agreed, print_json, typed
from torchx_cubicml.cli.jobs_table.column_roles import MICRO_BATCH_TIMES, OUTCOME, UNITS
from torchx_cubicml.cli.jobs_table.given_mapping import GivenMapping
from torchx_cubicml.cli.jobs_table.layouts import split_columns
from torchx_cubicml.cli.jobs_table.mapping import MappingFields, TableMapping, column_names, fact_values, named_columns
from torchx_cubicml.cli.jobs_table.proposal import propose_columns
from torchx_cubicml.cli.jobs_table.proposal_text import (
    left_over_lines,
    proposal_json,
    proposal_rows,
    question_lines,
    ready_command,
    skipped_lines,
)
from torchx_cubicml.cli.jobs_table.rates import missing_for_steps
from torchx_cubicml.cli.jobs_table.table_trials import table_trials
from torchx_cubicml.cli.table_formats.registry import read_source
from torchx_cubicml.cli.terminal import fitted, open_console, say
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.redaction import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence

    from rich.table import Table

    from torchx_cubicml.cli.jobs_table.proposal import ColumnPlan
    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.jobs_table.table_trials import ReadTable

_READING, _EXAMPLE = "reading", "example"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedMapping:
    """Mapping of a table that the user gave or confirmed.

    Args:
        source: the table.
        mapping: of its columns.
        remarks: what is not imported, for the summary.
    """

    source: SourceTable
    mapping: TableMapping
    remarks: tuple[str, ...]

    def read(self) -> ReadTable:
        """Return the trials of the table."""
        return table_trials(self.source, self.mapping)


def confirmed_mapping(args: argparse.Namespace) -> ConfirmedMapping | None:
    """Return the mapping of the table; ``None`` if it was proposed and is not confirmed.

    Raises:
        RecordError: the table or an option is not legal.
    """
    source, given = read_source(args.table, args.format), _given(args)
    if not {*given.named(), *given.text} - {*source.headings}:  # a column that is named stays in one piece
        source = _split(source, given)
    else:
        source, _ = split_columns(source)
    given.check_columns(source)
    named = given.named()
    plans = propose_columns(source, named)
    if given.is_whole and not args.yes:
        mapping = given.joined(source, [plan for plan in plans if plan.is_given])
        remarks = (*source.notes, *_unused(source, plans, named), *_step_lines(plans, given))
        return ConfirmedMapping(source=source, mapping=mapping, remarks=remarks)
    return _confirmed(args, source, given, plans)


def _split(source: SourceTable, given: GivenMapping) -> SourceTable:
    split, origin = split_columns(source)
    return source if {*origin.values()} & {*given.named(), *given.text} else split


def _confirmed(
    args: argparse.Namespace, source: SourceTable, given: GivenMapping, plans: list[ColumnPlan]
) -> ConfirmedMapping | None:
    asks = sys.stdin is not None and sys.stdin.isatty() and not args.json and not args.yes
    is_agreed = args.yes and not any(plan.choices for plan in plans)
    if args.json and not is_agreed:
        print_json({"imported": 0, **proposal_json(source, plans, given.text)})
    elif not is_agreed:
        _print_proposal(source, plans, given)
    plans = propose_columns(source, {**given.named(), **_answers(plans)}) if asks else plans
    _check_throughput(plans)
    if is_agreed or (asks and agreed(f"Import {len(source.rows)} rows as proposed?")):
        return _joined(source, given, plans)
    if not args.json and not asks:
        how = "answer the questions in <>, then run" if any(plan.choices for plan in plans) else "run"
        say(open_console(), f"nothing is imported yet; to import the table so, {how}:")
        sys.stdout.write(f"    {_command(args, plans)}\n")
    return None


def _joined(source: SourceTable, given: GivenMapping, plans: Sequence[ColumnPlan]) -> ConfirmedMapping:
    mapping, remarks = given.joined(source, plans), (*left_over_lines(source, plans), *_step_lines(plans, given))
    return ConfirmedMapping(source=source, mapping=mapping, remarks=(*source.notes, *remarks))


def _print_proposal(source: SourceTable, plans: Sequence[ColumnPlan], given: GivenMapping) -> None:
    console = open_console()
    console.print(fitted(console, partial(_proposal_table, source, plans, given), (_EXAMPLE,), flexible=_READING))
    lines = [*left_over_lines(source, plans), *skipped_lines(source), *question_lines(plans)]
    for line in [*source.notes, *lines, *_step_lines(plans, given)]:
        say(console, printable(line))


def _proposal_table(
    source: SourceTable, plans: Sequence[ColumnPlan], given: GivenMapping, without: Collection[str]
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = f"{source.place}: {len(source.rows)} rows, {len(source.headings)} columns"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    names = [name for name in ("column", "read as", _READING, _EXAMPLE) if name not in without]
    for name in names:
        table.add_column(name, overflow="fold")
    for row in proposal_rows(source, plans, given.text):
        table.add_row(*(Text(printable(cell)) for cell in row[: len(names)]))
    for name, value in given.facts.items():
        cells = (Text("--fact"), Text(name), Text("of every row"), Text(str(value)))
        table.add_row(*cells[: len(names)])
    return table


def _answers(plans: Sequence[ColumnPlan]) -> dict[str, str]:
    """Return column -> chosen name for each question, as the user types it."""
    found = {}
    for plan in plans:
        if plan.choices:
            legal = ", ".join(plan.choices)
            answer = typed(f"{plan.heading.text!r} {plan.reason}. Name ({legal}; empty to leave it out): ")
            while answer and answer not in plan.choices:
                answer = typed(f"Choose from {legal}, or nothing: ")
            found[plan.heading.text] = answer
    return found


def _check_throughput(plans: Sequence[ColumnPlan]) -> None:
    """Check that some column gives the throughput of a job.

    Raises:
        RecordError: none does.
    """
    if any({plan.name, *plan.choices} & {*UNITS} for plan in plans):
        return
    outcomes = ", ".join(plan.heading.text for plan in plans if plan.name == OUTCOME)
    other = f"; {outcomes} cannot stand in for it" if outcomes else ""
    raise RecordError(
        f"no column is a throughput or the time of a step{other}: give --map COLUMN=UNIT with one of {', '.join(UNITS)}"
    )


def _step_lines(plans: Sequence[ColumnPlan], given: GivenMapping) -> list[str]:
    """Return the line that steps alone are counted, where no column or fact tells the batch of a step."""
    names = {plan.name for plan in plans if plan.name} | {*given.facts}
    counted = next((plan for plan in plans if plan.name in (*MICRO_BATCH_TIMES, "steps_per_second")), None)
    if counted is None or any(plan.choices for plan in plans) or not (missing := missing_for_steps(names)):
        return []
    cure = "name one with --map, or give --fact gradient_accumulation_steps=1 or the like"
    return [f"{counted.heading.text!r} gives steps per second, and no samples: no column is {missing}; {cure}"]


def _unused(source: SourceTable, plans: Sequence[ColumnPlan], named: Mapping[str, str]) -> list[str]:
    """Return lines on the columns that the options do not name."""
    unused = [plan for plan in plans if plan.heading.text not in named]
    known = [f"{plan.heading.text!r} (looks like {plan.name})" for plan in unused if plan.name and plan.name != OUTCOME]
    lines = [f"not imported: {', '.join(known)}; --yes adds them"] if known else []
    return [*lines, *left_over_lines(source, [plan for plan in unused if not plan.name or plan.name == OUTCOME])]


def _command(args: argparse.Namespace, plans: Sequence[ColumnPlan]) -> str:
    options = [f"--map={text}" for text in args.map] + [f"--text={text}" for text in args.text]
    options += [f"--fact={text}" for text in args.fact]
    given = {name: getattr(args, name) for name in ("format", "mapping", *_OF_A_MAPPING, "store")}
    given["trust"] = args.trust if args.trust != Trust.OWN else ""
    options += [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]
    return ready_command(args.table, options, plans)


_OF_A_MAPPING = tuple(item.name for item in fields(MappingFields) if item.name not in {"text", "facts"})
"""Options that a mapping file states, too."""


def _given(args: argparse.Namespace) -> GivenMapping:
    if args.mapping:
        doubled = next((name for name in _OF_A_MAPPING if getattr(args, name)), "")
        if doubled:
            raise RecordError(f"give --{doubled.replace('_', '-')} or --mapping, not both: the file states it")
        given = GivenMapping.of(TableMapping.from_toml(Path(args.mapping)))
        facts = {**given.facts, **fact_values(args.fact)}
        return replace(given, columns=column_names(args.map), text=given.text | {*args.text}, facts=facts)
    return GivenMapping(
        workload=named_columns(_words(args.workload)),
        parameters=named_columns(_words(args.parameters)),
        columns=column_names(args.map),
        throughput=args.throughput,
        unit=args.unit,
        program=args.program,
        status=args.status,
        completed=tuple(_words(args.completed)),
        out_of_memory=tuple(_words(args.out_of_memory)),
        time=args.time,
        peak_memory_gib=args.peak_memory_gib,
        text=frozenset(args.text),
        facts=fact_values(args.fact),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
