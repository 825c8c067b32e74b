"""Figure of the rank correlation between predicted and measured throughput, within each round and over all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import NEUTRAL, SCHEMA, SHARE, STRONG, WIDTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEIGHT = 220
_NORMAL_95 = 1.96
_WIDEST_STEP = 90  # pixels of one bar and the gap beside it
ALL = "all rounds"


def rank_correlation(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` where no row has a tau.

    Behind each bar stands what orders at random give: 95 % of their taus, by the normal approximation without ties.

    Args:
        rows: one per round in their order, and one for all of them, with ``round`` (a number, or ``ALL``), ``tau``
            (Kendall's, -1 to 1; ``None`` where unknown) and ``launches``, the number that was predicted and measured.
    """
    if all(row["tau"] is None for row in rows):
        return None
    values = [
        {**row, "round": str(row["round"]), "chance": (chance := tau_of_chance(row["launches"])), "below": -chance}
        for row in rows
        if row["tau"] is not None
    ]
    few = "; no bar: too few launches, or all alike" if len(values) < len(rows) else ""
    names = [str(row["round"]) for row in rows]
    x = {"field": "round", "type": "nominal", "sort": names, "title": "round", "scale": {"domain": names}}
    x |= {"axis": {"labelAngle": 0, "labelOverlap": True, "domain": False}}
    y = {"type": "quantitative", "title": "Kendall's tau", "scale": {"domain": [-1, 1]}}
    axis = {"axis": {"values": [-1, -0.5, 0, 0.5, 1]}}
    tooltip = [
        {"field": "round", "type": "nominal"},
        {"field": "tau", "type": "quantitative", "format": SHARE},
        {"field": "launches", "type": "quantitative"},
        {"field": "chance", "type": "quantitative", "format": SHARE, "title": "95 % of random orders, ±"},
    ]
    colour = {"condition": {"test": f"datum.round === '{ALL}'", "value": NEUTRAL}, "value": STRONG}
    return {
        "$schema": SCHEMA,
        "description": "Kendall's tau between predicted and measured throughput within each round, and over all.",
        "title": {
            "text": "How well predictions ranked the launches",
            "subtitle": f"1: in the predicted order; behind each bar: 95 % of random orders{few}",
        },
        "width": min(WIDTH, _WIDEST_STEP * len(names)),
        "height": _HEIGHT,
        "data": {"values": values},
        "encoding": {"x": x},
        "layer": [
            {
                "mark": {"type": "bar", "width": {"band": 0.8}, "color": NEUTRAL, "opacity": 0.25},
                "encoding": {"y": {**y, **axis, "field": "below"}, "y2": {"field": "chance"}, "tooltip": tooltip},
            },
            {
                "mark": {"type": "bar", "width": {"band": 0.4}},
                "encoding": {"y": {**y, **axis, "field": "tau"}, "color": colour, "tooltip": tooltip},
            },
            *(_numbers(y, is_negative=each) for each in (False, True)),
            {"mark": "rule", "encoding": {"x": None, "y": {"datum": 0, "type": "quantitative"}}},
        ],
    }


def _numbers(y: dict[str, Any], *, is_negative: bool) -> dict[str, Any]:
    """Return the layer that writes each tau at the end of its bar."""
    side = {"baseline": "top", "dy": 4} if is_negative else {"baseline": "bottom", "dy": -3}
    return {
        "transform": [{"filter": f"datum.tau {'<' if is_negative else '>='} 0"}],
        "mark": {"type": "text", **side},
        "encoding": {"y": {**y, "field": "tau"}, "text": {"field": "tau", "type": "quantitative", "format": SHARE}},
    }


def tau_of_chance(launches: int) -> float:
    """Return the tau that 95 % of random orders of ``launches``, >= 2, do not exceed.

    >>> round(tau_of_chance(33), 2)
    0.24
    """
    deviation = (2 * (2 * launches + 5) / (9 * launches * (launches - 1))) ** 0.5
    return float(min(_NORMAL_95 * deviation, 1.0))
