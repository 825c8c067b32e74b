"""Sub-command ``torchx cubicml history``: lists, shows, imports, exports, merges and compacts trials of stores."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli import (
    history_compact,
    history_export,
    history_frontier,
    history_import,
    history_merge,
    history_repeat,
    history_rounds,
)
from torchx_cubicml.cli.base import CommandModule, add_json, add_store, print_json, store_url
from torchx_cubicml.cli.efficiency_text import efficiency_json, efficiency_lines, mfu_text
from torchx_cubicml.cli.embedding_text import PER_TABLE, table_lines
from torchx_cubicml.cli.history_filters import add_filters, filtered, find_trial
from torchx_cubicml.cli.measurement_text import measurement_lines, throughput_text
from torchx_cubicml.cli.observed_config import config_texts
from torchx_cubicml.cli.progress_bar import read_snapshot
from torchx_cubicml.cli.repeat_text import print_command, repeat_lines
from torchx_cubicml.cli.silence_text import silence_json, silence_line, silence_lines
from torchx_cubicml.cli.terminal import fitted, open_console, say
from torchx_cubicml.cli.uncertainty_text import uncertainty_text
from torchx_cubicml.records.crowding import as_reported, crowded_share, crowding_text, mean_launches_beside
from torchx_cubicml.records.kept_command import WORDS, command_text
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.resumption import RESUMED_FROM, resumed_from
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from rich.console import JustifyMethod
    from rich.table import Table

    from torchx_cubicml.records.trial import Trial

_ACTIONS: dict[str, CommandModule] = {
    "import": history_import,
    "compact": history_compact,
    "export": history_export,
    "merge": history_merge,
    "repeat": history_repeat,
    "rounds": history_rounds,
    "frontier": history_frontier,
}
_CONFIG, _PROGRAM = "config", "program"
_LEAST_RATE = 24  # columns of a throughput, which takes a third of wider tables
_LESS_IMPORTANT = ("origin", "MFU", RESUMED_FROM, "state", "trust", "started (UTC)")  # the least first
_LABELS = {"step_time_s": ("10 %", "median", "90 %")}  # of the entries of a value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions; ``list`` is the default."""
    actions = parser.add_subparsers(dest="history_action", title="actions (default: list)")
    listing = actions.add_parser("list", help="list trials, one per line, the newest first")
    text = "show the N most recent trials (default: 50; 0: all)"
    listing.add_argument("--limit", type=int, default=50, metavar="N", help=text)
    add_filters(listing)
    showing = actions.add_parser("show", help="show everything recorded about one trial")
    showing.add_argument("trial_id", help="trial id, or the beginning of one (see `history list`)")
    showing.add_argument("--all", action="store_true", help="show the digests of the command's texts, too")
    text = "print only the command that repeats the run, if the record keeps it (--keep-command)"
    showing.add_argument("--command", action="store_true", help=text)
    importing = actions.add_parser("import", help="import past jobs from a CSV file, or trials from a job's log")
    exporting = actions.add_parser("export", help="write the trials to another store, with --anonymous for strangers")
    folding = actions.add_parser("compact", help="merge old event files")
    merging = actions.add_parser("merge", help="add the trials of another store, each once")
    rounds = actions.add_parser("rounds", help="show the frontier and the rank correlation of each round of a tune")
    repeating = actions.add_parser("repeat", help="print the command that repeats the launch of a trial")
    frontier = actions.add_parser("frontier", help="show the configs that no other one surpasses in two objectives")
    others = {"import": importing, "export": exporting, "compact": folding, "merge": merging, "rounds": rounds}
    others |= {"repeat": repeating, "frontier": frontier}
    for name, action in others.items():
        _ACTIONS[name].add_arguments(action)
    for action in (listing, showing, *others.values()):
        if action is not merging:  # it names both stores
            add_store(action)
        add_json(action)
    parser.set_defaults(**vars(listing.parse_args([])), history_action="list")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    if args.history_action in _ACTIONS:
        return _ACTIONS[args.history_action].run(args)
    url = store_url(args)
    snapshot = read_snapshot(url, is_json=args.json)
    trials, warnings, last = snapshot.trials, snapshot.warnings, snapshot.last_events
    for warning in warnings:
        print(f"torchx-cubicml: {warning}", file=sys.stderr)  # noqa: T201 - the command line's own output
    if not trials and args.history_action == "list" and not (warnings or args.json):
        say(open_console(), f"store {mask(url)} is empty: no launch has been recorded in it")
        return 0
    trials.sort(key=lambda trial: (trial.started_at, trial.trial_id))
    if args.history_action == "show":
        trial = find_trial(trials, args.trial_id, store=url)
        if args.command and not args.json:
            print_command(trial)
            return 0
        if args.json:
            print_json(_json(trial, last, resumed_from(trial, trials)))
        else:
            _show(trial, trials, last, store=url, whole=args.all)
    else:
        chosen = filtered(trials, args)
        chosen = chosen[-args.limit :] if args.limit > 0 else chosen
        _list(chosen[::-1], of=trials, url=url, last=last, as_json=args.json)
    return 0


def trial_json(trial: Trial) -> dict[str, object]:
    """Return a trial as JSON values, without empty fields."""
    return {name: value for name, value in asdict(as_reported(trial)).items() if value not in (None, "", {})}


def _json(trial: Trial, last: Mapping[str, str], earlier: str) -> dict[str, object]:
    """Return all that is known of a trial, with the id of the launch that it goes on from."""
    known = {"efficiency": efficiency_json(trial), RESUMED_FROM: earlier}
    return {**trial_json(trial), **{name: value for name, value in known.items() if value}, **silence_json(trial, last)}


def _list(trials: Sequence[Trial], *, of: Sequence[Trial], url: str, last: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json([_json(trial, last, resumed_from(trial, of)) for trial in trials])
        return
    console, title = open_console(), f"{len(trials)} of {len(of)} trials in {mask(url)}, the newest first"
    if not trials:
        say(console, f"0 of {len(of)} trials in {mask(url)} pass the filters")
        return
    configs = [config_texts(trial) for trial in trials]
    shared = _shared(configs) if max(map(len, map(", ".join, configs))) > console.width // 2 else []
    rows = _rows(trials, of, [", ".join(text for text in each if text not in shared) for each in configs])
    console.print(fitted(console, partial(_trial_table, rows, title, console.width), _LESS_IMPORTANT, flexible=_CONFIG))
    if shared:
        say(console, f"the same in all that tell it: {', '.join(shared)}")
    for line in silence_lines(trials, last):
        say(console, line)


def _shared(configs: Iterable[Sequence[str]]) -> list[str]:
    """Return the values that several launches tell, and none otherwise.

    >>> _shared([["batch 2", "tp 1"], ["batch 4", "tp 1"], ["batch 4"]])
    ['tp 1']
    """
    known: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text in chain.from_iterable(configs):
        known[text.partition(" ")[0]][text] += 1
    return [text for counts in known.values() for text, count in counts.items() if len(counts) == 1 < count]


def _rows(trials: Sequence[Trial], of: Sequence[Trial], configs: Sequence[str]) -> list[dict[str, str]]:
    """Return column -> cell of each trial; the trust is empty where all are own."""
    beside = mean_launches_beside(of)
    shows_trust = any(trial.trust is not Trust.OWN for trial in trials)
    rows = []
    for trial, config in zip(trials, configs, strict=True):
        is_crowded = trial.measurement is not None and crowded_share(trial, beside=beside.get(id(trial), 0.0)) > 0
        rate = f"{throughput_text(trial.measurement)}{', crowded' if is_crowded else ''}"
        row = {
            "trial": short_id(trial.trial_id),
            "started (UTC)": trial.started_at[:16].replace("T", " "),
            _PROGRAM: str(trial.workload.get("program", "")),
            "state": _state(trial),
            "origin": str(trial.origin),
            "trust": str(trial.trust) if shows_trust else "",
            RESUMED_FROM: short_id(resumed_from(trial, of)),
            "throughput": _state(trial) if trial.measurement is None else rate,
            "MFU": mfu_text(trial),
            _CONFIG: config,
        }
        rows.append(row)
    return rows


def _state(trial: Trial) -> str:
    return str(trial.state).replace("_", " ")


def _trial_table(rows: Sequence[Mapping[str, str]], title: str, width: int, without: Collection[str]) -> Table:
    """Return the table; what would be wider than ``width`` goes on in the next line, and nothing is cut.

    The title names a program that all rows share.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    program, *others = {row[_PROGRAM] for row in rows}
    if not others:
        title, without = f"{title}; program {program}" if program else title, {*without, _PROGRAM}
    title_text = Text(printable(title), "table.title")
    table = Table(title=title_text, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in (name for name in rows[0] if name not in without and any(row[name] for row in rows)):
        justify: JustifyMethod = "right" if name in {"throughput", "MFU"} else "left"
        most = max(_LEAST_RATE, width // 3) if name == "throughput" else None
        wraps = name in {"throughput", _PROGRAM, _CONFIG}
        table.add_column(name, no_wrap=not wraps, overflow="fold", justify=justify, max_width=most)
    for row in rows:
        table.add_row(*(Text(printable(row[str(column.header)])) for column in table.columns))
    return table


def _show(trial: Trial, of: Sequence[Trial], last: Mapping[str, str], *, store: str, whole: bool) -> None:
    """Print the outcome and the config of a trial, then all that is known of it; digests only if ``whole``."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    crowding = crowding_text(trial, beside=mean_launches_beside(of).get(id(trial), 0.0))
    measured = measurement_lines(trial.measurement, observed=trial.observed)
    doubt = uncertainty_text(trial.measurement, crowded=bool(crowding))
    measured += [line for line in (crowding, doubt) if measured and line]
    first = {
        "trial": [short_id(trial.trial_id)],
        "state": [_state(trial), silence_line(trial, last)],
        "reason": [trial.reason],
        "measured": [*measured, *efficiency_lines(trial)],
        _CONFIG: [", ".join(config_texts(trial))],
        RESUMED_FROM: [short_id(resumed_from(trial, of))],
    }
    others = {name: value for name, value in trial_json(trial).items() if name not in {"trial_id", *first}}
    if trial.digests and not whole:
        others["digests"] = [f"{len(trial.digests)} of the command's texts (--all)"]
    for name, value in {**first, **others, "to repeat": repeat_lines(trial, store=store)}.items():
        for label, text in _dict_rows(name, value) if isinstance(value, dict) else _list_rows(name, value):
            table.add_row(Text(printable(label)), Text(printable(text)))
    open_console().print(table)


def _list_rows(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Return the rows of a value, or of lines: the first one has the name."""
    lines = filter(None, value) if isinstance(value, list) else [value_text(value)]
    return zip(chain([name], repeat("")), lines, strict=False)


def _dict_rows(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the rows of one group of facts; those of embedding tables have a row per table, not per fact."""
    lines = table_lines(values)
    for inner, item in values.items():
        if name == "command" and inner == WORDS:
            yield name, command_text(values)
        elif item not in (None, "", ()) and not (lines and inner in PER_TABLE):
            yield f"{name}.{inner}", _labelled_text(inner, item)
        if inner == "n_embedding_tables":
            yield from (("", line) for line in lines)


def _labelled_text(name: str, value: object) -> str:
    """Return one value as text, each entry with its label where it has one.

    >>> _labelled_text("step_time_s", (0.94, 1.21, 1.54))
    '0.94 (10 %), 1.21 (median), 1.54 (90 %)'
    """
    labels = _LABELS.get(name, ())
    if isinstance(value, tuple | list) and len(value) == len(labels):
        return ", ".join(f"{value_text(entry)} ({label})" for entry, label in zip(value, labels, strict=True))
    return value_text(value)
