"""Figure of the memory boundary: which values of one or two parameters fit in memory, predicted and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import FAILED, LABEL, SCHEMA, SHARE, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CELL = {"x": 96, "y": 30}  # pixels
_MIDDLE = "#e6e7ea"  # of a config that may as well fit as not


def memory_boundary(
    cells: Sequence[Mapping[str, Any]], *, x: str, y: str, other: str, order: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the figure as a Vega-Lite specification.

    Args:
        cells: one per legal config: ``x`` and ``y`` as text, ``fits`` (the probability to fit), ``measured`` (words on
            its launches, such as ``61 GiB``; empty without one) and ``config`` as text.
        x: name of the parameter from left to right.
        y: name of the parameter from bottom to top; empty for one parameter alone.
        other: all other parameters of the configs, as text.
        order: ``x`` and ``y`` -> their values as text, in order.
    """
    values = [{**cell, "text": cell["measured"] or _share(cell["fits"]), "label": _text(cell)} for cell in cells]
    across = {
        "field": "x",
        "type": "ordinal",
        "sort": list(order["x"]),
        "title": _axis_title(x, "first parameter"),
        "axis": {"labelAngle": 0, "grid": False},
    }
    up = {
        "field": "y",
        "type": "ordinal",
        "sort": list(reversed(order["y"])),
        "title": _axis_title(y, "second parameter"),
        "axis": {"grid": False} if y else None,
    }
    colour = {"field": "fits", "type": "quantitative", "title": "probability to fit", "legend": {"format": ".0%"}}
    colour |= {"scale": {"domain": [0, 0.5, 1], "range": [FAILED, _MIDDLE, STRONG], "interpolate": "lab"}}
    white = {"condition": {"test": "datum.fits > 0.8", "value": "#ffffff"}, "value": "#1f2430"}
    tooltip = [
        {"field": "config", "type": "nominal"},
        {"field": "fits", "type": "quantitative", "format": SHARE, "title": "probability to fit"},
        {"field": "measured", "type": "nominal"},
    ]
    encoding = {"x": across, "y": up}
    return {
        "$schema": SCHEMA,
        "description": f"Memory of {len(values)} configs that differ in {' and '.join(filter(None, (x, y)))}.",
        "title": {
            "text": "What fits in memory",
            "subtitle": ["per cent: probability to fit; else what its launches measured", *([other] if other else [])],
        },
        "width": {"step": _CELL["x"]},
        "height": {"step": _CELL["y"]},
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "rect"},
                "encoding": {**encoding, "color": colour, "tooltip": tooltip, "description": LABEL},
            },
            {
                "mark": {"type": "text"},
                "encoding": {**encoding, "text": {"field": "text", "type": "nominal"}, "color": white}
                | {"tooltip": tooltip},
            },
        ],
    }


def _share(probability: float) -> str:
    """Return a probability in per cent; only a certain one is 0 or 100.

    >>> _share(1.0), _share(0.999), _share(0.5), _share(0.001)
    ('100 %', '> 99 %', '50 %', '< 1 %')
    """
    if 0.0 < probability < 0.01 or 0.99 < probability < 1.0:
        return "> 99 %" if probability > 0.5 else "< 1 %"
    return f"{100.0 * probability:.0f} %"


def _axis_title(name: str, otherwise: str) -> str | None:
    """Return the title of an axis; a name that might be more than a name in an expression of Vega-Lite is left out."""
    if not name:
        return None
    return name if name.replace(".", "_").replace("-", "_").isidentifier() else otherwise


def _text(cell: Mapping[str, Any]) -> str:
    """Return the text of a cell, for readers who cannot see it."""
    return "; ".join(filter(None, (cell["config"], f"probability to fit {cell['fits']:.2f}", cell["measured"])))
