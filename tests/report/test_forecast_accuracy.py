"""Figure of the accuracy of predictions as measurements grow in number."""

from __future__ import annotations

from typing import Any

from tests.report.test_figures import drawn
from torchx_cubicml.report.figures.forecast_accuracy import forecast_accuracy


def row(known: int, ratio: float, *, has_interval: bool = True) -> dict[str, Any]:
    ends = {"low": 0.9, "high": 1.1} if has_interval else {"low": None, "high": None}
    return {"known": known, "ratio": ratio, **ends, "label": f"launch {known}"}


def test_each_launch_is_above_and_the_typical_error_below() -> None:
    rows = [row(number, 2.0 if number < 10 else 1.01) for number in range(40)]
    figure = forecast_accuracy(rows)
    svg = drawn(figure)
    assert svg.count('aria-roledescription="point"') == 40
    assert figure is not None
    line = figure["vconcat"][1]["data"]["values"]
    assert [round(each["error"], 2) for each in (line[0], line[9], line[39])] == [1.0, 1.0, 0.01]


def test_a_launch_far_off_stands_at_the_edge_and_is_counted() -> None:
    figure = forecast_accuracy([row(1, 100.0), row(2, 1.0), row(3, 0.001, has_interval=False)])
    svg = drawn(figure)
    assert "2 beyond the edge are drawn at it" in svg
    assert svg.count('aria-roledescription="point"') == 3


def test_without_intervals_there_are_points_alone() -> None:
    figure = forecast_accuracy([row(number, 1.0 + 0.01 * number, has_interval=False) for number in range(3)])
    assert figure is not None
    assert len(figure["vconcat"][0]["layer"]) == 2
    assert forecast_accuracy([]) is None


def test_of_very_many_launches_evenly_spaced_ones_are_drawn() -> None:
    figure = forecast_accuracy([row(number, 1.1) for number in range(5000)])
    assert figure is not None
    known = [each["known"] for each in figure["vconcat"][1]["data"]["values"]]
    assert (len(known), known[0], known[-1]) == (600, 0, 4999)
    assert "600 of 5,000 launches are drawn" in figure["title"]["subtitle"]
