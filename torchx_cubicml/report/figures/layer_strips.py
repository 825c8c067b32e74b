"""Figure of one parameter's value in each layer, or each embedding table: a strip of coloured layers per config."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import KINDS, LABEL, SCHEMA, WIDTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OTHERS = "other values"
_ROW = 30  # pixels of a config
_LETTER = 6.4  # pixels of a letter of a value
_NAMES = 150  # pixels of the names of configs
_LEGEND, _SYMBOL = 200, 26  # pixels of a value in the legend, and of its colour with its margins
_PLOT = WIDTH - 120


def layer_strips(
    rows: Sequence[Mapping[str, Any]], *, name: str, levels: Sequence[str], entry: str
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a row.

    Args:
        rows: one per config, in order, with ``config`` (what it is, in words), ``values`` (text of each entry, in
            order) and ``rate`` (throughput as text).
        name: of the parameter.
        levels: values that occur, as texts, the most frequent first; more than the colours share the last one.
        entry: what the value is of, in words: ``layer`` or ``table``.
    """
    if not rows:
        return None
    shown = list(levels) if len(levels) <= len(KINDS) else [*levels[: len(KINDS) - 1], OTHERS]
    runs = [run for row in rows for run in _runs(row, shown, entry)]
    longest = max(len(row["values"]) for row in rows)
    x: dict[str, Any] = {"field": "first", "type": "quantitative", "title": entry}
    x |= {"scale": {"domain": [0.5, longest + 0.5], "nice": False}}
    x |= {"axis": {"tickMinStep": 1, "format": "d", "domain": False, "values": _ticks(longest)}}
    y: dict[str, Any] = {
        "field": "config",
        "type": "nominal",
        "sort": None,
        "title": None,
        "scale": {"paddingInner": 0.3},
    }
    y |= {"axis": {"labelLimit": _NAMES, "grid": False}}
    colour: dict[str, Any] = {"field": "level", "type": "nominal", "legend": _legend(shown)}
    colour |= {"scale": {"domain": shown, "range": list(KINDS[: len(shown)])}}
    return {
        "$schema": SCHEMA,
        "description": f"Value of each {entry} in {len(rows)} configs: runs of equal {entry}s have one colour.",
        "title": {"text": name, "subtitle": f"one row per config, one colour per value; numbers: {entry}s in order"},
        "width": _PLOT,
        "height": {"step": _ROW},
        "layer": [
            {
                "data": {"values": runs},
                "mark": {"type": "rect", "stroke": None},
                "encoding": {"x": x, "x2": {"field": "end"}, "y": y, "color": colour, "description": LABEL},
            },
            *_texts(runs, x, y, shown, longest),
            {
                "data": {"values": [{"config": row["config"], "rate": row["rate"]} for row in rows]},
                "mark": {"type": "text", "align": "left", "aria": False},
                "encoding": {"x": {"value": _PLOT + 10}, "y": y, "text": {"field": "rate", "type": "nominal"}},
            },
        ],
    }


def _legend(shown: Sequence[str]) -> dict[str, Any]:
    """Return the legend of the values: one row, or columns where they are too long for one."""
    legend = {"orient": "top", "title": None, "symbolType": "square", "symbolStrokeWidth": 0, "labelLimit": _LEGEND}
    widths = [min(len(value) * _LETTER, _LEGEND) + _SYMBOL for value in shown]
    return legend | ({"columns": max(int(WIDTH / max(widths)), 1)} if sum(widths) > WIDTH else {})


def _runs(row: Mapping[str, Any], shown: Sequence[str], entry: str) -> list[dict[str, Any]]:
    """Return the runs of equal neighbouring entries of one config."""
    found, start = [], 0
    for value, group in groupby(row["values"]):
        end = start + len(list(group))
        where = f"{entry} {start + 1}" if end == start + 1 else f"{entry}s {start + 1} to {end}"
        found.append(
            {
                "config": row["config"],
                "first": start + 0.5,
                "end": end + 0.5,
                "level": value if value in shown else OTHERS,
                "value": value,
                "label": f"{row['config']}; {where}: {value}",
            }
        )
        start = end
    return found


def _ticks(count: int) -> list[int]:
    """Return the numbers below the strips.

    >>> _ticks(4), _ticks(64)
    ([1, 2, 3, 4], [1, 10, 20, 30, 40, 50, 60, 64])
    """
    if count <= 24:
        return list(range(1, count + 1))
    step = next(step for step in (5, 10, 20, 50, 100, 200, 500, 1000) if count / step <= 10)
    middle = [place for place in range(step, count, step) if count - place >= 0.3 * step]
    return [1, *middle, count]


def _texts(
    runs: Sequence[Mapping[str, Any]], x: dict[str, Any], y: dict[str, Any], shown: Sequence[str], longest: int
) -> list[dict[str, Any]]:
    """Return the value in each run that is wide enough for it, so that colour is not all that tells."""
    wide = [
        {"config": run["config"], "middle": (run["first"] + run["end"]) / 2, "value": run["value"], "place": place}
        for run in runs
        for place in [list(shown).index(run["level"])]
        if (run["end"] - run["first"]) * _PLOT / longest >= _LETTER * len(run["value"]) + 8
    ]
    layers = []
    for is_dark in (False, True):
        values = [each for each in wide if (each["place"] > 0) == is_dark]
        if values:
            colour = "#000000" if is_dark else "#fefefe"
            layers.append(
                {
                    "data": {"values": values},
                    "mark": {"type": "text", "fontSize": 10, "fontWeight": 600, "color": colour, "aria": False},
                    "encoding": {"x": {**x, "field": "middle"}, "y": y, "text": {"field": "value", "type": "nominal"}},
                }
            )
    return layers
