"""Figures of rounds: what their rows become, read from the specification and from the picture that is drawn of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import vl_convert

from torchx_cubicml.report.drawn_points import MOST_DRAWN
from torchx_cubicml.report.figures.frontier import frontier
from torchx_cubicml.report.figures.predicted_measured import predicted_measured
from torchx_cubicml.report.figures.rank_correlation import ALL, rank_correlation
from torchx_cubicml.report.sections.figures import sampled
from torchx_cubicml.report.style import FAILED, theme

UNIT = "tokens per second"


def launch(throughput: float | None, number: int | None = None, outcome: str = "completed") -> dict[str, Any]:
    return {"throughput": throughput, "outcome": outcome, "round": number, "config": "batch=1"}


def drawn(figure: dict[str, Any] | None, *, dark: bool = False) -> str:
    """Return the SVG of a figure, as the report draws it."""
    assert figure is not None
    svg: str = vl_convert.vegalite_to_svg(figure, config=theme(dark=dark), allowed_base_urls=[])
    return svg


def layer_with(figure: dict[str, Any], mark: str, **values: object) -> dict[str, Any]:
    """Return the only layer of a mark with these properties."""
    (found,) = (
        each for each in figure["layer"] if each["mark"]["type"] == mark and values.items() <= each["mark"].items()
    )
    return dict(found)


ROUNDS = [
    *(launch(10.0, 0), launch(None, 0, "out of memory"), launch(30.0, 0), launch(20.0, 0)),
    *(launch(40.0, 1), launch(35.0, 1), launch(50.0, 2), launch(None, 2, "user error"), launch(49.0)),
]


def test_the_best_so_far_is_a_staircase_up_to_the_last_launch() -> None:
    line = layer_with(frontier(ROUNDS, unit=UNIT), "line")
    steps = [(each["launch"], each["throughput"]) for each in line["data"]["values"]]
    assert steps == [(1, 10.0), (3, 30.0), (5, 40.0), (7, 50.0), (9, 50.0)]


def test_failures_have_a_shape_by_their_outcome_and_are_counted() -> None:
    figure = frontier(ROUNDS, unit=UNIT)
    layer = layer_with(figure, "point", stroke=FAILED)
    failed = layer["data"]["values"]
    assert [(each["launch"], each["outcome"]) for each in failed] == [(2, "out of memory"), (8, "user error")]
    scale = layer["encoding"]["shape"]["scale"]
    assert scale["domain"] == ["out of memory", "user error"]
    assert len(set(scale["range"])) == 2
    assert "9 launches; without a throughput, on the axis: 1 out of memory, 1 user error" in drawn(figure)


def test_rounds_are_named_over_their_launches_where_there_is_room() -> None:
    svg = drawn(frontier(ROUNDS, unit=UNIT))
    assert all(f">{label}<" in svg for label in ("first launches", "round 1", "round 2"))
    many = [launch(float(number), number) for number in range(1, 31)]
    assert ">round 7<" not in drawn(frontier(many, unit=UNIT))


@pytest.mark.parametrize("rows", [[], [launch(None, outcome="timeout")], [launch(7.0)]], ids=["none", "failed", "one"])
def test_a_store_of_few_launches_has_a_figure(rows: list[dict[str, Any]]) -> None:
    for dark in (False, True):
        assert UNIT in drawn(frontier(rows, unit=UNIT), dark=dark)


def predicted(number: int | None, predicted_rate: float, measured: float) -> dict[str, Any]:
    return {"round": number, "predicted": predicted_rate, "measured": measured, "config": ""}


def test_each_round_has_its_panel_with_its_tau() -> None:
    rows = [predicted(1, 9.0, 8.0), predicted(1, 7.0, 9.0), predicted(2, 9.0, 9.5)]
    svg = drawn(predicted_measured(rows, unit=UNIT, taus={1: -0.5, 2: None}))
    assert ">round 1, tau -0.50<" in svg
    assert ">round 2<" in svg


def test_many_rounds_share_a_panel() -> None:
    rows = [predicted(number, 9.0, 8.0 + number) for number in range(1, 31)]
    svg = drawn(predicted_measured(rows, unit=UNIT, taus={}))
    assert ">round 7" not in svg
    assert svg.count('aria-roledescription="point"') == 30


def test_without_a_prediction_there_is_no_figure_of_it() -> None:
    assert predicted_measured([], unit=UNIT, taus={}) is None
    assert rank_correlation([{"round": 1, "tau": None, "launches": 2}]) is None


def test_a_tau_stands_before_the_taus_of_random_orders() -> None:
    rows = [
        {"round": 1, "tau": 0.25, "launches": 33},
        {"round": 2, "tau": -0.5, "launches": 3},
        {"round": 3, "tau": None, "launches": 2},
        {"round": ALL, "tau": 0.6, "launches": 38},
    ]
    figure = rank_correlation(rows)
    assert figure is not None
    values = figure["data"]["values"]
    assert [(each["round"], each["tau"]) for each in values] == [("1", 0.25), ("2", -0.5), (ALL, 0.6)]
    assert values[0]["chance"] == pytest.approx(0.24, abs=0.01)
    assert values[1]["chance"] == 1.0  # six orders of three launches: none is rare
    svg = drawn(figure)
    assert all(f">{text}<" in svg for text in ("0.25", "\u22120.50", "0.60"))
    assert "no bar: too few launches" in svg


def test_dark_and_light_pages_differ_in_colours_alone() -> None:
    light, dark = (drawn(frontier(ROUNDS, unit=UNIT), dark=each) for each in (False, True))
    assert light != dark
    colour = r"#[0-9a-f]{6}|rgb\([^)]*\)"
    assert re.sub(colour, "", light) == re.sub(colour, "", dark)


@pytest.mark.parametrize("parts", ["layer", "concat", "hconcat", "vconcat"])
@pytest.mark.parametrize(
    ("subtitle", "shown"),
    [
        ("", "2,000 of 2,001 points are drawn"),
        ("a", "a; 2,000 of 2,001 points are drawn"),
        (["a", "b"], ["a", "b; 2,000 of 2,001 points are drawn"]),
    ],
)
def test_many_points_are_sampled_in_each_part_of_a_figure(
    parts: str, subtitle: str | list[str], shown: str | list[str]
) -> None:
    many = [{"x": number} for number in range(MOST_DRAWN + 1)]
    figure = {
        "title": {"text": "points", "subtitle": subtitle},
        parts: [{"mark": {"type": "point"}, "data": {"values": many}}],
    }
    sample = sampled(figure)
    (part,) = sample[parts]
    assert len(part["data"]["values"]) == MOST_DRAWN
    assert (part["data"]["values"][0], part["data"]["values"][-1]) == (many[0], many[-1])
    assert sample["title"]["subtitle"] == shown
