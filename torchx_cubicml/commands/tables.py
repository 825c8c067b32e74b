"""Tables for the terminal that several sub-commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from torchx_cubicml.commands.history import value_text

if TYPE_CHECKING:
    from torchx_cubicml.comparison import Comparison, Repeats


def comparison_table(comparison: Comparison) -> Table:
    """Return the user's own config beside the best: each parameter, then what was measured."""
    table = Table(title=f"{comparison.objective}, whole job", title_justify="left")
    table.add_column("")
    table.add_column("your command", justify="right", overflow="fold")
    table.add_column("best found", justify="right", overflow="fold")
    for name, value in comparison.best.config.items():
        before = comparison.baseline.config.get(name, "-")
        style = "" if before == value else "bold"
        table.add_row(Text(name, style), Text(value_text(before)), Text(value_text(value), style))
    table.add_section()
    for heading, cell in (("median", _middle), ("lowest to highest", _span), ("launches", _count)):
        table.add_row(heading, cell(comparison.baseline), cell(comparison.best))
    return table


def _middle(repeats: Repeats) -> str:
    return f"{repeats.middle:,.0f}"


def _span(repeats: Repeats) -> str:
    return f"{min(repeats.throughputs):,.0f} to {max(repeats.throughputs):,.0f}"


def _count(repeats: Repeats) -> str:
    return str(len(repeats.throughputs))
