"""Section of where memory ran out: the predicted boundary over the two parameters that matter most for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.advisor.memory_map import memory_map
from torchx_cubicml.cli.report_sections.view import drawn_figures
from torchx_cubicml.launch.messages import best_word
from torchx_cubicml.plots.axis_texts import axis_name
from torchx_cubicml.plots.memory_cells import memory_cells, memory_figure
from torchx_cubicml.report.figures.memory_boundary import LIKELY, SURE
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.numbers_table import numbers_html

if TYPE_CHECKING:
    from torchx_cubicml.advisor.memory_map import MemoryMap
    from torchx_cubicml.cli.report_sections.view import WorkloadView


def section(view: WorkloadView) -> Html:
    """Return the figure and its numbers; nothing where all launches fit and all configs are predicted to."""
    found = _map(view)
    if found is None:
        return Html("")
    cells = memory_cells(found, own=view.own)
    names = (axis_name(found.x), axis_name(found.y))
    figures = drawn_figures([memory_figure(found, cells)], view=view, name="memory")
    listed = [cell for cell in cells if cell["ran"] or cell["failed"] or cell["mark"]]
    heads = (*filter(None, names), "probability to fit", "ran", "largest memory", "out of memory")
    return joined(
        element("h3", "Where memory runs out"),
        element("p", _reading(found, view.objective), class_="note"),
        figures,
        numbers_html(heads, [_cells(cell, has_y=found.y is not None) for cell in listed], is_open=not figures),
    )


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the cells of the figure as JSON values."""
    found = _map(view)
    return memory_cells(found, own=view.own) if found is not None else []


def _map(view: WorkloadView) -> MemoryMap | None:
    """Return the map; ``None`` where it tells nothing."""
    found = memory_map(view.study, best=view.best) if view.study is not None and view.best is not None else None
    return found if found is not None and _tells(found) else None


def _tells(found: MemoryMap) -> bool:
    """Return whether there is a boundary: some launch ran out of memory, or some config may."""
    return any(each.has_failed for each in found.launches) or bool((found.fits < SURE).any())


def _reading(found: MemoryMap, objective: str) -> str:
    failed = sum(each.has_failed for each in found.launches)
    counted = [axis for axis in (found.x, found.y) if axis is not None and axis.counted is not None]
    sampled = [axis for axis in (found.x, found.y) if axis is not None and axis.is_sampled]
    parts = [
        f"Of {len(found.launches):,} launches drawn, {failed:,} ran out of memory.",
        "The shades are the probability to fit that is predicted from outcomes and recorded peaks, at the "
        f"{best_word(objective)} config with these two parameters changed."
        if found.y is not None
        else f"The shades are the predicted probability to fit, at the {best_word(objective)} config with this "
        "parameter changed.",
    ]
    if counted:
        entries = counted[0].entries
        parts.append(f"To have more or fewer such {entries} than that config, its first {entries} are changed.")
    if sampled:
        parts.append("Numbers between the drawn ones are at the nearest.")
    if found.n_elsewhere:
        parts.append(f"{found.n_elsewhere:,} launches with other values are not drawn.")
    return " ".join(parts)


def _cells(cell: dict[str, Any], *, has_y: bool) -> tuple[str, ...]:
    peak = f"{cell['peak']:.3g} GiB" if cell["peak"] is not None else ""
    counts = (str(cell["ran"] or ""), peak, str(cell["failed"] or ""))
    likely = "" if cell["fits"] >= LIKELY else ", may not fit"
    places = (cell["x"], cell["y"]) if has_y else (cell["x"],)
    return (*places, f"{cell['fits']:.2f}{likely}", *counts)
