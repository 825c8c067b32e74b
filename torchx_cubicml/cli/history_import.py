"""Action ``torchx cubicml history import``: imports past jobs from a CSV table, or trials printed in a log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from torchx_cubicml.cli.csv_trials import ReadTable, TableMapping

_MAX_PRINTED = 20  # bad lines that are printed; the rest are counted
_MAX_STATUSES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file and the meaning of its columns."""
    parser.add_argument("table", nargs="?", default=None, help="CSV file with a header and one row per job")
    parser.add_argument("--log", default=None, metavar="FILE", help="import the trials printed in a job's log instead")
    parser.add_argument("--mapping", default=None, metavar="FILE", help="TOML file that replaces the options below")
    text = "columns of workload facts, comma-separated; name=COLUMN renames one"
    parser.add_argument("--workload", default="", metavar="COLUMNS", help=text)
    text = "columns of tunable parameters, comma-separated; name=COLUMN renames one"
    parser.add_argument("--parameters", default="", metavar="COLUMNS", help=text)
    parser.add_argument("--throughput", default="", metavar="COLUMN", help="column of the measured throughput")
    text = "tokens_per_second (default), samples_per_second, or either with _per_device"
    parser.add_argument("--unit", default="tokens_per_second", help=text)
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
    """Import the readable rows and print the problems; exit status 1 if no trial was found."""
    from pathlib import Path

    if bool(args.table) == bool(args.log):
        raise RecordError("give a CSV file or --log FILE, not both" if args.table else "give a CSV file or --log FILE")
    url = store_url(args)
    remarks: list[str] = []
    if args.log:
        n_new, n_known, problems = _from_log(Path(args.log), url)
    else:
        n_new, n_known, problems, remarks = _from_table(Path(args.table), url, _mapping(args))
    printed = problems[:_MAX_PRINTED]
    if len(problems) > _MAX_PRINTED:
        printed.append(f"and {len(problems) - _MAX_PRINTED} more")
    for line in [*printed, *remarks]:
        print(f"torchx-cubicml: {line}", file=sys.stderr)  # noqa: T201 - the command line's own output
    if args.json:
        payload = {"imported": n_new, "known": n_known, "problems": problems}
        print_json({**payload, "remarks": remarks} if remarks else payload)
    else:
        sys.stdout.write(f"imported {n_new} trials; {n_known} already known, {len(problems)} lines skipped\n")
    return 0 if n_new or n_known else 1


def _from_table(path: Path, url: str, mapping: TableMapping) -> tuple[int, int, list[str], list[str]]:
    from torchx_cubicml.cli.csv_trials import read_table
    from torchx_cubicml.predictors.roofline.coverage import estimated_roofline_facts, missing_roofline_facts
    from torchx_cubicml.store import TrialStore

    table, store = read_table(path, mapping), TrialStore(url)
    known = {trial.trial_id for trial in store}
    new = [trial for trial in table.trials if trial.trial_id not in known]
    for trial in new:
        store.add(trial)
    remarks = [_outcome_summary(table)] if table.trials else []
    remarks += [about(table.trials) for about in (missing_roofline_facts, estimated_roofline_facts)]
    return len(new), len(table.trials) - len(new), table.problems, [remark for remark in remarks if remark]


def _outcome_summary(table: ReadTable) -> str:
    from torchx_cubicml.records.trial import State

    n_ran = sum(trial.measurement is not None for trial in table.trials)
    n_out_of_memory = sum(trial.state is State.OUT_OF_MEMORY for trial in table.trials)
    summary = f"{len(table.trials)} rows: {n_ran} measured, {n_out_of_memory} out of memory"
    others = ", ".join(f"{status!r:.40} {count}" for status, count in table.other_statuses.most_common(_MAX_STATUSES))
    n_others = table.other_statuses.total()
    return f"{summary}, {n_others} failed for an unknown cause (status {others})" if others else summary


def _from_log(path: Path, url: str) -> tuple[int, int, list[str]]:
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
        store.append(event)
    n_new = len({event.trial_id for event in new.values()})
    return n_new, len({event.trial_id for event in events}) - n_new, problems


def _mapping(args: argparse.Namespace) -> TableMapping:
    from pathlib import Path

    from torchx_cubicml.cli.csv_trials import TableMapping, named_columns

    if args.mapping:
        return TableMapping.from_toml(Path(args.mapping))
    return TableMapping(
        workload=named_columns(_words(args.workload)),
        parameters=named_columns(_words(args.parameters)),
        throughput=args.throughput,
        unit=args.unit,
        program=args.program,
        status=args.status,
        completed=tuple(_words(args.completed)),
        out_of_memory=tuple(_words(args.out_of_memory)),
        time=args.time,
        peak_memory_gib=args.peak_memory_gib,
    )


def _words(text: str) -> Sequence[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
