"""Figure of the response of throughput to two parameters together, as shaded cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.figures.cell_grid import CROSS, CellGrid, frames_text
from torchx_cubicml.report.style import LABEL, SCHEMA, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PALEST, _DARKEST = 0.05, 0.55  # opacity of the slowest and of the fastest cell


def response_map(
    cells: Sequence[Mapping[str, Any]], *, x: Sequence[str], y: Sequence[str], names: tuple[str, str]
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a cell.

    Args:
        cells: one per legal pair of values, with ``x`` and ``y`` (values as text), ``ratio`` (predicted throughput over
            that of the best config), ``low`` and ``high`` (80 % interval of it), ``measured`` (number of launches),
            ``fits`` (whether it likely fits in memory) and ``mark`` (``BEST`` or ``OWN``; else empty).
        x: values along the first parameter, in order.
        y: values along the second, from bottom to top.
        names: of the two parameters.
    """
    if not cells:
        return None
    values = [{**cell, "text": f"{cell['ratio']:.2f}", "label": _label(cell, names)} for cell in cells]
    grid = CellGrid(x=x, y=y, names=names)
    return {
        "$schema": SCHEMA,
        "description": f"Predicted throughput at {len(cells)} pairs of values, in that of the best config.",
        "title": {"text": "The two parameters that matter most, together", "subtitle": _subtitle(values, grid)},
        "width": {"step": grid.width},
        "height": {"step": grid.height},
        "layer": [
            _shades(values, grid),
            *_texts(values, grid),
            *_launches(values, grid),
            *grid.frames(values),
            *grid.titles(),
        ],
    }


def _label(cell: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Return the text of a cell, for readers who cannot see it."""
    many = f"{cell['measured']} launch{'es' if cell['measured'] != 1 else ''} measured" if cell["measured"] else ""
    texts = [
        *(f"{name} {cell[key]}" for name, key in zip(names, "xy", strict=True)),
        f"predicted {cell['ratio']:.2f}x, 80 % interval {cell['low']:.2f}x to {cell['high']:.2f}x",
        many,
        "" if cell["fits"] else "likely does not fit in memory",
        cell["mark"],
    ]
    return "; ".join(filter(None, texts))


def _subtitle(values: Sequence[Mapping[str, Any]], grid: CellGrid) -> list[str]:
    numbers = "numbers: " if grid.has_text else "shades: "
    marks = ["dot: measured"] if any(cell["measured"] for cell in values) else []
    marks += ["cross: likely does not fit in memory"] if any(not cell["fits"] for cell in values) else []
    lines = [f"{numbers}predicted throughput, in that of the best config; all other parameters as in it"]
    return [*lines, *filter(None, ["; ".join([*marks, *filter(None, [frames_text(values)])])])]


def _shades(values: list[dict[str, Any]], grid: CellGrid) -> dict[str, Any]:
    ratios = [cell["ratio"] for cell in values]
    legend = {"title": "throughput, best = 1", "format": ".2f", "tickCount": 4, "symbolFillColor": STRONG}
    legend |= {"symbolType": "square", "symbolSize": 180, "symbolStrokeWidth": 0}
    scale = {"domain": [min(ratios), max(ratios)], "range": [_PALEST, _DARKEST], "nice": False}
    return {
        "data": {"values": values},
        "mark": {"type": "rect", "color": STRONG},
        "encoding": {
            **grid.axes,
            "opacity": {"field": "ratio", "type": "quantitative", "scale": scale, "legend": legend},
            "description": LABEL,
        },
    }


def _texts(values: list[dict[str, Any]], grid: CellGrid) -> list[dict[str, Any]]:
    if not grid.has_text:
        return []
    mark = {"type": "text", "fontSize": 10, "dy": -grid.height / 6, "aria": False}
    encoding = {**grid.axes, "text": {"field": "text", "type": "nominal"}}
    return [{"data": {"values": values}, "mark": mark, "encoding": encoding}]


def _launches(values: Sequence[Mapping[str, Any]], grid: CellGrid) -> list[dict[str, Any]]:
    """Return a dot in each measured cell, and a cross in each that likely does not fit."""
    shift = grid.height / 4.5 if grid.has_text else 0.0
    point = {"type": "point", "style": "ink", "aria": False, "yOffset": shift, "size": 32}
    layers = []
    for cells, style, dx in (
        ([cell for cell in values if cell["measured"]], {}, -7.0),
        ([cell for cell in values if not cell["fits"]], CROSS, 7.0),
    ):
        if cells:
            mark = {**point, **style, "xOffset": dx}
            layers.append({"data": {"values": list(cells)}, "mark": mark, "encoding": grid.axes})
    return layers
