"""Figure of the accuracy of predictions as measurements grow in number: each launch, and the typical error of late."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import COUNT, FAILED, LABEL, NEUTRAL, SCHEMA, STRONG, WIDTH, point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEIGHTS = 200, 110  # pixels of the two plots
_WINDOW = 10  # launches whose median error is drawn
_MOST_DRAWN = 600  # launches; of more, evenly spaced ones are drawn
_MOST = 4.0  # factor beyond which a launch is drawn at the edge
_TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_APART = 0.12  # of the logarithms of neighbouring ticks, as a share of the axis


def forecast_accuracy(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a row.

    Args:
        rows: one per launch that was predicted and measured, in the order of their start, with ``known`` (number of
            measurements known before), ``ratio`` (measured over predicted), ``low`` and ``high`` (the predicted 80 %
            interval, over the prediction; ``None`` where unknown) and ``label``.
    """
    if not rows:
        return None
    total, rows = len(rows), _drawn(rows)
    ends = [value for row in rows for value in (row["ratio"], row["low"], row["high"]) if value]
    low, high = max(min(0.97, *ends), 1.0 / _MOST), min(max(1.03, *ends), _MOST)
    x: dict[str, Any] = {"field": "known", "type": "quantitative", "title": None}
    numbers = [row["known"] for row in rows]
    x |= {"scale": {"domain": [min(numbers) - 0.8, max(numbers) + 0.8], "nice": False}}
    x |= {"axis": {"format": COUNT, "tickMinStep": 1}}
    beyond = sum(not low <= row["ratio"] <= high for row in rows)
    edge = f"; {beyond} beyond the edge are drawn at it" if beyond else ""
    many = f"; {len(rows):,} of {total:,} launches are drawn" if len(rows) < total else ""
    return {
        "$schema": SCHEMA,
        "description": f"Measured over predicted throughput of {total:,} launches, by known measurements.",
        "title": {
            "text": "Predictions as measurements grow in number",
            "subtitle": f"above: each launch, with the predicted 80 % interval{edge}; "
            f"below: median error of the latest {_WINDOW}{many}",
        },
        "vconcat": [_ratios(rows, x, low, high), _typical(rows, x)],
        "spacing": 18,
        "bounds": "flush",
    }


def _ratios(rows: Sequence[Mapping[str, Any]], x: dict[str, Any], low: float, high: float) -> dict[str, Any]:
    x = {**x, "axis": {**x["axis"], "labels": False}}  # they stand below the other plot
    y: dict[str, Any] = {"type": "quantitative", "title": "measured over predicted"}
    y |= {"scale": {"type": "log", "domain": [low, high], "nice": False, "clamp": True}}
    y |= {"axis": {"values": _ticks(low, high), "format": ".2~f", "labelExpr": "datum.label + 'x'"}}
    known = [row for row in rows if row["low"] and row["high"]]
    mark = {"type": "rule", "strokeWidth": 4, "opacity": 0.3, "color": NEUTRAL, "aria": False}
    colour = {"condition": {"test": "datum.is_outside", "value": FAILED}, "value": STRONG}
    values = [
        {**row, "is_outside": bool(row["low"] and row["high"]) and not row["low"] <= row["ratio"] <= row["high"]}
        for row in rows
    ]
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"one": 1.0}]},
            "mark": {"type": "rule", "strokeDash": [4, 4], "aria": False},
            "encoding": {"y": {**y, "field": "one"}},
        },
        {
            "data": {"values": known},
            "mark": mark,
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": values},
            "mark": point(len(rows)),
            "encoding": {"x": x, "y": {**y, "field": "ratio"}, "color": colour, "description": LABEL},
        },
    ]
    return {"width": WIDTH, "height": _HEIGHTS[0], "layer": [each for each in layers if each["data"]["values"]]}


def _ticks(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis that stand apart, with 1 among them.

    >>> _ticks(0.9, 1.2), _ticks(0.3, 3.0)
    ([0.9, 0.95, 1.0, 1.05, 1.1], [0.33, 0.5, 0.67, 1.0, 1.5, 2.0, 3.0])
    """
    span = math.log(high / low)
    found = [1.0]
    for tick in sorted(_TICKS, key=lambda tick: abs(math.log(tick))):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= _APART * span for other in found):
            found.append(tick)
    return sorted(found)


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that are drawn, each with the median error of those up to it."""
    errors = [math.exp(abs(math.log(row["ratio"]))) - 1.0 for row in rows]
    count = min(len(rows), _MOST_DRAWN)
    places = [round(number * (len(rows) - 1) / max(count - 1, 1)) for number in range(count)]
    return [{**rows[place], "error": median(errors[max(0, place - _WINDOW + 1) : place + 1])} for place in places]


def _typical(rows: Sequence[Mapping[str, Any]], x: dict[str, Any]) -> dict[str, Any]:
    values = [{"known": row["known"], "error": row["error"]} for row in rows]
    y: dict[str, Any] = {"field": "error", "type": "quantitative", "title": "median error"}
    y |= {"axis": {"format": "%", "tickCount": 3}, "scale": {"domainMin": 0}}
    mark = {"type": "line", "interpolate": "monotone", "strokeWidth": 2, "color": STRONG, "aria": False}
    title = "measured launches of the workload that had ended when the launch started"
    return {
        "width": WIDTH,
        "height": _HEIGHTS[1],
        "data": {"values": values},
        "mark": mark,
        "encoding": {"x": {**x, "title": title}, "y": y},
    }
