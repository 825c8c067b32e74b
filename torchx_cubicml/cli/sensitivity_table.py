"""Table of the sensitivity of the best config to each parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from torchx_cubicml.records.config_changes import short_name
from torchx_cubicml.records.value_text import entries_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchx_cubicml.advisor import Alternative, ParameterSensitivity

_INTERVAL = "80 % interval"
OPTIONAL = (_INTERVAL,)
"""Columns that a narrow terminal does without."""
FLEXIBLE = "value"
"""Column that takes the room which the others leave."""
_REFERENCE = "1x"  # the best known config itself, which another value may be predicted to surpass
_LIKELY_TO_FIT = 0.5  # probability to fit in memory below which an alternative is marked


def sensitivity_table(sensitivities: Sequence[ParameterSensitivity], without: Collection[str] = ()) -> Table:
    """Return a table with a row for each other value of each parameter: its throughput, in that of the best config.

    Args:
        sensitivities: to each parameter.
        without: those of ``OPTIONAL`` that are left out, where the table would be too wide.
    """
    title = "Changing one parameter of the best known config (1x)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    names = [each.name for each in sensitivities]
    table.add_column("parameter", no_wrap=True)
    table.add_column(FLEXIBLE, overflow="fold")
    for heading in ("predicted", *(() if _INTERVAL in without else (_INTERVAL,)), "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in sensitivities:
        nothing = ", without effect" if each.is_ineffective else ", no other legal value"
        note = "" if each.alternatives else nothing
        rows = [
            (short_name(each.name, names), f"{entries_text(each.value, each.entries)}{note}", _REFERENCE),
            *(("", *_cells(other, each.entries, without)) for other in each.alternatives),
        ]
        for cells in rows:
            table.add_row(*map(Text, cells))
    return table


def _cells(other: Alternative, entries: str, without: Collection[str]) -> tuple[str, ...]:
    risk = ", may not fit" if other.probability_to_fit < _LIKELY_TO_FIT else ""
    if other.probability_to_fit == 0.0:  # by a rule; see ``predictors/memory/dominance.py``
        risk = ", does not fit"
    return (
        f"{entries_text(other.value, entries)}{risk}",
        f"{other.predicted:.2f}x",
        *(() if _INTERVAL in without else (f"{other.low:.2f}x to {other.high:.2f}x",)),
        f"{other.measured:.2f}x" if other.measured is not None else "",
    )
