"""Figure of where memory ran out: launches over two parameters, before the predicted probability to fit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.figures.cell_grid import CROSS, CellGrid, frames_text
from torchx_cubicml.report.style import FAILED, LABEL, SCHEMA, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIKELY, SURE = 0.5, 0.9
"""Probabilities to fit at which the boundary is drawn; ``1 - SURE`` is the third."""
_CLASSES = {
    "sure to fit, 0.9 or more": (STRONG, 0.34),
    "likely, 0.5 to 0.9": (STRONG, 0.13),
    "unlikely, 0.1 to 0.5": (FAILED, 0.16),
    "sure not to fit, below 0.1": (FAILED, 0.4),
}


def memory_boundary(
    cells: Sequence[Mapping[str, Any]], *, x: Sequence[str], y: Sequence[str], names: tuple[str, str]
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a cell.

    Args:
        cells: one per legal pair of values, with ``x`` and ``y`` (values as text), ``fits`` (probability, 0..1),
            ``ran`` and ``failed`` (number of launches with these values that ran, and that ran out of memory),
            ``like_best`` (whether any of them differs from the best config in nothing else), ``peak`` (largest memory
            in GiB; ``None`` where unknown) and ``mark`` (``BEST`` or ``OWN`` on the cell of that config; else empty).
        x: values along the first parameter, in order.
        y: values along the second, from bottom to top; one empty text where there is no second.
        names: of the two parameters.
    """
    if not cells:
        return None
    values = [{**cell, "class": class_of(cell["fits"]), "label": _label(cell, names)} for cell in cells]
    grid = CellGrid(x=x, y=y, names=names)
    axes = grid.axes
    return {
        "$schema": SCHEMA,
        "description": f"Predicted probability to fit in memory at {len(cells)} pairs of values, with the launches.",
        "title": {"text": "Probability to fit in memory, and how launches ended", "subtitle": _subtitle(values)},
        "width": {"step": grid.width},
        "height": {"step": grid.height},
        "layer": [
            _shades(values, axes),
            *_boundary(values, x, y, axes),
            *_launches(values, grid),
            *grid.frames(values),
            *grid.titles(),
        ],
    }


def class_of(fits: float) -> str:
    """Return the class of a probability to fit, in words.

    >>> class_of(0.5), class_of(0.05)
    ('likely, 0.5 to 0.9', 'sure not to fit, below 0.1')
    """
    place = sum(fits < bound for bound in (SURE, LIKELY, 1.0 - SURE))
    return list(_CLASSES)[place]


def _subtitle(values: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["dots: launches that ran; crosses: launches that ran out of memory; line: as likely to fit as not"]
    if any(cell["ran"] + cell["failed"] and not cell["like_best"] for cell in values):
        lines.append("pale: these launches differ from the best config in other parameters, too")
    if any(cell["peak"] is not None for cell in values):
        lines.append("numbers: largest measured memory of one process, GiB")
    lines.append(frames_text(values))
    return [line for line in lines if line]


def _label(cell: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Return the text of a cell, for readers who cannot see it."""
    texts = [f"{name} {cell[key]}" for name, key in zip(names, "xy", strict=True) if name]
    texts.append(f"probability to fit {cell['fits']:.2f}")
    texts += [f"{cell['ran']} ran"] if cell["ran"] else []
    texts += [f"largest memory {cell['peak']:.3g} GiB"] if cell["peak"] is not None else []
    texts += [f"{cell['failed']} ran out of memory"] if cell["failed"] else []
    return "; ".join([*texts, *filter(None, [cell["mark"]])])


def _shades(values: list[dict[str, Any]], axes: dict[str, Any]) -> dict[str, Any]:
    found = [name for name in _CLASSES if any(cell["class"] == name for cell in values)]
    legend = {"title": "predicted to fit in memory", "symbolType": "square", "symbolSize": 180}
    legend |= {"symbolStrokeWidth": 0, "labelLimit": 200}
    kind = {"field": "class", "type": "nominal", "legend": legend}
    shades = {"type": "ordinal", "domain": found}
    return {
        "data": {"values": values},
        "mark": {"type": "rect"},
        "encoding": {
            **axes,
            "color": {**kind, "scale": {**shades, "range": [_CLASSES[name][0] for name in found]}},
            "opacity": {**kind, "scale": {**shades, "range": [_CLASSES[name][1] for name in found]}},
            "description": LABEL,
        },
    }


def _boundary(
    values: Sequence[Mapping[str, Any]], x: Sequence[str], y: Sequence[str], axes: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the line between cells that likely fit and cells that likely do not."""
    likely = {(cell["x"], cell["y"]): cell["fits"] >= LIKELY for cell in values}

    def between(first: tuple[str, str], second: tuple[str, str]) -> bool:
        return first in likely and second in likely and likely[first] != likely[second]

    right = [{"x": a, "y": b} for a, after in pairwise(x) for b in y if between((a, b), (after, b))]
    above = [{"x": a, "y": b} for b, after in pairwise(y) for a in x if between((a, b), (a, after))]
    mark = {"type": "rule", "strokeWidth": 2.5, "strokeCap": "square", "aria": False}
    ends = {name: [{**axes[name], "bandPosition": place} for place in (0, 1)] for name in "xy"}
    layers = [
        {"x": ends["x"][1], "y": ends["y"][0], "y2": {"field": "y", "bandPosition": 1}},
        {"y": ends["y"][0], "x": ends["x"][0], "x2": {"field": "x", "bandPosition": 1}},
    ]
    return [
        {"data": {"values": lines}, "mark": mark, "encoding": layer}
        for lines, layer in zip((right, above), layers, strict=True)
        if lines
    ]


def _launches(values: Sequence[Mapping[str, Any]], grid: CellGrid) -> list[dict[str, Any]]:
    """Return dots and crosses, and the largest memory below a dot where there is room."""
    axes, shift = grid.axes, grid.width / 4
    pale = {"condition": {"test": "datum.like_best", "value": 1.0}, "value": 0.45}
    base = {"y": axes["y"], "x": axes["x"], "opacity": pale}
    both = [cell for cell in values if cell["ran"] and cell["failed"]]
    layers = []
    for cells, is_failed, dx in (
        ([cell for cell in values if cell["ran"] and not cell["failed"]], False, 0.0),
        ([cell for cell in values if cell["failed"] and not cell["ran"]], True, 0.0),
        (both, False, -shift),
        (both, True, shift),
    ):
        if cells:
            has_peak = grid.has_text and not is_failed and any(cell["peak"] is not None for cell in cells)
            dy = -grid.height / 6 if has_peak else 0.0
            mark = {"type": "point", "style": "ink", "aria": False, "xOffset": dx, "yOffset": dy, "size": 45}
            mark |= CROSS if is_failed else {}
            layers.append({"data": {"values": list(cells)}, "mark": mark, "encoding": base})
            if has_peak:
                peaks = [{**cell, "text": f"{cell['peak']:.3g}"} for cell in cells if cell["peak"] is not None]
                layers.append(
                    {
                        "data": {"values": peaks},
                        "mark": {"type": "text", "fontSize": 10, "dy": grid.height / 4, "aria": False},
                        "encoding": {**base, "opacity": {"value": 1}, "text": {"field": "text", "type": "nominal"}},
                    }
                )
    return layers
