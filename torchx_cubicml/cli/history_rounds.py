"""Action ``torchx cubicml history rounds``: prints, or draws, the frontier and the rank correlation of each round."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.cli.progress_bar import read_store
from torchx_cubicml.cli.terminal import fitted, open_console, say
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Sequence

    from rich.table import Table

    from torchx_cubicml.predictors.round_table import RoundFigures, RoundTable
    from torchx_cubicml.predictors.tune_rounds import TuneRounds

_LARGE = 1000.0  # rates from here on are shown without decimals
_MOST_ON_PAGE = 20  # workloads of a page, those of most launches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--out``; the store and the output format are those of every action."""
    text = "draw the rounds, or the launches of a store without rounds, to FILE: .html, .svg or .png"
    parser.add_argument("-o", "--out", metavar="FILE", default="", help=text)


def run(args: argparse.Namespace) -> int:
    """Print one table per tune in rounds; with ``--out``, draw figures besides."""
    from torchx_cubicml.predictors.tune_rounds import tunes_of_store

    if args.out:
        _check_out(Path(args.out))
    url = store_url(args)
    trials, warnings = read_store(url, is_json=args.json)
    for warning in warnings:
        print(f"torchx-cubicml: {warning}", file=sys.stderr)  # noqa: T201 - the command line's own output
    found = tunes_of_store(trials)
    tunes = [each for each in found if each.n_tunes]
    if not tunes and not (args.out and found):
        raise StoreError(f"store {mask(url)} has no rounds: `tune --predictor NAME --rounds` records them")
    if args.out:
        _draw(Path(args.out), tunes or found, title=f"Launches in {mask(url)}")
    if args.json:
        print_json([_json(each) for each in tunes])
        return 0
    for each in tunes:
        _print(each)
    return 0


def _json(rounds: TuneRounds) -> dict[str, object]:
    named = {"tune": rounds.tune} if rounds.tune else {}
    return {
        "workload": dict(rounds.trials[0].workload),
        "objective": rounds.objective,
        **named,
        **rounds.table.to_json(),
    }


def _check_out(path: Path) -> None:
    from torchx_cubicml.report.rendering import check_format

    check_format(path)


def _draw(path: Path, tunes: Sequence[TuneRounds], *, title: str) -> None:
    """Draw the workloads of most launches: up to ``_MOST_ON_PAGE`` on a page, one on a picture."""
    from torchx_cubicml.plots.round_figures import section
    from torchx_cubicml.report.rendering import render

    by_size = sorted(tunes, key=lambda each: (-len(each.trials), -each.number))
    drawn = by_size[: _MOST_ON_PAGE if path.suffix.lower() == ".html" else 1]
    render([section(each) for each in drawn], path, title=printable(title))
    left_out = len(by_size) - len(drawn)
    many = f"{left_out} other{'s' if left_out > 1 else ''}"
    more = f"; {many} with fewer launches, or earlier, left out" if left_out else ""
    print(f"torchx-cubicml: wrote {path}{more}", file=sys.stderr)  # noqa: T201 - the command line's own output


def _print(rounds: TuneRounds) -> None:
    console, table = open_console(), rounds.table
    console.print(fitted(console, partial(_rounds_table, rounds), _LESS_IMPORTANT))
    if table.tau is not None:
        say(
            console,
            f"Kendall's tau between predicted and measured over all rounds: {table.tau:.2f} "
            f"(95 % of random orders: {_chance_text(table)})",
        )


def _rounds_table(rounds: TuneRounds, without: Collection[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from torchx_cubicml.plots.round_figures import heading, objective_text

    named = (heading(rounds.trials[0]), rounds.name, objective_text(rounds.objective))
    title = f"Rounds of {', '.join(filter(None, named))}"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in (name for name in _CELLS if name not in without):
        shown.add_column(name, justify="left" if name == _ROUND else "right", no_wrap=True)
    for each in rounds.table.rounds:
        shown.add_row(*(Text(cell(each)) for name, cell in _CELLS.items() if name not in without))
    return shown


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate >= _LARGE else f"{rate:,.4g}"


def _chance_text(figures: RoundFigures | RoundTable) -> str:
    """Return the tau that 95 % of random orders do not exceed, where there is a tau."""
    from torchx_cubicml.report.figures.rank_correlation import tau_of_chance

    return f"± {tau_of_chance(figures.ranked):.2f}" if figures.tau is not None else ""


def _tau_text(tau: float | None) -> str:
    return f"{tau:.2f}" if tau is not None else ""


_ROUND = "round"
_CELLS: dict[str, Callable[[RoundFigures], str]] = {
    _ROUND: lambda each: str(each.number or "first"),
    "launches": lambda each: str(each.launches),
    "measured": lambda each: str(each.measured),
    "median": lambda each: _rate_text(each.median),
    "best": lambda each: _rate_text(each.best),
    "best so far": lambda each: _rate_text(each.best_so_far),
    "Kendall's tau": lambda each: _tau_text(each.tau),
    "random orders": _chance_text,
}
_LESS_IMPORTANT = ("median", "launches", "random orders", "measured")  # the least first
