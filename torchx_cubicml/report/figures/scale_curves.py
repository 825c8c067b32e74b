"""Figures of scale: throughput and efficiency per device over the number of devices, one line per program."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import COUNT, HEIGHT, LABEL, LARGE, NEUTRAL, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_LINES = 7
"""Lines of a figure: the colours and shapes of more are not told apart."""
_WIDTH = 370  # pixels; the legend stands beside it
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8a6d3b", "#8a919c")  # Okabe and Ito
_MARGIN = 1.15  # factor beside the smallest and the largest number of devices
_ABOVE = 0.03  # of the height
_LETTERS = 250  # pixels of a name in the legend


def scale_throughput(rows: Sequence[Mapping[str, Any]], *, unit: str) -> dict[str, Any] | None:
    """Return the figure of throughput over devices as a Vega-Lite specification; ``None`` without rows.

    Args:
        rows: one per line and number of devices, with ``series`` (name of the line), ``devices`` (>= 1),
            ``throughput`` (> 0, in ``unit``), ``efficiency`` (share of the throughput per device at the smallest
            number) and ``config`` as text.
        unit: of the throughput, in words.
    """
    ideals = [row["throughput"] / row["efficiency"] for row in rows]
    marks = _powers_of_ten([*ideals, *(row["throughput"] for row in rows)])
    y: dict[str, Any] = {"field": "throughput", "title": unit, "axis": {**LARGE, "values": marks}}
    # Room above the highest mark: its text would push this plot below that of the efficiency beside it.
    room = 10.0 ** max(_ABOVE * (len(marks) - 1), _ABOVE)
    y |= {"scale": {"type": "log", "nice": False, "domain": [marks[0], marks[-1] * room] if marks else None}}
    text = "Throughput of the best config at each scale"
    return _figure(rows, y, text=text, subtitle="dashed: as much per device as at the smallest scale", ideal="ideal")


def scale_efficiency(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figure of efficiency over devices as a Vega-Lite specification; ``None`` without rows.

    Args:
        rows: as for ``scale_throughput``.
    """
    top = max([1.0, *(row["efficiency"] for row in rows)])
    y: dict[str, Any] = {"field": "efficiency", "title": "throughput per device, relative"}
    y |= {"scale": {"domain": [0, 1.05 * top], "nice": False}, "axis": {"format": "%"}}
    text = "Efficiency at each scale"
    return _figure(rows, y, text=text, subtitle="100 %: as much per device as at its smallest scale", ideal="one")


def _figure(
    rows: Sequence[Mapping[str, Any]], y: dict[str, Any], *, text: str, subtitle: str, ideal: str
) -> dict[str, Any] | None:
    if not rows:
        return None
    values = [{**row, "label": _label(row), "one": 1.0, "ideal": row["throughput"] / row["efficiency"]} for row in rows]
    names = list(dict.fromkeys(row["series"] for row in values))
    numbers = sorted({row["devices"] for row in values})
    x: dict[str, Any] = {"field": "devices", "type": "quantitative", "title": "devices"}
    x |= {"scale": {"type": "log", "base": 2, "nice": False, "domain": [numbers[0] / _MARGIN, numbers[-1] * _MARGIN]}}
    x |= {"axis": {"values": numbers, "format": COUNT, "labelOverlap": True, "labelFlush": False}}
    scale = {"domain": names, "range": [_COLOURS[place % len(_COLOURS)] for place in range(len(names))]}
    legend: dict[str, Any] = {
        "title": None,
        "labelLimit": _LETTERS,
        "symbolType": "circle",
        "symbolOpacity": 1.0,
        "columns": 1,
    }
    legend |= {"symbolStrokeWidth": 0, "orient": "bottom", "offset": 16}
    colour: dict[str, Any] = {"field": "series", "type": "nominal", "scale": scale, "sort": None}
    colour |= {"legend": legend if len(names) > 1 else None}
    y = {"type": "quantitative", **y}
    dashes = {"type": "line", "strokeDash": [3, 4], "strokeWidth": 1, "opacity": 0.6, "color": NEUTRAL}
    ideals = {**y, "field": ideal}
    return {
        "$schema": SCHEMA,
        "description": f"{text}, for {len(names)} programs on {numbers[0]:,} to {numbers[-1]:,} devices.",
        "title": {"text": text, "subtitle": subtitle},
        "width": _WIDTH,
        "height": HEIGHT,
        "data": {"values": values},
        "encoding": {"x": x},
        "layer": [
            {
                "mark": dashes,
                "encoding": {"y": ideals, "detail": {"field": "series", "type": "nominal"}},
            },
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": y, "color": colour}},
            {
                "mark": {"type": "point", "size": 60, "opacity": 1.0},
                "encoding": {"y": y, "color": colour, "description": LABEL},
            },
        ],
    }


def _label(row: Mapping[str, Any]) -> str:
    """Return the text of a point, for readers who cannot see it."""
    parts = (row["series"], f"{row['devices']:,} devices", f"{row['throughput']:,.6g}", f"{row['efficiency']:.0%}")
    return "; ".join(filter(None, (*parts, row["config"])))


def _powers_of_ten(values: Sequence[float]) -> list[float]:
    """Return the powers of ten around values > 0.

    >>> _powers_of_ten([20.0, 3000.0])
    [10.0, 100.0, 1000.0, 10000.0]
    """
    if not values:
        return []
    return [10.0**power for power in range(floor(log10(min(values))), ceil(log10(max(values))) + 1)]
