"""Figure of two objectives: a point for each config, and the frontier of those that no other one surpasses in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import CATEGORIES, HEIGHT, LABEL, LARGE, NEUTRAL, SCHEMA, STRONG, WIDTH, point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OWN, FRONT, OTHER = "your config", "on the frontier", "surpassed in both"
_COLOURS = {OWN: CATEGORIES[3], FRONT: STRONG, OTHER: NEUTRAL}
_SHAPES = {OWN: "square", FRONT: "diamond", OTHER: "circle"}


def objective_front(
    rows: Sequence[Mapping[str, Any]], *, units: tuple[str, str], left_out: int = 0
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` for fewer than two configs.

    Args:
        rows: one per config, with ``first`` and ``second`` (both objectives), ``low_first``, ``high_first``,
            ``low_second`` and ``high_second`` (ends of their 80 % intervals), ``kind`` (``OWN``, ``FRONT`` or
            ``OTHER``), ``is_best`` (whether no other config surpasses it in both) and ``label``.
        units: of both objectives, in words.
        left_out: configs beside the frontier that are not drawn, as there are many.
    """
    if len(rows) < 2:
        return None
    kinds = [kind for kind in _COLOURS if any(row["kind"] == kind for row in rows)]
    how = "further right and further up is better; thin lines: 80 % intervals of configs on the frontier"
    x, y = (
        {"field": name, "type": "quantitative", "title": unit, "scale": {"zero": False, "nice": True}}
        | {"axis": {**LARGE, "grid": True, "tickCount": 6}}
        for name, unit in zip(("first", "second"), units, strict=True)
    )
    legend = {"orient": "bottom", "title": None, "direction": "horizontal", "symbolOpacity": 1}
    kind: dict[str, Any] = {"field": "kind", "type": "nominal", "legend": legend}
    colour = {**kind, "scale": {"domain": kinds, "range": [_COLOURS[each] for each in kinds]}}
    shape = {**kind, "scale": {"domain": kinds, "range": [_SHAPES[each] for each in kinds]}}
    best = sorted((row for row in rows if row["is_best"]), key=lambda row: float(row["first"]))
    return {
        "$schema": SCHEMA,
        "description": f"Two objectives of {len(rows)} configs, and their frontier.",
        "title": {
            "text": "Configs by two objectives, and their frontier",
            "subtitle": f"{how}; {left_out:,} other configs are not drawn" if left_out else how,
        },
        "width": WIDTH,
        "height": HEIGHT,
        "layer": [
            {
                "data": {"values": best},
                "mark": {"type": "line", "interpolate": "step-before", "strokeWidth": 1.4, "opacity": 0.7},
                "encoding": {"x": x, "y": y},
            },
            *(_doubt(best, x, y, axis) for axis in ("first", "second")),
            *(
                {
                    "data": {"values": [row for row in rows if (row["kind"] == OTHER) is is_other]},
                    "mark": {**point(len(rows)), **({} if is_other else {"opacity": 1, "size": 75})},
                    "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "description": LABEL},
                }
                for is_other in (True, False)
            ),
        ],
    }


def _doubt(best: list[Mapping[str, Any]], x: dict[str, Any], y: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the intervals of one objective."""
    low, high = {"field": f"low_{name}"}, {"field": f"high_{name}"}
    ends = {"x": {**x, **low}, "x2": high, "y": y} if name == "first" else {"x": x, "y": {**y, **low}, "y2": high}
    return {"data": {"values": best}, "mark": {"type": "rule", "opacity": 0.6}, "encoding": ends}
