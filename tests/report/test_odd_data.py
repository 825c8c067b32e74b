"""Every figure with odd data: a picture of finite size, with a mark for each row that has something to show."""

from __future__ import annotations

import inspect
import math
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import vl_convert

from torchx_cubicml.records.measurement import LEAST_THROUGHPUT, MOST_THROUGHPUT
from torchx_cubicml.report import figures
from torchx_cubicml.report.figures import (
    cell_grid,
    forecast_accuracy,
    frontier,
    launch_values,
    layer_strips,
    memory_boundary,
    objective_front,
    parallel_coordinates,
    parameter_worth,
    predicted_measured,
    promise_ratios,
    rank_correlation,
    response_curves,
    response_map,
    scale_curves,
    timeline,
)
from torchx_cubicml.report.object_names import without_object_names
from torchx_cubicml.report.style import LABEL, theme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

UNIT = "tokens per second"
HOSTILE = "datum['x'] </script><b> ' \" & {{x}} \\ " * 4  # without control characters, as callers leave them out
NUMBERS: dict[str, list[float | None]] = {
    "one": [5.0],
    "equal": [3.0, 3.0, 3.0],
    "some unknown": [None, 2.0, None, 5.0],
    "all unknown": [None, None, None],
    "huge": [0.5 * MOST_THROUGHPUT, MOST_THROUGHPUT],
    "tiny": [LEAST_THROUGHPUT, 2 * LEAST_THROUGHPUT],
    "far apart": [LEAST_THROUGHPUT, 1.0, MOST_THROUGHPUT],
}
"""Numbers > 0 that a figure shows; ``None`` for what is not known."""
TEXTS = {"plain": "a", "hostile": HOSTILE, "name of an object": "constructor"}


def known(numbers: Sequence[float | None]) -> list[float]:
    return [number for number in numbers if number is not None]


def of_launches(numbers: Sequence[float | None], text: str) -> dict[str, Any]:
    rows = [
        {"throughput": number, "outcome": "completed" if number else text, "round": place % 3 or None, "config": text}
        for place, number in enumerate(numbers)
    ]
    return frontier.frontier(rows, unit=UNIT)


def of_predictions(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    rows = [
        {"predicted": 1.1 * number, "measured": number, "round": place % 2 or None, "config": text}
        for place, number in enumerate(known(numbers))
    ]
    return predicted_measured.predicted_measured(rows, unit=UNIT, taus={1: None})


def of_correlations(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    del text
    rows = [
        {"round": place, "tau": number and math.tanh(number - 3), "launches": 2 + place}
        for place, number in enumerate(numbers, 1)
    ]
    return rank_correlation.rank_correlation(rows)


def of_accuracy(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    rows = [
        {
            "known": place,
            "ratio": number or 1.0,
            "low": number and 0.9,
            "high": number and 1.1,
            "label": f"{text}{place}",
        }
        for place, number in enumerate(numbers)
    ]
    return forecast_accuracy.forecast_accuracy(rows)


def of_values(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    rows = [
        {"launch": place, "value": number, "kind": launch_values.OTHER, "label": f"{text}{place}"}
        for place, number in enumerate(known(numbers), 1)
    ]
    return launch_values.launch_values(rows, title=UNIT, note=text, axis=UNIT, largest=100.0)


def of_layers(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    values = [text if number is None else f"{number:g}" for number in numbers]
    rows = [{"config": f"{text}{place}", "values": values, "rate": text} for place in range(2)]
    return layer_strips.layer_strips(rows, name=text, levels=[*dict.fromkeys(values)], entry="layer")


def of_memory(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    x = [f"{text}{place}" for place in range(len(numbers))]
    cells = [
        {"x": name, "y": text, "fits": math.tanh(number or 0.0), "ran": int(number is not None), "failed": 1}
        | {"like_best": True, "peak": number, "mark": cell_grid.BEST if number else ""}
        for name, number in zip(x, numbers, strict=True)
    ]
    return memory_boundary.memory_boundary(cells, x=x, y=[text], names=(text, text))


def of_objectives(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    rows = [
        {"first": number, "second": number, "low_first": number, "high_first": number, "low_second": 0.9 * number}
        | {"high_second": 1.1 * number, "kind": objective_front.FRONT, "is_best": place < 1, "label": f"{text}{place}"}
        for place, number in enumerate(known(numbers))
    ]
    return objective_front.objective_front(rows, units=(UNIT, UNIT), left_out=3)


def of_coordinates(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    lines = [
        {
            "values": [number, text, None],
            "throughput": number or 1.0,
            "kind": parallel_coordinates.OTHER,
            "config": text,
        }
        for number in numbers
    ]
    return parallel_coordinates.parallel_coordinates(lines, axes=[(text, ""), ("b", text), ("c", "")], unit=UNIT)


def of_worth(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    rows = [
        {"parameter": f"{text}{place}", "kind": parameter_worth.OVER_OWN, "change": text, "gain": number or 1.0}
        | {"low": 0.9 * (number or 1.0), "high": 1.1 * (number or 1.0), "measured": number, "launches": place}
        for place, number in enumerate(numbers)
    ]
    return parameter_worth.parameter_worth(rows)


def of_promises(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    rows = [
        {"number": place, "ratio": number or 1.0, "low": number and 0.9, "high": number and 1.1, "own": number}
        | {"label": f"{text}{place}"}
        for place, number in enumerate(numbers, 1)
    ]
    return promise_ratios.promise_ratios(rows)


def of_response(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    points = [
        {"value": f"{text}{place}", "predicted": number or 1.0, "low": number or 1.0, "high": 1.1 * (number or 1.0)}
        | {"measured": known([number]), "fits": number is not None, "is_best": place < 1, "mark": text}
        for place, number in enumerate(numbers)
    ]
    panel = {"detail": text, "values": [each["value"] for each in points], "points": points}
    panels = [{**panel, "name": text, "is_number": False}, {**panel, "name": "b", "is_number": True}]
    return response_curves.response_curves(panels, unit=UNIT)


def of_pairs(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    x = [f"{text}{place}" for place in range(len(numbers))]
    cells = [
        {"x": name, "y": text, "ratio": number or 1.0, "low": number or 1.0, "high": number or 1.0, "measured": 0}
        | {"fits": number is not None, "mark": cell_grid.OWN if number else ""}
        for name, number in zip(x, numbers, strict=True)
    ]
    return response_map.response_map(cells, x=x, y=[text], names=(text, text))


def scales(numbers: Sequence[float | None], text: str) -> list[dict[str, Any]]:
    return [
        {"series": text, "devices": 2**place, "throughput": number, "efficiency": number / 3, "config": text}
        for place, number in enumerate(known(numbers)[:20])
    ]


def of_times(numbers: Sequence[float | None], text: str) -> dict[str, Any] | None:
    spans, ends, at = [], [], 0.0
    for place, number in enumerate(numbers):
        begin, at = at, at + (number or 1.0)
        label = f"{text}{place}"
        spans.append({"begin": begin, "end": at, "lane": place % 2, "phase": "running", "label": label})
        if number is None:
            ends.append({"at": at, "lane": place % 2, "outcome": "unknown", "label": f"end {label}"})
    return timeline.timeline(spans, ends, [(at / 2, UNIT, True)], title=UNIT, since=UNIT, note=UNIT)


FIGURES: dict[str, Callable[[Sequence[float | None], str], dict[str, Any] | None]] = {
    "frontier": of_launches,
    "predicted_measured": of_predictions,
    "rank_correlation": of_correlations,
    "forecast_accuracy": of_accuracy,
    "launch_values": of_values,
    "layer_strips": of_layers,
    "memory_boundary": of_memory,
    "objective_front": of_objectives,
    "parallel_coordinates": of_coordinates,
    "parameter_worth": of_worth,
    "promise_ratios": of_promises,
    "response_curves": of_response,
    "response_map": of_pairs,
    "scale_throughput": lambda numbers, text: scale_curves.scale_throughput(scales(numbers, text), unit=UNIT),
    "scale_efficiency": lambda numbers, text: scale_curves.scale_efficiency(scales(numbers, text)),
    "timeline": of_times,
}


def figure_functions() -> Iterator[str]:
    """Yield the names of the functions below ``report/figures`` that return a figure."""
    for module in pkgutil.iter_modules(figures.__path__, f"{figures.__name__}."):
        for name, found in inspect.getmembers(import_module(module.name), inspect.isfunction):
            is_own = found.__module__ == module.name and not name.startswith("_")
            if is_own and str(found.__annotations__.get("return", "")).startswith("dict[str, Any]"):
                yield name


def test_every_figure_is_tried() -> None:
    assert set(figure_functions()) - {"shape_by_outcome"} == FIGURES.keys()


def marks_of(figure: dict[str, Any]) -> tuple[float, float, list[str]]:
    """Return width, height and the text of each mark of the picture of a figure."""
    svg = vl_convert.vegalite_to_svg(without_object_names(figure), config=theme(), allowed_base_urls=[])
    assert "NaN" not in svg
    assert "Infinity" not in svg
    root = ET.fromstring(svg)
    labels = [node.get("aria-label", "") for node in root.iter() if node.get("role") == "graphics-symbol"]
    return float(root.get("width", "")), float(root.get("height", "")), labels


def rows_of(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the data of a figure that have a text."""
    for each in [*part.get("layer", ()), *part.get("hconcat", ()), *part.get("vconcat", ()), *part.get("concat", ())]:
        yield from rows_of(each)
    if "spec" in part:
        yield from rows_of(part["spec"])
    if part.get("encoding", {}).get("description") == LABEL:
        yield from part.get("data", {}).get("values", ())


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(
    ("numbers", "text"),
    [*((numbers, "plain") for numbers in NUMBERS), ("some unknown", "hostile"), ("equal", "name of an object")],
)
def test_odd_data_are_drawn(name: str, numbers: str, text: str) -> None:
    figure = FIGURES[name](NUMBERS[numbers], TEXTS[text])
    if figure is None:
        assert len(known(NUMBERS[numbers])) < 2
        return
    width, height, labels = marks_of(figure)
    assert 30 < width < 4000
    assert 30 < height < 4000
    assert {row["label"] for row in rows_of(figure)} <= set(labels)
    assert labels
