"""Sub-command ``torchx cubicml history``: lists, shows, imports and compacts the trials of a store."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from torchx_cubicml.cli import history_compact, history_import
from torchx_cubicml.cli.base import add_json, add_store, print_json, store_url, wide_console
from torchx_cubicml.cli.measurement_text import measurement_lines, throughput_text
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``list``, ``show``, ``import`` and ``compact``."""
    actions = parser.add_subparsers(dest="history_action", required=True, title="actions")
    listing = actions.add_parser("list", help="one line per trial, oldest first")
    listing.add_argument("--limit", type=int, default=50, help="trials at most, the latest (default 50; 0 for all)")
    showing = actions.add_parser("show", help="everything known of one trial")
    showing.add_argument("trial_id", help="trial id, or the beginning of one")
    importing = actions.add_parser("import", help="bring in a table of past jobs, or the trials that a log holds")
    history_import.add_arguments(importing)
    folding = actions.add_parser("compact", help="fold the events of past days into few objects; nothing is lost")
    history_compact.add_arguments(folding)
    for action in (listing, showing, importing, folding):
        add_store(action)
        add_json(action)


def run(args: argparse.Namespace) -> int:
    """Run the action: list, show, import or compact."""
    from torchx_cubicml.store import read_trials

    if args.history_action == "import":
        return history_import.run(args)
    if args.history_action == "compact":
        return history_compact.run(args)
    url = store_url(args)
    trials, warnings = read_trials(url, deadline_s=60.0)
    for warning in warnings:
        print(f"torchx-cubicml: {warning}", file=sys.stderr)  # noqa: T201 - the command line's own output
    trials.sort(key=lambda trial: (trial.started_at, trial.trial_id))
    if args.history_action == "show":
        _show(find_trial(trials, args.trial_id), as_json=args.json)
    else:
        chosen = trials[-args.limit :] if args.limit > 0 else trials
        _list(chosen, of=len(trials), url=url, as_json=args.json)
    return 0


def find_trial(trials: Sequence[Trial], prefix: str) -> Trial:
    """Return the trial whose id is ``prefix``, or the only one that begins with it.

    Raises:
        RecordError: no trial matches, or several do.
    """
    exact = [trial for trial in trials if trial.trial_id == prefix]
    found = exact or [trial for trial in trials if trial.trial_id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        raise RecordError(f"{len(found)} trials begin with {prefix!r}: {', '.join(t.trial_id for t in found[:5])}")
    raise RecordError(f"no trial {prefix!r} among the {len(trials)} of the store; `history list` names them")


def trial_json(trial: Trial) -> dict[str, object]:
    """Return a trial as JSON values, without empty fields."""
    return {name: value for name, value in asdict(trial).items() if value not in (None, "", {})}


def _list(trials: Sequence[Trial], *, of: int, url: str, as_json: bool) -> None:
    if as_json:
        print_json([trial_json(trial) for trial in trials])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=f"{len(trials)} of {of} trials in {mask(url)}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for heading in ("trial", "started (UTC)", "program", "state", "origin"):
        table.add_column(heading, no_wrap=True)
    table.add_column("throughput", justify="right", no_wrap=True)
    table.add_column("config", overflow="fold", min_width=20)
    for trial in trials:
        cells = (
            trial.trial_id,
            trial.started_at[:19].replace("T", " "),
            str(trial.workload.get("program", "")),
            str(trial.state),
            str(trial.origin),
            throughput_text(trial.measurement),
            config_text(trial.config),
        )
        table.add_row(*(Text(cell) for cell in cells))
    wide_console().print(table)


def _show(trial: Trial, *, as_json: bool) -> None:
    if as_json:
        print_json(trial_json(trial))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for index, line in enumerate(measurement_lines(trial.measurement)):
        table.add_row(Text("" if index else "measured"), Text(line))
    for name, value in trial_json(trial).items():
        if isinstance(value, dict):
            for inner, item in ((inner, item) for inner, item in value.items() if item not in (None, "", ())):
                table.add_row(Text(f"{name}.{inner}"), Text(value_text(item)))
        else:
            table.add_row(Text(name), Text(value_text(value)))
    wide_console().print(table)


def config_text(config: Mapping[str, object]) -> str:
    """Return a config on one line; runs of equal entries in a tuple are counted (run-length encoding).

    >>> config_text({"micro_batch_size": 8, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "FULL_SHARD")})
    'micro_batch_size=8 sharding_strategy=2xNO_SHARD,FULL_SHARD'
    """
    return " ".join(f"{name}={value_text(value)}" for name, value in config.items())


def value_text(value: object) -> str:
    """Return one value as text for people; see ``config_text``."""
    if not isinstance(value, tuple | list):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    runs: list[tuple[object, int]] = []
    for item in value:
        if runs and runs[-1][0] == item:
            runs[-1] = (item, runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    return ",".join(f"{count}x{value_text(item)}" if count > 1 else value_text(item) for item, count in runs)
