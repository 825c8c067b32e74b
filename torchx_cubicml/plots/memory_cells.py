"""Rows of the figure of the memory boundary, made of a map of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.plots.axis_texts import axis_name, axis_texts
from torchx_cubicml.report.figures.cell_grid import BEST, OWN
from torchx_cubicml.report.figures.memory_boundary import memory_boundary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.advisor.memory_map import MemoryMap
    from torchx_cubicml.records.values import Config


def memory_figure(found: MemoryMap, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figure of a map and its cells; ``None`` without a cell."""
    x, y = axis_texts(found.x), axis_texts(found.y)
    return memory_boundary(cells, x=x, y=y, names=(axis_name(found.x), axis_name(found.y)))


def memory_cells(found: MemoryMap, *, own: Config | None = None) -> list[dict[str, Any]]:
    """Return the cells of ``memory_boundary``.

    Args:
        found: the map.
        own: the user's own config, whose cell is marked; ``None`` where unknown.
    """
    x, y = axis_texts(found.x), axis_texts(found.y)
    marks = {_place(found, own): OWN} if own is not None else {}
    marks[found.x.home, found.y.home if found.y is not None else 0] = BEST
    cells = []
    for line, row in enumerate(found.fits.tolist()):
        for column, fits in enumerate(row):
            if fits != fits:  # NaN: not legal
                continue
            here = [each for each in found.launches if (each.x, each.y) == (column, line)]
            peaks = [each.peak_gib for each in here if each.peak_gib is not None]
            failed = sum(each.has_failed for each in here)
            cells.append(
                {
                    "x": x[column],
                    "y": y[line],
                    "fits": round(fits, 4),
                    "ran": len(here) - failed,
                    "failed": failed,
                    "like_best": any(each.is_like_best for each in here),
                    "peak": max(peaks) if peaks else None,
                    "mark": marks.get((column, line), ""),
                }
            )
    return cells


def _place(found: MemoryMap, config: Config) -> tuple[int | None, int | None]:
    return found.x.place(config), found.y.place(config) if found.y is not None else 0
