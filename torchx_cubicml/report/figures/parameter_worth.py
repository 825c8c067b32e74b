"""Figure of what each parameter is worth: the best config with another value of one, predicted and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import LABEL, NEUTRAL, SCHEMA, SHARE, STRONG, WIDTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_ROWS = 60
_STEP = 20  # pixels of a row
_LABEL_WIDTH = 320  # pixels; longer labels end with an ellipsis


def parameter_worth(rows: Sequence[Mapping[str, Any]], *, unit: str) -> dict[str, Any]:
    """Return the figure as a Vega-Lite specification.

    Args:
        rows: one per other value, in their order: ``parameter``, ``value`` and ``best`` (the best config's) as text,
            ``predicted`` (the ratio to the best config) with ``low`` and ``high`` of its 80 % interval, ``measured``
            (likewise, or ``None``), and ``fits`` (the probability to fit in memory).
        unit: of the throughput, in words.
    """
    shown = [{**row, "row": _row_name(row), "label": _text(row)} for row in rows[:_MOST_ROWS]]
    left_out = f"; {len(rows) - len(shown):,} more values are left out" if len(rows) > len(shown) else ""
    axis = {"labelLimit": _LABEL_WIDTH, "grid": True}
    y: dict[str, Any] = {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": axis}
    x: dict[str, Any] = {"field": "predicted", "type": "quantitative", "scale": {"zero": False}}
    x |= {"title": f"{unit}, over that of the best config", "axis": {"format": SHARE, "grid": True}}
    return {
        "$schema": SCHEMA,
        "description": f"The best config with {len(shown)} other values of single parameters.",
        "title": {
            "text": "Changing one parameter of the best config",
            "subtitle": f"dot and line: predicted, with its 80 % interval; diamond: measured{left_out}",
        },
        "width": WIDTH - _LABEL_WIDTH,
        "height": {"step": _STEP},
        "data": {"values": shown},
        "layer": [
            {
                "mark": {"type": "rule", "strokeDash": [4, 4]},
                "encoding": {"x": {"datum": 1, "type": "quantitative"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.4, "color": STRONG},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "size": 60, "color": STRONG, "opacity": 1},
                "encoding": {"y": y, "x": x, "tooltip": _tooltip(), "description": LABEL},
            },
            {
                "transform": [{"filter": "isValid(datum.measured)"}],
                "mark": {"type": "point", "shape": "diamond", "size": 110, "filled": False, "stroke": NEUTRAL}
                | {"strokeWidth": 2},
                "encoding": {"y": y, "x": {**x, "field": "measured"}, "tooltip": _tooltip()},
            },
        ],
    }


def _row_name(row: Mapping[str, Any]) -> str:
    risk = "" if row["fits"] >= 0.5 else ", does not fit" if row["fits"] == 0.0 else ", may not fit"
    return f"{row['parameter']} {row['best']} → {row['value']}{risk}"


def _text(row: Mapping[str, Any]) -> str:
    """Return the text of a point, for readers who cannot see it."""
    measured = f"; measured {row['measured']:.2f}" if row["measured"] is not None else ""
    return f"{_row_name(row)}: predicted {row['predicted']:.2f}, {row['low']:.2f} to {row['high']:.2f}{measured}"


def _tooltip() -> list[dict[str, Any]]:
    numbers = ("predicted", "low", "high", "measured", "fits")
    texts = [{"field": name, "type": "nominal"} for name in ("parameter", "best", "value")]
    return [*texts, *({"field": name, "type": "quantitative", "format": SHARE} for name in numbers)]
