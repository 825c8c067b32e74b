"""Sub-command ``torchx cubicml history``: lists, shows, imports, exports, merges and compacts trials of stores."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
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
from torchx_cubicml.cli.history_filters import add_filters, filtered, find_trial, short_ids
from torchx_cubicml.cli.measurement_text import measurement_lines, throughput_text
from torchx_cubicml.cli.observed_config import config_texts, differing_values
from torchx_cubicml.cli.progress_bar import read_snapshot
from torchx_cubicml.cli.repeat_text import print_command, repeat_lines
from torchx_cubicml.cli.silence_text import silence_json, silence_line, silence_lines
from torchx_cubicml.cli.terminal import fitted, open_console, say
from torchx_cubicml.cli.uncertainty_text import uncertainty_text
from torchx_cubicml.records.crowding import crowded_share, crowding_text, mean_launches_beside
from torchx_cubicml.records.kept_command import WORDS, command_text
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.resumption import RESUMED_FROM, resumed_from
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rich.console import JustifyMethod, OverflowMethod
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
_CONFIG = "config"
_LEAST_CONFIG = 30  # columns of a config that is cut, while another column can be left out
_LEAST_START = 12  # columns of a config beside nothing but the id and the throughput
_LEAST_RATE = 24  # columns of a throughput that is broken over lines
_GAP = 3  # columns between two of the table
_LESS_IMPORTANT = ("origin", "MFU", RESUMED_FROM, "program", "state", "trust", "started (UTC)")  # the least first
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
        beside = mean_launches_beside(trials).get(id(trial), 0.0)
        crowding, earlier = crowding_text(trial, beside=beside), resumed_from(trial, trials)
        _show(trial, store=url, crowding=crowding, earlier=earlier, last=last, as_json=args.json)
    else:
        chosen = filtered(trials, args)
        chosen = chosen[-args.limit :] if args.limit > 0 else chosen
        _list(chosen[::-1], of=trials, url=url, last=last, as_json=args.json)
    return 0


def trial_json(trial: Trial) -> dict[str, object]:
    """Return a trial as JSON values, without empty fields."""
    return {name: value for name, value in asdict(trial).items() if value not in (None, "", {})}


def _json(trial: Trial, last: Mapping[str, str], earlier: str) -> dict[str, object]:
    """Return all that is known of a trial, with the id of the launch that it goes on from."""
    known = {"efficiency": efficiency_json(trial), RESUMED_FROM: earlier}
    return {**trial_json(trial), **{name: value for name, value in known.items() if value}, **silence_json(trial, last)}


def _list(trials: Sequence[Trial], *, of: Sequence[Trial], url: str, last: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json([_json(trial, last, resumed_from(trial, of)) for trial in trials])
        return
    title = f"{len(trials)} of {len(of)} trials in {mask(url)}, the newest first"
    rows = _rows(trials, of)
    console = open_console()
    if not rows:
        say(console, f"0 of {len(of)} trials in {mask(url)} pass the filters")
        return
    console.print(fitted(console, partial(_trial_table, rows, title, console.width), (*_LESS_IMPORTANT, _CONFIG)))
    for line in silence_lines(trials, last, ids=short_ids(of)):
        say(console, line)


def _rows(trials: Sequence[Trial], of: Sequence[Trial]) -> list[dict[str, str]]:
    """Return column -> cell of each trial; the trust is empty where all are own."""
    ids, beside = short_ids(of), mean_launches_beside(of)
    shows_trust = any(trial.trust is not Trust.OWN for trial in trials)
    rows = []
    for trial in trials:
        is_crowded = trial.measurement is not None and crowded_share(trial, beside=beside.get(id(trial), 0.0)) > 0
        crowded = ", crowded" if is_crowded else ""
        rate = f"{throughput_text(trial.measurement)}{crowded}"
        row = {
            "trial": ids.get(trial.trial_id, trial.trial_id),
            "started (UTC)": trial.started_at[:16].replace("T", " "),
            "program": str(trial.workload.get("program", "")),
            "state": _state(trial),
            "origin": str(trial.origin),
            "trust": str(trial.trust) if shows_trust else "",
            RESUMED_FROM: ids.get(earlier := resumed_from(trial, of), earlier),
            "throughput": _state(trial) if trial.measurement is None else rate,
            "MFU": mfu_text(trial),
            _CONFIG: ", ".join(config_texts(trial)),
        }
        rows.append(row)
    return rows


def _state(trial: Trial) -> str:
    return str(trial.state).replace("_", " ")


def _trial_table(rows: Sequence[Mapping[str, str]], title: str, width: int, without: Collection[str]) -> Table:
    """Return the table; configs are cut where it would be wider than ``width``; ids and throughputs never are."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, columns in _widths(rows, width, without).items():
        justify: JustifyMethod = "right" if name in {"throughput", "MFU"} else "left"
        is_whole = name in {"trial", "throughput"}  # its end goes on the next line
        overflow: OverflowMethod = "fold" if is_whole else "ellipsis"
        table.add_column(name, no_wrap=not is_whole, overflow=overflow, justify=justify, width=columns)
    for row in rows:
        table.add_row(*(Text(printable(row[str(column.header)])) for column in table.columns))
    return table


def _widths(rows: Sequence[Mapping[str, str]], width: int, without: Collection[str]) -> dict[str, int]:
    """Return the width of each column; once no other one can be left out, the throughput gives, then the config."""
    from rich.cells import cell_len

    names = [name for name in rows[0] if name not in without and any(row[name] for row in rows)]
    widths = {name: max(len(name), *(cell_len(printable(row[name])) for row in rows)) for name in names}
    room, config = width - _GAP * (len(names) - 1), widths.pop(_CONFIG, 0)
    least = _LEAST_CONFIG
    if set(widths) == {"trial", "throughput"}:
        left, least = room - widths["trial"], _LEAST_START
        widths["throughput"] = min(widths["throughput"], max(left - min(config, _LEAST_CONFIG), _LEAST_RATE))
        if not config:
            widths["trial"] = min(widths["trial"], max(room - widths["throughput"], 1))
    return widths | ({_CONFIG: min(config, max(room - sum(widths.values()), least))} if config else {})


def _show(trial: Trial, *, store: str, crowding: str, earlier: str, last: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json(_json(trial, last, earlier))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    lines = measurement_lines(trial.measurement, observed=trial.observed)
    doubt = uncertainty_text(trial.measurement, crowded=bool(crowding))
    lines += [line for line in (crowding, doubt) if lines and line]
    for index, line in enumerate([*lines, *efficiency_lines(trial)]):
        table.add_row(Text("" if index else "measured"), Text(printable(line)))
    for name, value in (trial_json(trial) | ({RESUMED_FROM: earlier} if earlier else {})).items():
        if isinstance(value, dict):
            shown = {**value, **differing_values(trial)} if name == "config" else value
            for label, text in _dict_rows(name, shown):
                table.add_row(Text(printable(label)), Text(printable(text)))
        else:
            table.add_row(Text(name), Text(value_text(value)))
        if name == "state" and (silence := silence_line(trial, last)):
            table.add_row(Text(""), Text(silence))
    for index, line in enumerate(repeat_lines(trial, store=store)):
        table.add_row(Text("" if index else "to repeat"), Text(printable(line)))
    open_console().print(table)


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
