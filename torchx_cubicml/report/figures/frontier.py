"""Figure of the launches in their order, with the best so far, the rounds of a tune and the failures.

After CubicML (arXiv 2409.04585), figure 2 (a).
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.drawn_points import evenly_spaced, sample_text
from torchx_cubicml.report.figures.failure_shapes import shape_by_outcome
from torchx_cubicml.report.style import COUNT, FAILED, HEIGHT, LABEL, LARGE, NEUTRAL, RATE, SCHEMA, STRONG, WIDTH, point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LETTER = 6.5  # pixels of a letter of a label; one that is wider than its launches is left out
_MOST_BANDS = 40  # more rounds than that are not marked: lines would cover the plot
_LATER = "afterwards"


def frontier(
    rows: Sequence[Mapping[str, Any]],
    *,
    unit: str,
    order: str = "in the order of their start",
    most: int = sys.maxsize,
) -> dict[str, Any]:
    """Return the figure as a Vega-Lite specification.

    Args:
        rows: one per launch, in their order, with ``throughput`` in ``unit`` (``None`` where the launch has none),
            ``outcome`` in words, ``round`` (>= 1; 0 for launches before the first; ``None`` for none) and ``config``, a
            text or a function that makes it: it is called for the drawn launches alone.
        unit: of the throughput, in words.
        order: of the launches, in words.
        most: points of measured launches, and of others, that are drawn; the line is always that of all launches.
    """
    launches = [{"launch": number, **row} for number, row in enumerate(rows, start=1)]
    measured = [each for each in launches if each["throughput"] is not None]
    failed = [each for each in launches if each["throughput"] is None]
    sample = sample_text([len(measured), len(failed)], most=most)
    x: dict[str, Any] = {"field": "launch", "type": "quantitative", "title": f"launch, {order}"}
    x |= {"scale": {"domain": [0, len(launches) + 1], "nice": False}, "axis": {"format": COUNT, "tickMinStep": 1}}
    y = {"field": "throughput", "type": "quantitative", "title": unit, "axis": LARGE}
    counted = _failures(launches)
    return {
        "$schema": SCHEMA,
        "description": f"Throughput of launches {order}, with the best so far. {counted}.{_best(measured, unit)}",
        "title": {
            "text": "Throughput of each launch, and the best so far",
            "subtitle": "; ".join(filter(None, (counted, sample))),
        },
        "width": WIDTH,
        "height": HEIGHT,
        "layer": [
            *_marks_of_rounds(_bands(launches), n_launches=len(launches)),
            *_best_so_far(measured, x, y, last=len(launches)),
            _points(measured, _labelled(evenly_spaced(measured, most=most), unit), x, y),
            *([_failed(failed, _labelled(evenly_spaced(failed, most=most), unit), x, y)] if failed else []),
        ],
    }


def _labelled(launches: Sequence[Mapping[str, Any]], unit: str) -> list[dict[str, Any]]:
    """Return launches with the text of each point, for readers who cannot see it, and for a page without Vega."""
    found = []
    for each in launches:
        rate, config = each["throughput"], each["config"]
        text = config() if callable(config) else config
        measured = f"{_rate(rate)} {unit}" if rate is not None else ""
        label = "; ".join(filter(None, (f"launch {each['launch']:,}", measured, each["outcome"], text)))
        found.append({**each, "throughput": rate or 0.0, "config": text, "label": label})
    return found


def _best(measured: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Return a sentence on the launch of highest throughput; empty without a measurement."""
    if not measured:
        return ""
    best = max(measured, key=lambda each: float(each["throughput"]))
    return f" The best is {_rate(best['throughput'])} {unit}, at launch {best['launch']:,}."


def _rate(rate: float) -> str:
    return f"{rate:{',.0f' if rate >= 100 else '.3g'}}"


def _failures(launches: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of launches with how those without a throughput ended."""
    counted = Counter(each["outcome"] for each in launches if each["throughput"] is None)
    total = f"{len(launches):,} launch{'es' if len(launches) != 1 else ''}"
    if not counted:
        return total
    kinds = ", ".join(f"{count:,} {outcome}" for outcome, count in counted.most_common())
    return f"{total}; without a throughput, on the axis: {kinds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """Launches that stand side by side: those before the first round, those of one, or those behind the last."""

    label: str
    first: int
    last: int


def _bands(launches: Sequence[Mapping[str, Any]]) -> list[_Band]:
    """Return the bands from left to right; none without rounds."""
    numbers = sorted({each["round"] for each in launches if each["round"]})
    if not numbers or len(numbers) > _MOST_BANDS:
        return []
    labels = {0: "first launches", None: _LATER} | {number: f"round {number}" for number in numbers}
    bands = []
    for number in (0, *numbers, None):
        places = [each["launch"] for each in launches if each["round"] == number]
        if places:
            bands.append(_Band(label=labels[number], first=min(places), last=max(places)))
    return bands


def _marks_of_rounds(bands: Sequence[_Band], *, n_launches: int) -> list[dict[str, Any]]:
    """Return a thin line between bands, and the name of each band that is wide enough for it."""
    if not bands:
        return []
    x = {"field": "x", "type": "quantitative"}
    pixels = WIDTH / (n_launches + 1)
    wide = [band for band in bands if (band.last - band.first + 1) * pixels >= _LETTER * len(band.label)]
    return [
        {
            "data": {"values": [{"x": band.first - 0.5} for band in bands[1:]]},
            "mark": {"type": "rule", "strokeDash": [3, 3], "opacity": 0.5},
            "encoding": {"x": x},
        },
        {
            "data": {"values": [{"x": (band.first + band.last) / 2, "label": band.label} for band in wide]},
            "mark": {"type": "text", "baseline": "bottom", "dy": -4},
            "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "label", "type": "nominal"}},
        },
    ]


def _points(
    measured: Sequence[Mapping[str, Any]], drawn: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any]
) -> dict[str, Any]:
    numbers = sorted({each["round"] for each in measured if each["round"]})
    plain = {"test": "!datum.round", "value": NEUTRAL if numbers else STRONG}
    colour = {"condition": plain, "field": "round", "type": "ordinal", "legend": None, "scale": {"domain": numbers}}
    return {
        "data": {"values": drawn},
        "mark": point(len(measured)),
        "encoding": {"x": x, "y": y, "color": colour, "tooltip": _tooltip(y["title"]), "description": LABEL},
    }


def _failed(
    failed: Sequence[Mapping[str, Any]], drawn: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any]
) -> dict[str, Any]:
    return {
        "data": {"values": drawn},
        "mark": {"type": "point", "stroke": FAILED, "strokeWidth": 1.8, "size": 52, "filled": False},
        "encoding": {
            "x": x,
            "y": y,
            "shape": shape_by_outcome(failed),
            "tooltip": [each for each in _tooltip("") if each["field"] != "throughput"],
            "description": LABEL,
        },
    }


def _best_so_far(
    measured: Sequence[Mapping[str, Any]], x: dict[str, Any], y: dict[str, Any], *, last: int
) -> list[dict[str, Any]]:
    """Return the staircase of the best so far, and its last value beside it; nothing without a measurement."""
    steps: list[dict[str, Any]] = []
    for each in measured:
        if not steps or each["throughput"] > steps[-1]["throughput"]:
            steps.append({"launch": each["launch"], "throughput": each["throughput"]})
    if not steps:
        return []
    best = steps[-1]["throughput"]
    end = {"launch": last, "throughput": best, "text": _rate(best)}
    return [
        {
            "data": {"values": [*steps, end]},
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6},
            "encoding": {"x": x, "y": y},
        },
        {
            "data": {"values": [end]},
            "mark": {"type": "text", "align": "left", "dx": 6, "fontWeight": 600},
            "encoding": {"x": x, "y": y, "text": {"field": "text", "type": "nominal"}},
        },
    ]


def _tooltip(unit: str) -> list[dict[str, Any]]:
    return [
        {"field": "launch", "type": "quantitative", "format": COUNT},
        {"field": "throughput", "type": "quantitative", "title": unit, "format": RATE},
        {"field": "outcome", "type": "nominal"},
        {"field": "config", "type": "nominal"},
    ]
