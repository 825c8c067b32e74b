"""Figure of the best configs as lines over one axis per parameter (parallel coordinates)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import FAILED, LABEL, NEUTRAL, SCHEMA, STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BEST, OWN, OTHER = "the best config", "your own config", "the next best"
"""Kinds of lines."""
_HEIGHT, _WIDTH = 300, 720
_MOST_TICKS = 8  # distinct values from which numbers have a scale, not one place each
_FEW_TICKS = 5  # of a scale
_BUNDLE = 0.05  # height of the lines at one value, as a share of the axis
_MOST_LETTERS = 16  # of a value
_LETTER = 6.6  # pixels of a letter of a name


def parallel_coordinates(
    lines: Sequence[Mapping[str, Any]], *, axes: Sequence[tuple[str, str]], unit: str
) -> dict[str, Any] | None:
    """Return the figure as a Vega-Lite specification; ``None`` with fewer than two lines or axes.

    Args:
        lines: one per config, with ``values`` (one per axis: a number, a text, or ``None`` where it has none),
            ``throughput`` in ``unit``, ``kind`` (``BEST``, ``OWN`` or ``OTHER``) and ``config`` as text.
        axes: name of each parameter, and what is counted along it (else empty).
        unit: of the throughput, in words.
    """
    if len(lines) < 2 or not axes:
        return None
    columns = [*([line["values"][place] for line in lines] for place in range(len(axes)))]
    columns.append([line["throughput"] for line in lines])
    heads = [*axes, ("throughput", "")]
    scales = [_scale(column, is_rate=place == len(axes)) for place, column in enumerate(columns)]
    ticks = [
        {"axis": place, "at": at, "text": _short(text)}
        for place, (_, marks) in enumerate(scales)
        for at, text in marks.items()
    ]
    points = _points(lines, [places for places, _ in scales])
    return {
        "$schema": SCHEMA,
        "description": f"Values of {len(axes)} parameters in {len(lines)} configs, with their throughput.",
        "title": {"text": "What the best configs have in common", "subtitle": _subtitle(lines, unit)},
        "width": _WIDTH,
        "height": _HEIGHT,
        "layer": [
            *_axes(len(heads)),
            *(_lines(points, kind) for kind in (OTHER, OWN, BEST) if any(each["kind"] == kind for each in points)),
            *_ticks(ticks, room=_room(len(heads))),
            *_heads(heads),
            _ends(points, lines, unit, last=len(axes)),
        ],
    }


def _subtitle(lines: Sequence[Mapping[str, Any]], unit: str) -> str:
    kinds = {line["kind"] for line in lines}
    words = {BEST: "blue", OWN: "dashed", OTHER: "grey"}
    meanings = "; ".join(f"{word}: {kind}" for kind, word in words.items() if kind in kinds)
    return f"one line per measured config; {meanings}; right: {unit}"


def _scale(column: Sequence[Any], *, is_rate: bool) -> tuple[list[float | None], dict[float, str]]:
    """Return the place of each value, 0 to 1, and place -> text of the marks on the axis."""
    known = [value for value in column if value is not None]
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    distinct: list[Any] = sorted(set(known)) if are_numbers else sorted(set(map(str, known)))
    if not distinct:
        return [None] * len(column), {}
    if are_numbers and (is_rate or len(distinct) > _MOST_TICKS):
        low, high = float(distinct[0]), float(distinct[-1])
        span = high - low or 1.0
        marks = {step / (_FEW_TICKS - 1): low + step * span / (_FEW_TICKS - 1) for step in range(_FEW_TICKS)}
        texts = {at: _number(value) for at, value in marks.items()} if high > low else {0.5: _number(low)}
        if high == low:
            return [0.5 if value is not None else None for value in column], texts
        return [(float(value) - low) / span if value is not None else None for value in column], texts
    last = len(distinct) - 1
    places = {value: (number + 0.5) / (last + 1) for number, value in enumerate(distinct)}
    texts = {at: value if isinstance(value, str) else _number(value) for value, at in places.items()}
    keys = [value if are_numbers or value is None else str(value) for value in column]
    return [places[key] if key is not None else None for key in keys], texts


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.4g}"


def _short(text: str, most: int = _MOST_LETTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _points(lines: Sequence[Mapping[str, Any]], places: Sequence[Sequence[float | None]]) -> list[dict[str, Any]]:
    """Return the points of the lines; lines of the same value stand side by side in a bundle."""
    points = []
    for axis, column in enumerate(places):
        is_last = axis == len(places) - 1
        for number, at in enumerate(column):
            if at is None:
                continue
            same = [other for other, place in enumerate(column) if place == at]
            aside = 0.0 if is_last or len(same) < 2 else (0.5 - same.index(number) / (len(same) - 1)) * _BUNDLE
            points.append({"axis": axis, "at": at + aside, "line": number, "kind": lines[number]["kind"]})
    return points


_X = {"field": "axis", "type": "quantitative", "axis": None}
_Y = {"field": "at", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1], "nice": False}}


def _x(n_axes: int) -> dict[str, Any]:
    return {**_X, "scale": {"domain": [0, n_axes - 1], "nice": False}}


def _axes(count: int) -> list[dict[str, Any]]:
    places = [{"axis": place, "at": 0.0, "end": 1.0} for place in range(count)]
    return [
        {
            "data": {"values": places},
            "mark": {"type": "rule", "aria": False, "opacity": 0.5},
            "encoding": {"x": _x(count), "y": _Y, "y2": {"field": "end"}},
        }
    ]


def _lines(points: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    styles: dict[str, dict[str, Any]] = {
        BEST: {"color": STRONG, "strokeWidth": 3, "opacity": 1},
        OWN: {"color": FAILED, "strokeWidth": 2.5, "strokeDash": [6, 4], "opacity": 1},
        OTHER: {"color": NEUTRAL, "strokeWidth": 1.3, "opacity": 0.55},
    }
    return {
        "data": {"values": [point for point in points if point["kind"] == kind]},
        "mark": {"type": "line", "aria": False, "interpolate": "monotone", **styles[kind]},
        "encoding": {"x": _X, "y": _Y, "detail": {"field": "line", "type": "nominal"}},
    }


def _room(n_axes: int) -> float:
    """Return the pixels between two axes."""
    return _WIDTH / max(n_axes - 1, 1)


def _ticks(ticks: list[dict[str, Any]], *, room: float) -> list[dict[str, Any]]:
    """Return the values on the axes, each over a halo, so that no line crosses it; cut before the next axis."""
    words = {"type": "text", "align": "right", "dx": -5, "fontSize": 10, "aria": False, "limit": room - 3}
    encoding = {"x": _X, "y": _Y, "text": {"field": "text", "type": "nominal"}}
    halo = {**words, "style": "halo", "strokeWidth": 4, "opacity": 0.85}
    return [{"data": {"values": ticks}, "mark": mark, "encoding": encoding} for mark in (halo, words)]


def _heads(heads: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the names above the axes, every second one higher where they would touch; long ones are cut."""
    room = _room(len(heads))
    is_tight = max(len(text) for head in heads for text in head) * _LETTER > room
    limit = 1.9 * room if is_tight else 0.95 * room
    most = int(limit / _LETTER)  # letters: no font measures heaps of accents
    rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for place, (name, detail) in enumerate(heads):
        row = rows[is_tight and place % 2 == 1]
        row.append({"axis": place, "text": _short(name, most), "detail": _short(detail, most)})
    layers = []
    for is_high, values in rows.items():
        top = -44 if is_high else -14
        for field, y, style in (
            ("text", top - 12, {"fontWeight": 600, "fontSize": 10 if is_tight else 11}),
            ("detail", top, {"fontSize": 10}),
        ):
            words = {"type": "text", "align": "right", "dx": 6, "aria": False, "limit": limit, **style}
            found = [each for each in values if each[field]]
            if found:
                encoding = {"x": _X, "y": {"value": y}, "text": {"field": field, "type": "nominal"}}
                layers.append({"data": {"values": found}, "mark": words, "encoding": encoding})
    return layers


def _ends(
    points: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]], unit: str, *, last: int
) -> dict[str, Any]:
    """Return a point for each config on the axis of throughput, which tells the config."""
    values = [
        {**point, "label": _label(lines[point["line"]], unit)}
        for point in sorted(points, key=lambda point: (OTHER, OWN, BEST).index(point["kind"]))
        if point["axis"] == last
    ]
    colour = [{"test": f"datum.kind === '{kind}'", "value": value} for kind, value in ((BEST, STRONG), (OWN, FAILED))]
    return {
        "data": {"values": values},
        "mark": {"type": "point", "size": 46, "opacity": 1},
        "encoding": {"x": _X, "y": _Y, "color": {"condition": colour, "value": NEUTRAL}, "description": LABEL},
    }


def _label(line: Mapping[str, Any], unit: str) -> str:
    """Return the text of a config, for readers who cannot see it."""
    return f"{line['kind']}; {_number(line['throughput'])} {unit}; {line['config']}"
