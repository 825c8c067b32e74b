"""Figure of what each parameter is worth: the best config over the same with another value of one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import FAILED, LABEL, NEUTRAL, SCHEMA, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OVER_OWN, OVER_SLOWEST = "over your own value", "over the slowest other value"
"""Kinds of rows: what the best value is compared with."""
_PLOT = 340  # pixels of the axis; names and values stand above the intervals, so that a phone shows all of it
_ROW = 44  # pixels of one parameter
_NAMES = 190  # pixels of a parameter's name
_LETTER = 6.4  # pixels of a letter
_FACTOR = {"format": ".4~g", "labelExpr": "datum.label + 'x'", "tickCount": 6}


def parameter_worth(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a row.

    Args:
        rows: one per parameter, in their order, with ``parameter``, ``kind`` (``OVER_OWN`` or ``OVER_SLOWEST``),
            ``change`` (the two values as text), ``gain`` (predicted ratio of the best config to that with the other
            value), ``low`` and ``high`` (its 80 % interval), ``measured`` (the same ratio of measurements; ``None``
            where there is none) and ``launches`` (number of them).
    """
    if not rows:
        return None
    values = [{**row, "change": _change(row), "label": _label(row)} for row in rows]
    names = list(dict.fromkeys(row["parameter"] for row in values))
    y: dict[str, Any] = {"field": "parameter", "type": "nominal", "sort": None, "axis": None}
    x: dict[str, Any] = {"type": "quantitative", "axis": {**_FACTOR, "grid": True}}
    x |= {"title": "throughput with the best value over that with the other"}
    x |= {"scale": {"domain": _domain(rows), "nice": False, "zero": False}}
    measured = [row for row in values if row["measured"] is not None]
    return {
        "$schema": SCHEMA,
        "description": f"What the best value of each of {len(names)} parameters is worth, with its interval.",
        "title": {
            "text": "Gain by the best value of each parameter",
            "subtitle": _subtitle(has_measured=bool(measured)),
        },
        "width": _PLOT,
        "height": {"step": _ROW},
        "data": {"values": values},
        "encoding": {"y": y},
        "layer": [_one(), _intervals(x, rows), _points(x, rows), *_measured(measured, x), *_texts()],
    }


def _domain(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ends of the axis, with 1 on it."""
    values = [row[name] for row in rows for name in ("low", "gain", "high", "measured") if row[name] is not None]
    low, high = min(1.0, *values), max(1.0, *values)
    margin = 0.03 * (high - low) or 0.05
    return [low - margin, high + margin]


def _subtitle(*, has_measured: bool) -> list[str]:
    ring = "; ring: measured" if has_measured else ""
    return [f"dot: predicted, with its 80 % interval{ring}", "all other parameters as in the best config"]


def _label(row: Mapping[str, Any]) -> str:
    """Return the text of a row, for readers who cannot see it."""
    texts = [
        f"{row['parameter']} {row['change']}",
        f"predicted {row['gain']:.2f}x, 80 % interval {row['low']:.2f}x to {row['high']:.2f}x",
        row["kind"],
    ]
    if row["measured"] is not None:
        many = f"{row['launches']} launch{'es' if row['launches'] != 1 else ''}"
        texts.insert(2, f"measured {row['measured']:.2f}x by {many} with the other value")
    return "; ".join(texts)


def _change(row: Mapping[str, Any]) -> str:
    """Return the two values, cut to the room beside the name."""
    name = min(len(row["parameter"]) * _LETTER, _NAMES)
    most = int((_PLOT - name) / _LETTER) - 2
    text: str = row["change"]
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _one() -> dict[str, Any]:
    """Return the line of no difference."""
    return {
        "data": {"values": [{"one": 1.0}]},
        "mark": {"type": "rule", "aria": False},
        "encoding": {"x": {"field": "one", "type": "quantitative"}, "y": None},
    }


def _colour(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = [kind for kind in (OVER_OWN, OVER_SLOWEST) if any(row["kind"] == kind for row in rows)]
    colours = {OVER_OWN: STRONG, OVER_SLOWEST: NEUTRAL}
    legend: dict[str, Any] = {
        "orient": "top",
        "title": None,
        "labelLimit": 400,
        "symbolType": "circle",
        "symbolStrokeWidth": 0,
    }
    legend |= {"symbolOpacity": 1.0, "symbolSize": 75}
    return {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": kinds, "range": [colours[kind] for kind in kinds]},
        "legend": legend,
    }


def _intervals(x: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    mark = {"type": "rule", "strokeWidth": 9, "opacity": 0.28, "strokeCap": "round", "aria": False}
    return {
        "mark": mark,
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": _colour(rows)},
    }


def _points(x: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "mark": {"type": "point", "size": 75, "opacity": 1.0},
        "encoding": {"x": {**x, "field": "gain"}, "color": _colour(rows), "description": LABEL},
    }


def _measured(measured: list[dict[str, Any]], x: dict[str, Any]) -> list[dict[str, Any]]:
    if not measured:
        return []
    mark = {"type": "point", "filled": False, "size": 130, "strokeWidth": 2, "stroke": FAILED, "opacity": 1.0}
    return [
        {
            "data": {"values": measured},
            "mark": mark,
            "encoding": {"x": {**x, "field": "measured"}, "description": LABEL},
        }
    ]


def _texts() -> list[dict[str, Any]]:
    """Return the name of each parameter and its two values, above its interval, over a halo that no line crosses."""
    words = {"type": "text", "baseline": "middle", "fontSize": 11, "dy": -16, "aria": False}
    halo = {"style": "halo", "strokeWidth": 4, "opacity": 0.85}
    return [
        {
            "mark": {**words, "align": align, "limit": limit, **weight, **style},
            "encoding": {"x": {"value": at}, "text": {"field": field, "type": "nominal"}},
        }
        for field, at, align, limit, weight in (
            ("parameter", 0, "left", _NAMES, {"fontWeight": 600}),
            ("change", _PLOT, "right", _PLOT, {}),
        )
        for style in (halo, {})
    ]
