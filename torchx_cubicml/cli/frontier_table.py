"""Table of a frontier of two objectives, for people."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.cli.terminal import fitted
from torchx_cubicml.launch.messages import batches_text, interval_text, number_text
from torchx_cubicml.records.config_changes import config_changes, config_values
from torchx_cubicml.records.redaction import printable

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console
    from rich.table import Table

    from torchx_cubicml.advisor.pareto_front import Frontier, FrontierPoint
    from torchx_cubicml.records.values import Config

CHOSEN_ONCE = "A config measured once is on the frontier also by luck: measure it again before you rely on it."

_RATIO, _DOUBT, _LAUNCHES, _CONFIG = "yours", "± of both", "launches", "config"


def print_frontier(console: Console, frontier: Frontier, *, current: Config | None = None) -> None:
    """Print the table of a frontier; see ``frontier_table``."""
    make = partial(frontier_table, frontier, current)
    console.print(fitted(console, make, (_LAUNCHES, _DOUBT, _RATIO), flexible=_CONFIG))


def frontier_table(frontier: Frontier, current: Config | None = None, without: Collection[str] = ()) -> Table:
    """Return the table: a row per config with both numbers, their difference from the own config, and their doubt.

    Args:
        frontier: at least one point.
        current: the user's own config, whose values are not repeated; ``None`` to show all values.
        without: names of the columns that are left out, where the table would be too wide.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    names = [name.replace("_", " ") for name in frontier.objectives]
    title = f"Frontier: {', '.join(names)}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    has_own = any(point.ratios for point in frontier.points) and _RATIO not in without
    for name in names:
        table.add_column(name.replace(" per ", "\nper "), justify="right", no_wrap=True)
        if has_own:
            table.add_column(_RATIO, justify="right", no_wrap=True)
    notes = [name for name in (_DOUBT, _LAUNCHES) if name not in without]
    for name in notes:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(_CONFIG, overflow="fold")
    for point in frontier.points:
        doubt = interval_text(point.doubt).removeprefix("± ")
        known = {_DOUBT: doubt, _LAUNCHES: str(point.launches) if point.launches else "predicted"}
        cells = [*_value_cells(point, has_own=has_own), *(known[name] for name in notes), _config_cell(point, current)]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def frontier_lines(frontier: Frontier) -> list[str]:
    """Return the notes on the table of a frontier, one line each."""
    surpassed = any(point.is_own and not point.is_best for point in frontier.points)
    batches = batches_text(point.global_batch for point in frontier.points)
    own_text = "Your own config is surpassed in both by at least one of the others." if surpassed else ""
    lines = [*filter(None, (own_text, batches))]
    return [*lines, CHOSEN_ONCE] if any(point.launches == 1 for point in frontier.points) else lines


def _value_cells(point: FrontierPoint, *, has_own: bool) -> list[str]:
    cells: list[str] = []
    for side, value in enumerate(point.values):
        cells.append(number_text(value))
        if has_own:
            cells.append(f"{point.ratios[side]:.2f}x" if point.ratios is not None else "")
    return cells


def _config_cell(point: FrontierPoint, current: Config | None) -> str:
    note = " (surpassed but for the noise)" if point.may_be_surpassed else ""
    if point.is_own:
        return f"your own config{note}"
    changes = config_changes(point.config, current) if current is not None else []
    return f"{', '.join(changes or config_values(point.config))}{note}"
