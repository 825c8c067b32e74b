"""Figures of launches over time, promises, efficiency and two objectives: what their rows become."""

from __future__ import annotations

import re
from typing import Any

import pytest
import vl_convert

from torchx_cubicml.report.figures.failure_shapes import ENDS
from torchx_cubicml.report.figures.launch_values import BEST, OTHER, OWN, launch_values
from torchx_cubicml.report.figures.objective_front import FRONT, objective_front
from torchx_cubicml.report.figures.promise_ratios import INSIDE, OUTSIDE, promise_ratios
from torchx_cubicml.report.figures.timeline import PHASES, timeline
from torchx_cubicml.report.style import theme

HOSTILE = "datum['x'] </script> \u2028 ' \" & {{x}}"


def drawn(figure: dict[str, Any] | None, *, dark: bool = False) -> str:
    """Return the SVG of a figure, as the report draws it."""
    assert figure is not None
    svg: str = vl_convert.vegalite_to_svg(figure, config=theme(dark=dark), allowed_base_urls=[])
    return svg


def labels(svg: str, mark: str) -> list[str]:
    """Return the texts of the marks of a kind."""
    found = re.findall(r"<path ([^>]*)>", svg)
    return [
        label[1]
        for each in found
        if f'aria-roledescription="{mark}"' in each and (label := _LABEL.search(each)) is not None
    ]


_LABEL = re.compile(r'aria-label="([^"]*)"')


def span(begin: float, end: float, lane: int = 0, phase: str = "running") -> dict[str, Any]:
    return {"begin": begin, "end": end, "lane": lane, "phase": phase, "label": f"{phase} {begin:g}"}


def over_time(*marks: tuple[float, str, bool], label: str = "x") -> dict[str, Any] | None:
    spans = [span(0, 40, phase="queued"), span(40, 600), span(100, 900, lane=1)]
    ends = [{"at": 900.0, "lane": 1, "outcome": "timeout", "label": label}]
    return timeline(spans, ends, marks, title="Launches", since="noon", note="3 launches")


def test_each_phase_is_a_bar_and_each_failure_a_shape() -> None:
    svg = drawn(over_time())
    assert labels(svg, "bar") == ["queued 0", "running 40", "running 100"]
    assert labels(svg, "point") == ["x"]
    assert all(f">{text}<" in svg for text in ("queued", "running", "timeout", "minutes since noon"))
    assert ">starting up<" not in svg


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("word", [*PHASES, *ENDS])
def test_every_phase_and_every_end_can_be_drawn(word: str, *, dark: bool) -> None:
    ends = [{"at": 5.0, "lane": 0, "outcome": word, "label": word}] if word in ENDS else []
    figure = timeline([span(0, 5, phase="running" if ends else word)], ends, [], title="a", since="b")
    assert f">{word}<" in drawn(figure, dark=dark)


def test_texts_of_marks_do_not_cover_each_other() -> None:
    svg = drawn(over_time((100.0, "round 1", False), (110.0, "round 2", False), (500.0, "2 March", True)))
    assert ">round 1<" in svg
    assert ">round 2<" not in svg
    assert ">2 March<" in svg
    assert "pauses cut out" in svg


def promise(number: int, ratio: float, low: float | None = 0.9, high: float | None = 1.1) -> dict[str, Any]:
    return {"number": number, "ratio": ratio, "low": low, "high": high, "own": 0.6, "label": f"launch {number}"}


def test_promises_that_were_not_kept_have_a_colour_and_a_shape() -> None:
    figure = promise_ratios([promise(1, 1.0), promise(2, 0.7), promise(3, 0.7, None, None)])
    svg = drawn(figure)
    assert all(f">{text}<" in svg for text in (INSIDE, OUTSIDE, "your own config, as predicted then"))
    assert labels(svg, "bar") == ["launch 1", "launch 2"]
    assert [label for label in labels(svg, "point") if label.startswith("launch")] == [
        "launch 1",
        "launch 2",
        "launch 3",
    ]
    assert promise_ratios([]) is None


def test_a_quantity_over_the_launches_marks_the_own_and_the_best_config() -> None:
    rows = [
        {"launch": at, "value": 10.0 * at, "kind": kind, "label": f"launch {at}"}
        for at, kind in enumerate((OWN, BEST, OTHER), 1)
    ]
    svg = drawn(launch_values(rows, title="MFU", note="", axis="%", largest=100.0))
    assert all(f">{kind}<" in svg for kind in (OWN, BEST, OTHER))
    assert len([label for label in labels(svg, "point") if label.startswith("launch")]) == 3
    alone = drawn(launch_values(rows[2:], title="MFU", note="", axis="%"))
    assert f">{OTHER}<" not in alone
    assert launch_values([], title="MFU", note="", axis="%") is None


def config(first: float, second: float, kind: str, *, is_best: bool = True, label: str = "c") -> dict[str, Any]:
    ends = {"low_first": 0.9 * first, "high_first": 1.1 * first, "low_second": second, "high_second": second}
    return {"first": first, "second": second, **ends, "kind": kind, "is_best": is_best, "label": label}


def test_the_frontier_is_a_staircase_of_its_configs_alone() -> None:
    rows = [config(3.0, 1.0, FRONT), config(1.0, 3.0, FRONT), config(1.0, 1.0, "your config", is_best=False)]
    figure = objective_front(rows, units=("tokens per second", "tokens per joule"), left_out=7)
    assert figure is not None
    (line,) = (layer for layer in figure["layer"] if layer["mark"]["type"] == "line")
    assert [(row["first"], row["second"]) for row in line["data"]["values"]] == [(1.0, 3.0), (3.0, 1.0)]
    assert "7 other configs are not drawn" in drawn(figure)
    assert objective_front(rows[:1], units=("a", "b")) is None


def test_texts_of_a_store_are_no_expressions() -> None:
    rows = [config(3.0, 1.0, FRONT, label=HOSTILE), config(1.0, 3.0, FRONT, label=HOSTILE)]
    figures = [
        objective_front(rows, units=("a", "b")),
        promise_ratios([{**promise(1, 1.0), "label": HOSTILE}]),
        launch_values([{"launch": 1, "value": 1.0, "kind": OTHER, "label": HOSTILE}], title="a", note="", axis="b"),
        over_time(label=HOSTILE),
    ]
    for figure in figures:
        svg = drawn(figure)
        assert "</script>" not in svg
        assert "datum[" in svg
