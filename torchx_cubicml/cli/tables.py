"""Tables for the terminal that several sub-commands print."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from torchx_cubicml.cli.history import value_text
from torchx_cubicml.launch.messages import doubt_text, statistic_text
from torchx_cubicml.records.trial import MEAN

if TYPE_CHECKING:
    from torchx_cubicml.tuner.comparison import Comparison, Repeats


def comparison_table(comparison: Comparison, *, statistic: str = MEAN) -> Table:
    """Return the user's own config beside the best: each parameter, then what was measured."""
    title = f"{comparison.objective} {statistic_text(statistic)}".rstrip()
    table = Table(title=f"{title}, whole job", title_justify="left")
    table.add_column("")
    table.add_column("your command", justify="right", overflow="fold")
    table.add_column("best found", justify="right", overflow="fold")
    for name, value in comparison.best.config.items():
        before = comparison.baseline.config.get(name, "-")
        style = "" if before == value else "bold"
        table.add_row(Text(name, style), Text(value_text(before)), Text(value_text(value), style))
    table.add_section()
    cells = [("median", _middle), ("lowest to highest", _span), ("one launch by itself", _doubt), ("launches", _count)]
    for heading, cell in cells:
        told = cell(comparison.baseline), cell(comparison.best)
        if any(told):
            table.add_row(heading, *told)
    return table


def _middle(repeats: Repeats) -> str:
    return f"{repeats.middle:,.0f}"


def _span(repeats: Repeats) -> str:
    return f"{min(repeats.throughputs):,.0f} to {max(repeats.throughputs):,.0f}"


def _doubt(repeats: Repeats) -> str:
    return doubt_text(median(repeats.uncertainties)) if repeats.uncertainties else ""


def _count(repeats: Repeats) -> str:
    return str(len(repeats.throughputs))
