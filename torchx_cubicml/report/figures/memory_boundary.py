"""Figure of where memory ran out: launches over two parameters, before the predicted probability to fit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import FAILED, LABEL, SCHEMA, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BEST, OWN = "the best config", "your own values"
"""Marks of cells."""
LIKELY, SURE = 0.5, 0.9
"""Probabilities to fit at which the boundary is drawn; ``1 - SURE`` is the third."""
_CLASSES = {
    "sure to fit, 0.9 or more": (STRONG, 0.34),
    "likely, 0.5 to 0.9": (STRONG, 0.13),
    "unlikely, 0.1 to 0.5": (FAILED, 0.16),
    "sure not to fit, below 0.1": (FAILED, 0.4),
}
_WIDEST, _LEAST_WIDTH, _MOST_WIDTH = 560, 36, 104  # pixels of all columns, and of one
_LEAST_HEIGHT, _MOST_HEIGHT, _TALLEST = 28, 44, 420  # pixels of a line, and of all lines
_LETTERS_OF_PEAK = 40  # pixels of a column from which peaks are written into it
_FAILED_MARK = {"shape": "M-1,-1L1,1M1,-1L-1,1", "strokeWidth": 2, "filled": False}


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
    width = min(max(_WIDEST / len(x), _LEAST_WIDTH), _MOST_WIDTH)
    height = min(max(_TALLEST / len(y), _LEAST_HEIGHT), _MOST_HEIGHT)
    axes = _axes(x, y)
    return {
        "$schema": SCHEMA,
        "description": f"Predicted probability to fit in memory at {len(cells)} pairs of values, with the launches.",
        "title": {"text": "Probability to fit in memory, and how launches ended", "subtitle": _subtitle(values)},
        "width": {"step": width},
        "height": {"step": height},
        "layer": [
            _shades(values, axes),
            *_boundary(values, x, y, axes),
            *_launches(values, axes, width=width, height=height),
            *_framed(values, axes),
            *_names(names, n_y=len(y), height=height),
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
    frames = {"frame": BEST, "dashed frame": OWN}
    marks = {cell["mark"] for cell in values}
    lines.append("; ".join(f"{word}: {mark}" for word, mark in frames.items() if mark in marks))
    return [line for line in lines if line]


def _label(cell: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Return the text of a cell, for readers who cannot see it."""
    texts = [f"{name} {cell[key]}" for name, key in zip(names, "xy", strict=True) if name]
    texts.append(f"probability to fit {cell['fits']:.2f}")
    texts += [f"{cell['ran']} ran"] if cell["ran"] else []
    texts += [f"largest memory {cell['peak']:.3g} GiB"] if cell["peak"] is not None else []
    texts += [f"{cell['failed']} ran out of memory"] if cell["failed"] else []
    return "; ".join([*texts, *filter(None, [cell["mark"]])])


def _axes(x: Sequence[str], y: Sequence[str]) -> dict[str, Any]:
    return {
        "x": {"field": "x", "type": "nominal", "sort": list(x), "title": None}
        | {"axis": {"labelAngle": 0, "labelLimit": 110, "grid": False, "labelOverlap": True}},
        "y": {"field": "y", "type": "nominal", "sort": list(reversed(y)), "title": None}
        | {"axis": {"labelLimit": 150, "grid": False}},
    }


def _shades(values: list[dict[str, Any]], axes: dict[str, Any]) -> dict[str, Any]:
    found = [name for name in _CLASSES if any(cell["class"] == name for cell in values)]
    legend = {"title": "predicted to fit in memory", "symbolType": "square", "symbolSize": 180}
    legend |= {"symbolStrokeWidth": 0, "labelLimit": 200}
    kind = {"field": "class", "type": "nominal", "legend": legend}
    shades = {"type": "ordinal", "domain": found}
    return {
        "data": {"values": values},
        "mark": {"type": "rect", "ariaRoleDescription": "cell"},
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


def _launches(
    values: Sequence[Mapping[str, Any]], axes: dict[str, Any], *, width: float, height: float
) -> list[dict[str, Any]]:
    """Return dots and crosses, and the largest memory beside a dot where there is room."""
    has_text = width >= _LETTERS_OF_PEAK
    pale = {"condition": {"test": "datum.like_best", "value": 1.0}, "value": 0.45}
    base = {"y": axes["y"], "x": axes["x"], "opacity": pale}
    both = [cell for cell in values if cell["ran"] and cell["failed"]]
    layers = []
    for cells, is_failed, shift in (
        ([cell for cell in values if cell["ran"] and not cell["failed"]], False, 0.0),
        ([cell for cell in values if cell["failed"] and not cell["ran"]], True, 0.0),
        (both, False, -width / 4),
        (both, True, width / 4),
    ):
        if cells:
            has_peak = has_text and not is_failed and any(cell["peak"] is not None for cell in cells)
            dy = -height / 6 if has_peak else 0.0
            mark = {"type": "point", "style": "ink", "aria": False, "xOffset": shift, "yOffset": dy, "size": 45}
            mark |= _FAILED_MARK if is_failed else {}
            layers.append({"data": {"values": list(cells)}, "mark": mark, "encoding": base})
            if has_peak:
                peaks = [{**cell, "text": f"{cell['peak']:.3g}"} for cell in cells if cell["peak"] is not None]
                layers.append(
                    {
                        "data": {"values": peaks},
                        "mark": {"type": "text", "fontSize": 10, "dy": height / 4, "aria": False},
                        "encoding": {**base, "opacity": {"value": 1}, "text": {"field": "text", "type": "nominal"}},
                    }
                )
    return layers


def _framed(values: Sequence[Mapping[str, Any]], axes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a frame around the cell of the best config, and a dashed one around that of the user's own."""
    frame = {"type": "rect", "filled": False, "strokeWidth": 2, "aria": False, "stroke": STRONG}
    layers = []
    for mark, style in ((BEST, {}), (OWN, {"strokeDash": [4, 3]})):
        cells = [{"x": cell["x"], "y": cell["y"]} for cell in values if cell["mark"] == mark]
        if cells:
            layers.append({"data": {"values": cells}, "mark": {**frame, **style}, "encoding": axes})
    return layers


def _names(names: tuple[str, str], *, n_y: int, height: float) -> list[dict[str, Any]]:
    """Return the names of the parameters at their axes."""
    words = {"type": "text", "fontSize": 12, "fontWeight": 600, "aria": False, "align": "left"}
    places = [({"value": 0}, {"value": n_y * height + 34}, names[0]), ({"value": 0}, {"value": -10}, names[1])]
    return [
        {
            "data": {"values": [{"name": name}]},
            "mark": words,
            "encoding": {"x": x, "y": y, "text": {"field": "name", "type": "nominal"}},
        }
        for x, y, name in places
        if name
    ]
