"""Figure of predicted against measured throughput, one panel per round, with the rank correlation of each.

After CubicML (arXiv 2409.04585), figures 2 (b) and 3.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.drawn_points import evenly_spaced, sample_text
from torchx_cubicml.report.style import HEIGHT, LABEL, LARGE, PANEL, RATE, SCHEMA, SHARE, STRONG, point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_PANELS = 9  # more rounds share one panel
_IN_A_ROW = {4: 2, 8: 4}  # panels of a row, where three would leave gaps


def predicted_measured(
    rows: Sequence[Mapping[str, Any]], *, unit: str, taus: Mapping[int | None, float | None], most: int = sys.maxsize
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a row.

    Args:
        rows: one per launch that was predicted and measured, with ``predicted`` and ``measured`` in ``unit``, ``round``
            (>= 1; ``None`` for launches of no round) and ``config``, a text or a function that makes it: it is called
            for the drawn launches alone.
        unit: of the throughput, in words.
        taus: Kendall's tau of each round; ``None`` where unknown.
        most: launches that are drawn.
    """
    if not rows:
        return None
    rounds = sorted({row["round"] for row in rows}, key=lambda number: (number is None, number))
    is_split = 1 < len(rounds) <= _MOST_PANELS
    labels = {number: _label(number, taus.get(number)) for number in rounds}
    values = [_drawn(row, labels[row["round"]]) for row in evenly_spaced(rows, most=most)]
    note = (f"{unit}; on the line, the prediction came true", sample_text([len(rows)], most=most))
    figure: dict[str, Any] = {
        "$schema": SCHEMA,
        "description": f"Predicted against measured throughput of {len(rows)} launches.",
        "title": {"text": "Predicted and measured throughput", "subtitle": "; ".join(filter(None, note))},
        "data": {"values": values},
    }
    if is_split:
        facet = {"field": "panel", "type": "nominal", "sort": list(labels.values())}
        panel = {"width": PANEL, "height": PANEL, "layer": _layers(rows, has_many=True)}
        return {**figure, "facet": facet, "columns": _IN_A_ROW.get(len(rounds), 3), "spec": panel}
    if len(rounds) == 1:
        figure["title"]["text"] += f", {labels[rounds[0]]}" if rounds[0] is not None else ""
    return {**figure, "width": HEIGHT, "height": HEIGHT, "layer": _layers(rows, has_many=False)}


def _label(number: int | None, tau: float | None) -> str:
    name = f"round {number}" if number is not None else "other launches"
    return f"{name}, tau {tau:{SHARE}}" if tau is not None else name


def _drawn(row: Mapping[str, Any], panel: str) -> dict[str, Any]:
    """Return a launch with the text of its point, for readers who cannot see it, and for a page without Vega."""
    rates = (f"{name} {row[name]:,.6g}" for name in ("predicted", "measured"))
    config = row["config"]() if callable(row["config"]) else row["config"]
    return {**row, "config": config, "panel": panel, "label": "; ".join(filter(None, (*rates, config)))}


def _layers(rows: Sequence[Mapping[str, Any]], *, has_many: bool) -> list[dict[str, Any]]:
    """Return the line of equal values, and the launches.

    Args:
        rows: as for ``predicted_measured``.
        has_many: whether a panel shows one round of several.
    """
    both = [row[name] for row in rows for name in ("predicted", "measured")]
    low, high = min(both), max(both)
    margin = 0.05 * (high - low) or 0.05 * high
    domain = [max(low - margin, 0.0), high + margin]
    scale = {"domain": domain, "nice": False, "zero": False}
    x, y = (
        {"field": name, "type": "quantitative", "title": name, "scale": scale}
        | {"axis": {**LARGE, "tickCount": 4, "grid": True}}
        for name in ("predicted", "measured")
    )
    corners = [{"predicted": end, "measured": end} for end in domain]
    legend = {"legend": None} if has_many else {"title": "round"}
    colour = {"field": "round", "type": "ordinal" if has_many else "quantitative", **legend}
    numbers = {row["round"] for row in rows}
    if not has_many and len(numbers) == 1:
        colour = {"value": STRONG}
    tooltip = [
        {"field": "round", "type": "nominal"},
        *({"field": name, "type": "quantitative", "format": RATE} for name in ("predicted", "measured")),
        {"field": "config", "type": "nominal"},
    ]
    return [
        {
            "data": {"values": corners},
            "mark": {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "opacity": 0.5},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": point(len(rows)),
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip, "description": LABEL},
        },
    ]
