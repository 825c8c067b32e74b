"""Action ``torchx cubicml history import``: imports past jobs from a table, or trials printed in a log."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.cli.history_merge import add_trust
from torchx_cubicml.cli.jobs_table.column_roles import UNITS
from torchx_cubicml.cli.option_choices import TABLE_FORMATS, add_choice
from torchx_cubicml.cli.progress import progress
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.provenance import Trust, least_trusted
from torchx_cubicml.records.redaction import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from torchx_cubicml.cli.jobs_table.table_trials import ReadTable

_MAX_PRINTED = 20  # bad lines that are printed; the rest are counted
_MAX_STATUSES = 5
_MAX_WORDS = 5  # unknown words of one fact that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file and the meaning of its columns."""
    text = (
        "path or URL of past jobs: a table (CSV, TSV, Markdown, JSON, JSON Lines, Parquet, xlsx) or a folder of runs "
        "(MLflow, W&B, DeepSpeed autotuning, logs of torchtitan or Megatron-LM)"
    )
    parser.add_argument("table", nargs="?", default=None, help=text)
    note = "default: by content and name"
    add_choice(parser, "--format", TABLE_FORMATS, "format of the table", note=note, default="")
    parser.add_argument("--log", default=None, metavar="FILE", help="import the trials printed in a job's log instead")
    text = "meaning of one column, such as 'tensor parallelism=tp_degree'; an empty name leaves it out; repeatable"
    parser.add_argument("--map", action="append", default=[], metavar="COLUMN=NAME", help=text)
    add_trust(parser, default=Trust.OWN, of="the imported trials")
    parser.add_argument("--yes", action="store_true", help="import as proposed, without asking")
    _add_mapping(parser)


def _add_mapping(parser: argparse.ArgumentParser) -> None:
    text = "column whose values are texts, such as releases 25.09 and 25.10; repeatable"
    parser.add_argument("--text", action="append", default=[], metavar="COLUMN", help=text)
    text = "fact of every row that no column holds, such as seq_len=4096; repeatable"
    parser.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=text)
    _add_mapping_arguments(parser)


def _add_mapping_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that a mapping file replaces."""
    parser.add_argument("--mapping", default=None, metavar="FILE", help="TOML file that replaces the options below")
    text = "columns of workload facts, comma-separated; name=COLUMN renames one"
    parser.add_argument("--workload", default="", metavar="COLUMNS", help=text)
    text = "columns of tunable parameters, comma-separated; name=COLUMN renames one"
    parser.add_argument("--parameters", default="", metavar="COLUMNS", help=text)
    text = "column of the measured throughput, or of the time of a step"
    parser.add_argument("--throughput", default="", metavar="COLUMN", help=text)
    note = "default: as the heading says, else tokens_per_second"
    add_choice(parser, "--unit", UNITS, "unit of that column", note=note, default="")
    text = "program trained, if no workload column holds it (default: the file's name)"
    parser.add_argument("--program", default="", help=text)
    parser.add_argument("--status", default="", metavar="COLUMN", help="column of the job's status")
    text = "status values of jobs that ran, comma-separated"
    parser.add_argument("--completed", default="", metavar="VALUES", help=text)
    text = "status values of jobs that ran out of memory, comma-separated"
    parser.add_argument("--out-of-memory", default="", metavar="VALUES", help=text)
    parser.add_argument("--time", default="", metavar="COLUMN", help="column of the job's start, ISO 8601")
    text = "column of the largest memory of one device, GiB"
    parser.add_argument("--peak-memory-gib", default="", metavar="COLUMN", help=text)


def run(args: argparse.Namespace) -> int:
    """Import the readable rows and print the problems; exit status 1 if no trial was found or none was confirmed."""
    from pathlib import Path

    if bool(args.table) == bool(args.log):
        raise RecordError("give a table or --log FILE, not both" if args.table else "give a table or --log FILE")
    url = store_url(args)
    remarks: list[str] = []
    if args.log:
        n_new, n_known, problems = _from_log(Path(args.log), url, Trust(args.trust))
    else:
        from torchx_cubicml.cli.import_dialog import confirmed_mapping

        confirmed = confirmed_mapping(args)
        if confirmed is None:
            return 1
        n_new, n_known, problems, remarks = _from_table(
            confirmed.read(), confirmed.remarks, url, Trust(args.trust), is_json=args.json
        )
    printed = problems[:_MAX_PRINTED]
    if len(problems) > _MAX_PRINTED:
        printed.append(f"and {len(problems) - _MAX_PRINTED} more")
    for line in [*printed, *remarks]:
        print(f"torchx-cubicml: {printable(line)}", file=sys.stderr)  # noqa: T201 - the command line's own output
    if args.json:
        payload = {"imported": n_new, "known": n_known, "problems": problems}
        print_json({**payload, "remarks": remarks} if remarks else payload)
    else:
        say(open_console(), f"imported {n_new} trials; {n_known} already known, {len(problems)} lines skipped")
    return 0 if n_new or n_known else 1


def _from_table(
    table: ReadTable, before: Sequence[str], url: str, trust: Trust, *, is_json: bool
) -> tuple[int, int, list[str], list[str]]:
    from torchx_cubicml.predictors.roofline.coverage import (
        assumed_roofline_facts,
        estimated_roofline_facts,
        missing_roofline_facts,
    )
    from torchx_cubicml.store import TrialStore

    store = TrialStore(url)
    known = {trial.trial_id for trial in store}
    new = [trial for trial in table.trials if trial.trial_id not in known]
    with progress("importing trials", is_json=is_json) as report:
        for number, trial in enumerate(new):
            report(number, len(new))
            store.add(replace(trial, trust=trust))
    remarks = [*before, *table.disagreements, *_unknown_words(table), *_gaps(table)]
    if table.trials:
        remarks.append(_outcome_summary(table))
        told = (missing_roofline_facts, estimated_roofline_facts, assumed_roofline_facts)
        remarks += [about(table.trials) for about in told]
    return len(new), len(table.trials) - len(new), table.problems, [remark for remark in remarks if remark]


def _gaps(table: ReadTable) -> list[str]:
    named = ", ".join(f"{name} ({count})" for name, count in table.gaps.most_common())
    return [f"rows without a value: {named}"] if named else []


def _unknown_words(table: ReadTable) -> list[str]:
    lines = []
    for name, words in table.unknown_words.items():
        named = ", ".join(f"{word!r:.40} ({count} rows)" for word, count in words.most_common(_MAX_WORDS))
        more = f" and {len(words) - _MAX_WORDS} more" if len(words) > _MAX_WORDS else ""
        lines.append(f"{name} keeps words that are no standard ones, each as its own category: {named}{more}")
    return lines


def _outcome_summary(table: ReadTable) -> str:
    from torchx_cubicml.records.trial import State

    n_ran = sum(trial.measurement is not None for trial in table.trials)
    n_out_of_memory = sum(trial.state is State.OUT_OF_MEMORY for trial in table.trials)
    summary = f"{len(table.trials)} rows: {n_ran} measured, {n_out_of_memory} out of memory"
    others = ", ".join(f"{status!r:.40} {count}" for status, count in table.other_statuses.most_common(_MAX_STATUSES))
    n_others = table.other_statuses.total()
    return f"{summary}, {n_others} failed for an unknown cause (status {others})" if others else summary


def _from_log(path: Path, url: str, trust: Trust) -> tuple[int, int, list[str]]:
    from torchx_cubicml.recorder.events.printed_trials import printed_events
    from torchx_cubicml.store import TrialStore

    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            events, problems = printed_events(file)
    except (OSError, ValueError) as error:  # ValueError: an illegal path
        raise RecordError(f"cannot read {path}: {error}") from error
    store = TrialStore(url)
    known = {trial.trial_id for trial in store if trial.state.ended}
    new = {(event.trial_id, event.attempt): event for event in events if event.trial_id not in known}
    for event in new.values():
        store.append(replace(event, trust=least_trusted((event.trust, trust))))
    n_new = len({event.trial_id for event in new.values()})
    return n_new, len({event.trial_id for event in events}) - n_new, problems
