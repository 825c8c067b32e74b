"""Action ``torchx cubicml history rounds``: prints, or draws, the frontier and the rank correlation of each round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import most_measured_objective, print_json, store_url, wide_console
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.cost import PER_DEVICE_HOUR
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.suggestion import promised_objective, promised_round
from torchx_cubicml.records.workload import PROJECT, is_same_workload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torchx_cubicml.predictors.round_table import RoundTable
    from torchx_cubicml.records.trial import Trial

_LARGE = 1000.0  # rates from here on are shown without decimals
_MOST_ON_PAGE = 20  # workloads of a page, those of most launches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--out``; the store and the output format are those of every action."""
    text = "draw the rounds, or the launches of a store without rounds, to FILE: .html, .svg or .png"
    parser.add_argument("--out", metavar="FILE", default="", help=text)


def run(args: argparse.Namespace) -> int:
    """Print one table per workload that was tuned in rounds; with ``--out``, draw figures besides."""
    from torchx_cubicml.predictors.round_table import round_table
    from torchx_cubicml.store.presence import read_recorded

    if args.out:
        _check_out(Path(args.out))
    url = store_url(args)
    groups = by_workload(read_recorded(url)[0])
    tuned = [group for group in groups if _has_rounds(group)]
    if not tuned and not (args.out and groups):
        raise StoreError(f"store {mask(url)} has no rounds: `tune --predictor NAME --rounds` records them")
    shown = tuned or groups
    objectives = [table_objective(group) for group in shown]
    tables = [round_table(group, objective=objective) for group, objective in zip(shown, objectives, strict=True)]
    if args.out:
        _draw(Path(args.out), list(zip(shown, tables, objectives, strict=True)), title=f"Launches in {mask(url)}")
    if args.json:
        print_json(
            [
                {"workload": dict(group[0].workload), "objective": objective, **table.to_json()}
                for group, objective, table in zip(shown, objectives, tables, strict=True)
            ]
        )
        return 0
    for group, objective, table in zip(shown, objectives, tables, strict=True):
        if _has_rounds(group):
            _print(str(group[0].workload.get("program", "")), objective, table)
    return 0


def _check_out(path: Path) -> None:
    from torchx_cubicml.report.rendering import check_format

    check_format(path)


def _draw(path: Path, workloads: Sequence[tuple[list[Trial], RoundTable, str]], *, title: str) -> None:
    """Draw the workloads of most launches: up to ``_MOST_ON_PAGE`` on a page, one on a picture."""
    from torchx_cubicml.cli.round_figures import section
    from torchx_cubicml.report.rendering import render

    by_size = sorted(workloads, key=lambda each: -len(each[0]))
    drawn = by_size[: _MOST_ON_PAGE if path.suffix.lower() == ".html" else 1]
    sections = [section(trials, table, objective=objective) for trials, table, objective in drawn]
    render(sections, path, title=printable(title))
    left_out = len(by_size) - len(drawn)
    many = f"{left_out} workload{'s' if left_out > 1 else ''}"
    more = f"; {many} with fewer launches left out" if left_out else ""
    print(f"torchx-cubicml: wrote {path}{more}", file=sys.stderr)  # noqa: T201 - the command line's own output


def by_workload(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of each workload; one with rounds holds all trials that agree with it, as for its tune."""
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        key = repr(sorted((name, value) for name, value in trial.workload.items() if name != PROJECT))
        alike.setdefault(key, []).append(trial)
    groups: list[list[Trial]] = []
    taken: set[str] = set()
    for group in sorted(alike.values(), key=_has_rounds, reverse=True):
        if group[0].trial_id in taken:
            continue
        whole = group
        if _has_rounds(group):
            whole = [trial for trial in trials if is_same_workload(trial, group[0].workload)]
            taken |= {trial.trial_id for trial in whole}
        groups.append(whole)
    return groups


def _has_rounds(trials: Sequence[Trial]) -> bool:
    return any(promised_round(trial.suggestion) is not None for trial in trials)


def table_objective(trials: Sequence[Trial]) -> str:
    """Return the unit of the table: the last round's, if it is per device hour; else the throughput most trials have.

    The price of a device hour is not recorded, so an objective per currency is not shown. Optimizer steps count where
    no trial has a throughput in another unit.
    """
    rounds = [trial for trial in trials if promised_round(trial.suggestion) is not None]
    latest = max(rounds, key=lambda trial: trial.started_at, default=trials[-1])
    objective = promised_objective(latest.suggestion)
    if objective in PER_DEVICE_HOUR:
        return str(objective)
    most = most_measured_objective(trials)
    return most if any(trial.throughput(most) is not None for trial in trials) else "steps_per_second"


def _print(program: str, objective: str, table: RoundTable) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from torchx_cubicml.cli.round_figures import objective_text

    title = f"Rounds of {printable(program)}, {objective_text(objective)}"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    shown.add_column("round", no_wrap=True)
    for heading in ("launches", "measured", "median", "best", "best so far", "Kendall's tau"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in table.rounds:
        rates = (_rate_text(rate) for rate in (each.median, each.best, each.best_so_far))
        cells = (str(each.number or "first"), str(each.launches), str(each.measured), *rates, _tau_text(each.tau))
        shown.add_row(*map(Text, cells))
    wide_console().print(shown)
    if table.tau is not None:
        sys.stdout.write(f"Kendall's tau between predicted and measured over all rounds: {table.tau:.2f}\n")


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate >= _LARGE else f"{rate:,.4g}"


def _tau_text(tau: float | None) -> str:
    return f"{tau:.2f}" if tau is not None else ""
