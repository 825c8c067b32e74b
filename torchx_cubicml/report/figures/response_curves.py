"""Figure of the response of throughput to each telling parameter, in small multiples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.figures.cell_grid import CROSS
from torchx_cubicml.report.style import FAILED, LABEL, LARGE, PANEL, SCHEMA, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IN_A_ROW = 3
_HEIGHT = 150  # pixels of a panel
_LETTER = 6.2  # pixels of a letter of an axis
_TURN = -30  # degrees of labels that are too long to stand side by side
_SPLIT = 1.5  # ratio of throughputs above which axes start at zero


def response_curves(panels: Sequence[Mapping[str, Any]], *, unit: str) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a panel.

    Args:
        panels: one per parameter, with ``name``, ``detail`` (what is counted; else empty), ``is_number`` (whether its
            values are numbers in order), ``values`` (all of them, as texts in order) and ``points``: for each value its
            ``value``, ``predicted``, ``low``, ``high`` (80 % interval), ``measured`` (list), ``fits`` (whether it
            likely fits in memory), ``is_best`` and ``mark`` (words for the value of the best or the user's own config).
        unit: of the throughput, in words.
    """
    if not panels:
        return None
    ends = [each for panel in panels for point in panel["points"] for each in (point["low"], point["high"])]
    ends += [each for panel in panels for point in panel["points"] for each in point["measured"]]
    domain = [0.0 if max(ends) > _SPLIT * min(ends) else 0.97 * min(ends), 1.03 * max(ends)]
    has_risk = any(not point["fits"] for panel in panels for point in panel["points"])
    has_measured = any(point["measured"] for panel in panels for point in panel["points"])
    has_details = any(panel["detail"] for panel in panels)
    return {
        "$schema": SCHEMA,
        "description": f"Predicted throughput at each value of {_count(panels)}, with its interval.",
        "title": {
            "text": "Throughput at each value of a parameter",
            "subtitle": [
                f"{unit}; all other parameters as in the best config",
                _reading(has_measured=has_measured, has_risk=has_risk),
            ],
        },
        "concat": [
            _panel(panel, unit, domain, is_first=number % _IN_A_ROW == 0, has_details=has_details)
            for number, panel in enumerate(panels)
        ],
        "columns": _IN_A_ROW,
        "align": "all",
        "bounds": "flush",
        "spacing": {"row": 56, "column": 28},
    }


def _count(panels: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(panels)} parameters" if len(panels) != 1 else "one parameter"


def _reading(*, has_measured: bool, has_risk: bool) -> str:
    parts = ["filled: predicted, with its 80 % interval", "large: the best config"]
    parts += ["ring: measured"] if has_measured else []
    parts += ["cross: likely does not fit in memory"] if has_risk else []
    return "; ".join(parts)


def _panel(
    panel: Mapping[str, Any], unit: str, domain: list[float], *, is_first: bool, has_details: bool
) -> dict[str, Any]:
    points = [{**point, "label": _label(panel["name"], point, unit)} for point in panel["points"]]
    room = PANEL / len(panel["values"])
    longest = max(len(value) for value in panel["values"])
    is_turned = not panel["is_number"] and longest * _LETTER > room
    x: dict[str, Any] = {"field": "value", "type": "nominal", "sort": list(panel["values"]), "title": None}
    x |= {"scale": {"domain": list(panel["values"])}}
    x |= {
        "axis": {
            "labelAngle": _TURN if is_turned else 0,
            "labelLimit": 120,
            "labelOverlap": not is_turned,
            "labelSeparation": 5,
        }
    }
    y: dict[str, Any] = {"type": "quantitative", "title": None, "scale": {"domain": domain, "nice": False}}
    y |= {"axis": {**LARGE, "tickCount": 4, "labels": is_first}}
    return {
        "title": {"text": panel["name"], "frame": "group", "fontSize": 12, "offset": 8, "limit": PANEL}
        | ({"subtitle": panel["detail"] or " "} if has_details else {}),
        "width": PANEL,
        "height": _HEIGHT,
        "layer": _layers(points, x, y, is_number=panel["is_number"]),
    }


def _label(name: str, point: Mapping[str, Any], unit: str) -> str:
    """Return the text of a point, for readers who cannot see it."""
    low, predicted, high = (f"{point[key]:,.4g}" for key in ("low", "predicted", "high"))
    texts = [f"{name} {point['value']}", f"predicted {predicted} {unit}, 80 % interval {low} to {high}"]
    texts += [f"measured {', '.join(f'{each:,.4g}' for each in point['measured'][:3])}"] if point["measured"] else []
    texts += [] if point["fits"] else ["likely does not fit in memory"]
    return "; ".join([*texts, *filter(None, [point["mark"]])])


def _layers(
    points: Sequence[Mapping[str, Any]], x: dict[str, Any], y: dict[str, Any], *, is_number: bool
) -> list[dict[str, Any]]:
    """Return a band and a line over numbers, an interval at each other value, and the points."""
    low, middle = ({**y, "field": name} for name in ("low", "predicted"))
    band = {"type": "area", "opacity": 0.18, "color": STRONG, "aria": False}
    line = {"type": "line", "strokeWidth": 1.6, "color": STRONG, "aria": False}
    rule = {"type": "rule", "strokeWidth": 8, "opacity": 0.28, "color": STRONG, "aria": False, "strokeCap": "round"}
    measured = [{"value": each["value"], "rate": rate} for each in points for rate in each["measured"]]
    risky = [each for each in points if not each["fits"]]
    size = {"condition": {"test": "datum.is_best", "value": 110}, "value": 32}
    shown = [
        {"mark": band, "encoding": {"x": x, "y": low, "y2": {"field": "high"}}},
        {"mark": line, "encoding": {"x": x, "y": middle}},
    ]
    shown = shown if is_number else [{"mark": rule, "encoding": {"x": x, "y": low, "y2": {"field": "high"}}}]
    layers: list[dict[str, Any]] = [{"data": {"values": list(points)}, **layer} for layer in shown]
    layers.append(
        {
            "data": {"values": list(points)},
            "mark": {"type": "point", "color": STRONG, "opacity": 1.0},
            "encoding": {"x": x, "y": middle, "size": size, "description": LABEL},
        }
    )
    if measured:
        ring = {"type": "point", "filled": False, "size": 60, "strokeWidth": 1.8, "stroke": FAILED, "aria": False}
        rate = {**y, "field": "rate"}
        layers.append({"data": {"values": measured}, "mark": {**ring, "opacity": 0.9}, "encoding": {"x": x, "y": rate}})
    if risky:
        cross = {"type": "point", "style": "ink", "size": 40, "yOffset": -11, "aria": False, **CROSS}
        layers.append({"data": {"values": risky}, "mark": cross, "encoding": {"x": x, "y": middle}})
    return layers
