"""Table of the sensitivity of the best config to each parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from torchx_cubicml.records.value_text import entries_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor import Alternative, ParameterSensitivity

_LIKELY_TO_FIT = 0.5  # probability to fit in memory below which an alternative is marked


def sensitivity_table(sensitivities: Sequence[ParameterSensitivity]) -> Table:
    """Return a table with a row for each other value of each parameter: its throughput, in that of the best config."""
    from rich.box import SIMPLE_HEAD

    table = Table(
        title="Changing one parameter of the best config", title_justify="left", box=SIMPLE_HEAD, show_edge=False
    )
    table.add_column("parameter", no_wrap=True)
    for heading in ("best value", "other value"):
        table.add_column(heading, overflow="fold")
    for heading in ("predicted", "80 % interval", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in sensitivities:
        first = (each.name, entries_text(each.value, each.entries))
        without = "has no effect" if each.is_ineffective else "no other legal value"
        rows = [_cells(other, each.entries) for other in each.alternatives] or [(without, "", "", "")]
        for index, cells in enumerate(rows):
            table.add_row(*map(Text, (*(("", "") if index else first), *cells)))
    return table


def _cells(other: Alternative, entries: str) -> tuple[str, ...]:
    risk = ", may not fit" if other.probability_to_fit < _LIKELY_TO_FIT else ""
    if other.probability_to_fit == 0.0:  # by a rule; see ``predictors/memory/dominance.py``
        risk = ", does not fit"
    return (
        f"{entries_text(other.value, entries)}{risk}",
        f"{other.predicted:.2f}x",
        f"{other.low:.2f}x to {other.high:.2f}x",
        f"{other.measured:.2f}x" if other.measured is not None else "",
    )
