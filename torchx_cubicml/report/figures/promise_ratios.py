"""Figure of rewritten launches: measured throughput over the promised one, beside the interval of the promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import COUNT, FAILED, LABEL, NEUTRAL, SCHEMA, SHARE, STRONG, WIDTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEIGHT = 220
_WIDEST_STEP = 70  # pixels of one launch
INSIDE, OUTSIDE, UNKNOWN = "inside its interval", "outside its interval", "promised without an interval"
OWN = "your own config, as predicted then"


def promise_ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` where no launch was measured.

    Args:
        rows: one per rewritten launch that was measured, in their order, with ``number`` (of the launch), ``ratio``
            (measured over promised), ``low`` and ``high`` (the ends of the promised 80 % interval, over the promise;
            ``None`` where unknown), ``own`` (the prediction of the user's own config over the promise, likewise) and
            ``label``.
    """
    if not rows:
        return None
    values = [{**row, "place": _place(row)} for row in rows]
    numbers = [row["number"] for row in rows]
    x = {"field": "number", "type": "ordinal", "title": "rewritten launch", "scale": {"domain": numbers}}
    x |= {"axis": {"format": COUNT, "labelAngle": 0, "labelOverlap": True, "domain": False}}
    return {
        "$schema": SCHEMA,
        "description": f"Measured over promised throughput of {len(rows)} rewritten launches.",
        "title": {
            "text": "Measured throughput over the promised one",
            "subtitle": "at 1, as promised; bars: 80 % intervals of the promises, without the error of a measurement",
        },
        "width": max(min(WIDTH, _WIDEST_STEP * len(rows)), 4 * _WIDEST_STEP),
        "height": _HEIGHT,
        "encoding": {"x": x},
        "layer": [*_intervals(values), *_points(values)],
    }


def _place(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    if low is None or high is None:
        return UNKNOWN
    return INSIDE if low <= row["ratio"] <= high else OUTSIDE


def _intervals(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the line of kept promises, and the interval of each promise where it is known."""
    known = [row for row in values if row["low"] is not None and row["high"] is not None]
    one: dict[str, Any] = {
        "data": {"values": [{"one": 1.0}]},
        "mark": {"type": "rule", "strokeDash": [4, 4], "strokeWidth": 1.2},
        "encoding": {"x": None, "y": {"field": "one", "type": "quantitative"}},
    }
    scale = {"zero": False, "nice": True}
    bars = {
        "data": {"values": known},
        "mark": {"type": "bar", "width": {"band": 0.5}, "color": NEUTRAL, "opacity": 0.35, "cornerRadius": 2},
        "encoding": {
            "y": {"field": "low", "type": "quantitative", "title": "measured over promised", "scale": scale}
            | {"axis": {"format": SHARE}},
            "y2": {"field": "high"},
            "description": LABEL,
        },
    }
    return [*([bars] if known else []), one]


def _points(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the measured ratios, and a tick where the user's own config was predicted."""
    own = [{**row, "kind": OWN} for row in values if row["own"] is not None]
    legend = {"orient": "bottom", "title": None, "direction": "horizontal", "labelLimit": 260}
    found = [kind for kind in (INSIDE, OUTSIDE, UNKNOWN) if any(row["place"] == kind for row in values)]
    colours = {INSIDE: STRONG, OUTSIDE: FAILED, UNKNOWN: NEUTRAL}
    shapes = {INSIDE: "circle", OUTSIDE: "diamond", UNKNOWN: "square"}
    points = {
        "data": {"values": values},
        "mark": {"type": "point", "size": 75, "opacity": 1},
        "encoding": {
            "y": {"field": "ratio", "type": "quantitative", "title": "measured over promised"}
            | {"scale": {"zero": False, "nice": True}, "axis": {"format": SHARE}},
            "color": {"field": "place", "type": "nominal", "legend": legend}
            | {"scale": {"domain": found, "range": [colours[kind] for kind in found]}},
            "shape": {"field": "place", "type": "nominal", "legend": legend}
            | {"scale": {"domain": found, "range": [shapes[kind] for kind in found]}},
            "description": LABEL,
        },
    }
    ticks = {
        "data": {"values": own},
        "mark": {"type": "tick", "thickness": 2, "width": {"band": 0.5}, "orient": "horizontal", "fill": NEUTRAL},
        "encoding": {
            "y": {"field": "own", "type": "quantitative"},
            "stroke": {"field": "kind", "type": "nominal", "legend": {**legend, "symbolType": "stroke"}}
            | {"scale": {"domain": [OWN], "range": [NEUTRAL]}},
        },
    }
    return [points, *([ticks] if own else [])]
