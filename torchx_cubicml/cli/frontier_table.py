"""Table of a frontier of two objectives, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import interval_text, number_text
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.value_text import config_text

if TYPE_CHECKING:
    from rich.table import Table

    from torchx_cubicml.advisor.pareto_front import Frontier, FrontierPoint
    from torchx_cubicml.records.trial import Config

CHOSEN_ONCE = "A config measured once is on the frontier also by luck: measure it again before you rely on it."


def frontier_table(frontier: Frontier, *, current: Config | None = None) -> Table:
    """Return the table: a row per config with both numbers, their difference from the own config, and their doubt.

    Args:
        frontier: at least one point.
        current: the user's own config, whose values are not repeated; ``None`` to show all values.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    first, second = (name.replace("_", " ") for name in frontier.objectives)
    table = Table(
        title=f"Frontier: {first}, {second}", title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    has_own = any(point.ratios for point in frontier.points)
    for name in (first, second):
        table.add_column(name, justify="right")
        if has_own:
            table.add_column("yours", justify="right")
    for name in ("± of both", "launches"):
        table.add_column(name, justify="right")
    table.add_column("config", overflow="fold")
    for point in frontier.points:
        cells = [*_value_cells(point, has_own=has_own), interval_text(point.doubt).removeprefix("± ")]
        cells += [str(point.launches) if point.launches else "predicted", _config_cell(point, current)]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def frontier_lines(frontier: Frontier) -> list[str]:
    """Return the notes on the table, one line each."""
    own = next((point for point in frontier.points if point.is_own), None)
    surpassed = own is not None and not own.is_best
    lines = ["Your own config is surpassed in both by at least one of the others."] if surpassed else []
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
    changed = {name: value for name, value in point.config.items() if current is None or current.get(name) != value}
    return f"{config_text(changed or point.config)}{note}"
