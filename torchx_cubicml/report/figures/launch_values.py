"""Figure of one measured quantity over the launches, with those of the user's own and the best config marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import CATEGORIES, COUNT, LABEL, NEUTRAL, SCHEMA, STRONG, WIDTH, point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEIGHT = 200
OWN, BEST, OTHER = "your config", "best found", "another config"
_COLOURS = {OWN: CATEGORIES[3], BEST: STRONG, OTHER: NEUTRAL}
_SHAPES = {OWN: "square", BEST: "diamond", OTHER: "circle"}


def launch_values(
    rows: Sequence[Mapping[str, Any]], *, title: str, note: str, axis: str, largest: float | None = None
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a row.

    Args:
        rows: one per launch, with ``launch`` (its number in the order of their start, from 1), ``value``, ``kind``
            (``OWN``, ``BEST`` or ``OTHER``) and ``label``.
        title: in words.
        note: sentence below it.
        axis: of the values, with their unit.
        largest: value that is possible at most; ``None`` for none.
    """
    if not rows:
        return None
    kinds = [kind for kind in _COLOURS if any(row["kind"] == kind for row in rows)]
    legend = {"orient": "bottom", "title": None, "direction": "horizontal", "symbolOpacity": 1}
    last, most = max(row["launch"] for row in rows), max(row["value"] for row in rows)
    scale: dict[str, Any] = {"zero": True, "nice": True}
    if largest is not None and most > 0.8 * largest:
        scale = {"domain": [0, max(largest, most)]}
    return {
        "$schema": SCHEMA,
        "description": f"{title}, over {len(rows)} launches.",
        "title": {"text": title, "subtitle": note},
        "width": WIDTH,
        "height": _HEIGHT,
        "layer": [
            {
                "data": {"values": [row for row in rows if (row["kind"] == OTHER) is is_other]},
                "mark": {**point(len(rows)), **({} if is_other else {"opacity": 1, "size": 60})},
                "encoding": {
                    "x": {"field": "launch", "type": "quantitative", "title": "launch, in the order of their start"}
                    | {"scale": {"domain": [0, last + 1], "nice": False}, "axis": {"format": COUNT, "tickMinStep": 1}},
                    "y": {"field": "value", "type": "quantitative", "title": axis, "scale": scale},
                    "color": {"field": "kind", "type": "nominal", "legend": legend if len(kinds) > 1 else None}
                    | {"scale": {"domain": kinds, "range": [_COLOURS[kind] for kind in kinds]}},
                    "shape": {"field": "kind", "type": "nominal", "legend": legend if len(kinds) > 1 else None}
                    | {"scale": {"domain": kinds, "range": [_SHAPES[kind] for kind in kinds]}},
                    "description": LABEL,
                },
            }
            for is_other in (True, False)
            if any((row["kind"] == OTHER) is is_other for row in rows)
        ],
    }
