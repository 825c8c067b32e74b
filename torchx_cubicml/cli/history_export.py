"""Action ``torchx cubicml history export``: writes the trials of a store to another one, on demand anonymously."""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import agreed, print_json, store_url
from torchx_cubicml.cli.history_merge import merge_json
from torchx_cubicml.cli.progress_bar import progress, read_store
from torchx_cubicml.cli.terminal import fitted, open_console, say
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

    from torchx_cubicml.records.anonymous import AnonymousTrials
    from torchx_cubicml.records.trial import Trial

_MAX_EXAMPLES = 3  # distinct values of a field that are shown
_MAX_EXAMPLE = 40  # characters of one
_TRIALS, _EXAMPLES = "trials", "examples"  # columns
_TEXTS = ("trial_id", "reason", "started_at", "ended_at")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the target, ``--anonymous`` and ``--yes``."""
    parser.add_argument("target", metavar="TARGET", help="store to write: a folder or fsspec URL")
    text = "leave out hosts, users, paths, programs, commands and all other texts of yours; shows first what is left"
    parser.add_argument("--anonymous", action="store_true", help=text)
    parser.add_argument("--yes", action="store_true", help="write an anonymous export without asking")


def run(args: argparse.Namespace) -> int:
    """Write the export; exit status 1 if an anonymous one was not confirmed."""
    from torchx_cubicml.store import TrialStore
    from torchx_cubicml.store.merge import merge_into
    from torchx_cubicml.store.presence import check_store, check_target

    source, target = TrialStore(store_url(args)), TrialStore(args.target)
    if source.url == target.url:
        raise StoreError(f"the target must be another store than {mask(source.url)}")
    check_target(target.url)
    if args.anonymous:
        return _export_anonymously(source.url, target.url, args)
    check_store(source.url)
    with progress("exporting events", is_json=args.json) as report:
        result = merge_into(target, source, trust=Trust.OWN, report=report)
    _warn(result.warnings)
    if args.json:
        print_json(merge_json(source.url, result))
    else:
        n_trials = len(result.new) + len(result.completed) + result.n_known
        text = f"exported {n_trials} trials of {mask(source.url)} to {mask(target.url)}, with all they hold"
        say(open_console(), text)
    return 0


def _export_anonymously(source: str, target: str, args: argparse.Namespace) -> int:
    from torchx_cubicml.predictors.features.device_specs import find_hardware
    from torchx_cubicml.records.anonymous import anonymous_trials
    from torchx_cubicml.store import TrialStore

    if any(True for _ in TrialStore(target).events()):
        raise StoreError(f"an anonymous export needs a new store, and {mask(target)} holds trials; merge it afterwards")
    trials, warnings = read_store(source, is_json=args.json)
    _warn(warnings)

    def device_name(text: str) -> str:
        found = find_hardware(text)
        return found.name if found is not None else ""

    export = anonymous_trials(trials, device_name=device_name)
    fields = list(field_rows(export.trials))
    if not args.json:
        _print_fields(fields, export, n_read=len(trials))
    if not (args.yes or _is_confirmed(len(export.trials), target, args)):
        if args.json:
            print_json({"exported": 0, **_fields_json(fields, export)})
        else:
            say(open_console(), "nothing is written; --yes writes it without asking")
        return 1
    store = TrialStore(target)
    in_order = sorted(export.trials, key=lambda trial: trial.trial_id)  # random ids: their order tells nothing
    with progress("exporting trials", is_json=args.json) as report:
        for number, trial in enumerate(in_order):
            report(number, len(in_order))
            store.add(trial)
    if args.json:
        print_json({"exported": len(export.trials), **_fields_json(fields, export)})
    else:
        say(open_console(), f"exported {len(export.trials)} trials to {mask(target)}")
    return 0


def _is_confirmed(n_trials: int, target: str, args: argparse.Namespace) -> bool:
    is_asked = sys.stdin is not None and sys.stdin.isatty() and not args.json
    return is_asked and agreed(f"Write {n_trials} trials with these fields to {mask(target)}?")


def field_rows(trials: Sequence[Trial]) -> Iterator[tuple[str, int, str]]:
    """Yield each field that the trials hold, with the number of trials that have it and examples of its values."""
    counts: defaultdict[str, int] = defaultdict(int)
    examples: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for trial in trials:
        for name, value in _fields(trial):
            counts[name] += 1
            if len(examples[name]) < _MAX_EXAMPLES:
                examples[name][value_text(value)[:_MAX_EXAMPLE]] = None
    for name, count in counts.items():
        yield name, count, "; ".join(examples[name])


def _fields(trial: Trial) -> Iterator[tuple[str, object]]:
    measurement = {name: getattr(trial.measurement, name, None) for name in _measured_names()}
    groups: dict[str, Mapping[str, object]] = {
        "workload": trial.workload,
        "config": trial.config,
        "observed": trial.observed,
        "measurement": measurement,
        "provenance": trial.provenance,
    }
    yield from ((name, getattr(trial, name)) for name in _TEXTS if getattr(trial, name))
    yield from ((name, str(getattr(trial, name))) for name in ("state", "origin", "trust"))
    yield "attempts", trial.attempts
    for group, values in groups.items():
        yield from ((f"{group}.{name}", value) for name, value in values.items() if value not in (None, "", ()))


def _measured_names() -> Iterable[str]:
    from torchx_cubicml.records.measurement import Measurement

    return Measurement.__dataclass_fields__


def _print_fields(rows: Sequence[tuple[str, int, str]], export: AnonymousTrials, *, n_read: int) -> None:
    console = open_console()
    title = f"{len(export.trials)} of {n_read} trials would hold:"
    console.print(fitted(console, partial(_fields_table, rows, title), (_TRIALS,), flexible=_EXAMPLES))
    if export.renamed:
        names = ", ".join(f"{printable(name)} -> {pseudonym}" for name, pseudonym in export.renamed.items())
        say(console, f"renamed, with ranks for numbers: {names}")
    if export.left_out:
        say(console, f"left out of what was observed: {', '.join(map(printable, export.left_out))}")
    say(console, "left out of each trial: arguments, digests, suggestion, owner, commit, command; planned trials")


def _fields_table(rows: Sequence[tuple[str, int, str]], title: str, without: Collection[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("field", no_wrap=True)
    if _TRIALS not in without:
        table.add_column(_TRIALS, justify="right", no_wrap=True)
    table.add_column(_EXAMPLES, overflow="fold")
    for name, count, examples in rows:
        counted = [] if _TRIALS in without else [str(count)]
        table.add_row(*map(Text, (name, *counted, examples)))
    return table


def _fields_json(rows: Sequence[tuple[str, int, str]], export: AnonymousTrials) -> dict[str, object]:
    return {
        "fields": {name: {"trials": count, "examples": examples} for name, count, examples in rows},
        "renamed": dict(export.renamed),
        "left_out": list(export.left_out),
    }


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"torchx-cubicml: {line}", file=sys.stderr)  # noqa: T201 - the command line's own output
