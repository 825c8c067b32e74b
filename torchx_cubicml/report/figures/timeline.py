"""Figure of launches over wall time: queued, starting up, running, and how each ended; parallel ones in lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.figures.failure_shapes import shape_by_outcome
from torchx_cubicml.report.style import FAILED, LABEL, NEUTRAL, SCHEMA, STRONG, WIDTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PHASES = {
    "queued": "#c3c8cf",
    "starting up": "#e69f00",
    "running": STRONG,
    "no start recorded": NEUTRAL,
}
"""Phase of a launch -> its colour."""
_LANE, _LEAST_HEIGHT = 24, 36  # pixels
_LETTER, _GAP = 6.3, 10  # pixels of a letter of a label, and between two
_UNITS = (
    (4 * 86_400.0, "days", 86_400.0),
    (2 * 3600.0, "hours", 3600.0),
    (120.0, "minutes", 60.0),
    (0.0, "seconds", 1.0),
)


def timeline(
    spans: Sequence[Mapping[str, Any]],
    ends: Sequence[Mapping[str, Any]],
    marks: Sequence[tuple[float, str, bool]],
    *,
    title: str,
    since: str,
    note: str = "",
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` without a span.

    Args:
        spans: of launches in one phase, with ``begin`` and ``end`` in seconds, ``lane`` (>= 0), ``phase`` (of
            ``PHASES``) and ``label``, what it is in words.
        ends: of launches that did not complete, with ``at`` in seconds, ``lane``, ``outcome`` (of ``ENDS``) and
            ``label``.
        marks: seconds, a text, and whether time was cut out there; the others are where a round begins.
        title: in words.
        since: time of second 0, in words.
        note: sentence below the title.
    """
    if not spans:
        return None
    last = max(span["end"] for span in spans)
    unit, size = next((unit, size) for least, unit, size in _UNITS if last >= least)
    lanes = 1 + max(span["lane"] for span in spans)
    is_cut = any(cut for _, _, cut in marks)
    axis = f"{unit} since {since}{', pauses cut out' if is_cut else ''}"
    x: dict[str, Any] = {"field": "begin", "type": "quantitative", "title": axis}
    x |= {"scale": {"domain": [0, last / size], "nice": False}}
    y = {"field": "lane", "type": "ordinal", "axis": None, "scale": {"domain": [*range(lanes)], "padding": 0.25}}
    bars = [{**span, "begin": span["begin"] / size, "end": span["end"] / size} for span in spans]
    return {
        "$schema": SCHEMA,
        "description": "Launches over wall time: when each was queued, starting up and running, and how it ended.",
        "title": {"text": title, "subtitle": note},
        "width": WIDTH,
        "height": max(_LANE * lanes, _LEAST_HEIGHT),
        "layer": [
            *_marked([(at / size, text, cut) for at, text, cut in marks], last=last / size),
            _bars(bars, x, y),
            *([_crosses([{**each, "at": each["at"] / size} for each in ends], x, y)] if ends else []),
        ],
        "resolve": {"scale": {"color": "independent"}},
    }


def _bars(bars: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    found = {bar["phase"] for bar in bars}
    phases = [phase for phase in PHASES if phase in found]
    scale = {"domain": phases, "range": [PHASES[phase] for phase in phases]}
    legend = {"orient": "bottom", "title": None, "symbolType": "square", "direction": "horizontal"}
    return {
        "data": {"values": bars},
        "mark": {"type": "bar", "cornerRadius": 1},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": y,
            "color": {"field": "phase", "type": "nominal", "scale": scale, "legend": legend},
            "description": LABEL,
        },
    }


def _crosses(ends: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {"values": ends},
        "mark": {"type": "point", "filled": False, "stroke": FAILED, "strokeWidth": 2, "size": 64, "opacity": 1},
        "encoding": {
            "x": {**x, "field": "at"},
            "y": y,
            "shape": shape_by_outcome(ends),
            "description": LABEL,
        },
    }


def _marked(marks: Sequence[tuple[float, str, bool]], *, last: float) -> list[dict[str, Any]]:
    """Return a thin line at each mark, dashed where a round begins, and the texts that have room beside each other."""
    if not marks:
        return []
    x = {"field": "x", "type": "quantitative"}
    rules = [
        {
            "data": {"values": [{"x": at} for at, _, cut in marks if cut is is_cut]},
            "mark": {"type": "rule", "opacity": 0.55, **({} if is_cut else {"strokeDash": [3, 3]})},
            "encoding": {"x": x},
        }
        for is_cut in (False, True)
        if any(cut is is_cut for _, _, cut in marks)
    ]
    texts = {
        "data": {"values": [{"x": at, "text": text} for at, text in _with_room(marks, last=last)]},
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": 3, "dy": -4},
        "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "text", "type": "nominal"}},
    }
    return [*rules, texts]


def _with_room(marks: Sequence[tuple[float, str, bool]], *, last: float) -> list[tuple[float, str]]:
    """Return the marks whose texts end before the next one that is kept, and within the plot; dates go first."""
    kept: list[tuple[float, float, str]] = []
    for at, text, _ in sorted(marks, key=lambda mark: not mark[2]):
        left = at / last * WIDTH
        right = left + _LETTER * len(text) + _GAP
        if right <= WIDTH + _GAP and all(right <= begin or left >= end for begin, end, _ in kept):
            kept.append((left, right, text))
    return [(left / WIDTH * last, text) for left, _, text in kept]
