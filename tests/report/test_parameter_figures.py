"""Figures of what was learned of the parameters: what their rows become, in the specification and in the picture."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.report.test_figures import drawn, layer_with
from torchx_cubicml.report.figures.cell_grid import BEST, OWN
from torchx_cubicml.report.figures.layer_strips import OTHERS, layer_strips
from torchx_cubicml.report.figures.memory_boundary import memory_boundary
from torchx_cubicml.report.figures.parallel_coordinates import BEST as BEST_LINE
from torchx_cubicml.report.figures.parallel_coordinates import OTHER, parallel_coordinates
from torchx_cubicml.report.figures.parallel_coordinates import OWN as OWN_LINE
from torchx_cubicml.report.figures.parameter_worth import OVER_OWN, OVER_SLOWEST, parameter_worth
from torchx_cubicml.report.figures.response_curves import response_curves
from torchx_cubicml.report.figures.response_map import response_map
from torchx_cubicml.report.style import KINDS, ON_DARK

UNIT = "tokens per second"
HOSTILE = "</script><b>'\"; datum.x \\ {signal: 1} \u202e"


def worth(name: str, gain: float, **more: Any) -> dict[str, Any]:
    row = {"parameter": name, "kind": OVER_OWN, "change": "2 → 16", "gain": gain, "low": 0.9 * gain}
    return {**row, "high": 1.1 * gain, "measured": None, "launches": 0, **more}


def test_a_gain_has_its_interval_and_its_measurement() -> None:
    rows = [worth("batch", 2.0, measured=2.1, launches=3), worth("compile", 1.2, kind=OVER_SLOWEST)]
    figure = parameter_worth(rows)
    svg = drawn(figure)
    assert "batch 2 → 16; predicted 2.00x, 80 % interval 1.80x to 2.20x; measured 2.10x by 3 launches" in svg
    assert figure is not None
    rings = layer_with(figure, "point", filled=False)["data"]["values"]
    assert [row["parameter"] for row in rings] == ["batch"]
    assert all(f">{text}<" in svg for text in (OVER_OWN, OVER_SLOWEST, "batch", "compile", "2 → 16"))


def test_parameters_keep_their_order_and_the_axis_holds_no_difference() -> None:
    figure = parameter_worth([worth("z", 1.5), worth("a", 1.2)])
    svg = drawn(figure)
    assert svg.index(">z<") < svg.index(">a<")
    assert figure is not None
    low, high = figure["layer"][1]["encoding"]["x"]["scale"]["domain"]
    assert low < 1.0 < high


def cell(x: str, y: str, fits: float, **more: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "fits": fits, "ran": 0, "failed": 0, "like_best": True, "peak": None, "mark": "", **more}


def test_the_boundary_runs_between_what_fits_and_what_does_not() -> None:
    cells = [
        cell("1", "a", 0.99, ran=2, peak=31.5, mark=BEST),
        cell("2", "a", 0.6, mark=OWN),
        cell("1", "b", 0.3),
        cell("2", "b", 0.02, failed=1, like_best=False),
    ]
    figure = memory_boundary(cells, x=["1", "2"], y=["a", "b"], names=("batch", "strategy"))
    assert figure is not None
    lines = [layer for layer in figure["layer"] if layer["mark"]["type"] == "rule"]
    assert [[(end["x"], end["y"]) for end in layer["data"]["values"]] for layer in lines] == [[("1", "a"), ("2", "a")]]
    svg = drawn(figure)
    assert "batch 1; strategy a; probability to fit 0.99; 2 ran; largest memory 31.5 GiB; the best config" in svg
    assert "batch 2; strategy b; probability to fit 0.02; 1 ran out of memory" in svg
    assert all(f">{text}<" in svg for text in ("31.5", "batch", "strategy", "sure to fit, 0.9 or more"))
    assert "frame: the best config; dashed frame: your own values" in svg


def test_a_boundary_over_one_parameter_is_one_line_of_cells() -> None:
    svg = drawn(memory_boundary([cell("1", "", 0.9), cell("2", "", 0.1)], x=["1", "2"], y=[""], names=("batch", "")))
    assert svg.count('aria-roledescription="rect mark"') == 2
    assert "batch 1; probability to fit 0.90" in svg


def panel(name: str, rates: list[float], **more: Any) -> dict[str, Any]:
    points = [
        {"value": str(place), "predicted": rate, "low": 0.9 * rate, "high": 1.1 * rate, "measured": [rate]}
        | {"fits": place < 2, "is_best": place == 1, "mark": BEST if place == 1 else ""}
        for place, rate in enumerate(rates)
    ]
    return {
        "name": name,
        "detail": "",
        "is_number": True,
        "values": [str(i) for i in range(len(rates))],
        "points": points,
    } | more


def test_numbers_have_a_band_and_categories_an_interval_each() -> None:
    figure = response_curves([panel("batch", [1.0, 2.0, 3.0]), panel("kernel", [2.0, 2.1], is_number=False)], unit=UNIT)
    assert figure is not None
    kinds = [{layer["mark"]["type"] for layer in each["layer"]} for each in figure["concat"]]
    assert {"area", "line"} <= kinds[0]
    assert "rule" in kinds[1]
    assert kinds[1].isdisjoint({"area", "line"})
    svg = drawn(figure)
    assert "batch 1; predicted 2 tokens per second, 80 % interval 1.8 to 2.2; measured 2; the best config" in svg
    assert "batch 2; predicted 3 tokens per second, 80 % interval 2.7 to 3.3; measured 3; likely does not fit" in svg


def test_all_panels_share_one_scale() -> None:
    figure = response_curves([panel("a", [1.0, 2.0]), panel("b", [5.0, 9.0])], unit=UNIT)
    assert figure is not None
    domains = [each["layer"][0]["encoding"]["y"]["scale"]["domain"] for each in figure["concat"]]
    assert domains[0] == domains[1]
    assert domains[0][1] > 9.9


def test_two_parameters_together_have_a_cell_at_each_pair() -> None:
    cells = [
        {"x": x, "y": y, "ratio": ratio, "low": 0.9, "high": 1.1, "measured": n, "fits": ratio < 1.1, "mark": mark}
        for x, y, ratio, n, mark in (("1", "a", 1.0, 2, BEST), ("2", "a", 0.5, 0, ""), ("2", "b", 1.2, 0, ""))
    ]
    svg = drawn(response_map(cells, x=["1", "2"], y=["a", "b"], names=("batch", "kernel")))
    assert svg.count('aria-roledescription="rect mark"') == 3
    assert "batch 1; kernel a; predicted 1.00x, 80 % interval 0.90x to 1.10x; 2 launches measured" in svg
    assert "batch 2; kernel b; predicted 1.20x, 80 % interval 0.90x to 1.10x; likely does not fit in memory" in svg


def line(values: list[Any], rate: float, kind: str = OTHER) -> dict[str, Any]:
    return {"values": values, "throughput": rate, "kind": kind, "config": f"config {rate}"}


def test_each_config_is_a_line_over_all_axes() -> None:
    lines = [line([8, "flash", 4], 3.0, BEST_LINE), line([4, "flash", None], 2.0), line([1, "sdpa", 0], 1.0, OWN_LINE)]
    figure = parallel_coordinates(lines, axes=[("batch", ""), ("kernel", ""), ("sharding", "layers with X")], unit=UNIT)
    assert figure is not None
    shown = [layer for layer in figure["layer"] if layer["mark"]["type"] == "line"]
    assert [len(layer["data"]["values"]) for layer in shown] == [3, 4, 4]  # the missing value is left out
    svg = drawn(figure)
    assert all(f">{text}<" in svg for text in ("batch", "kernel", "layers with X", "flash", "sdpa", "8", "1"))
    assert f"{BEST_LINE}; 3 {UNIT}; config 3.0" in svg


def test_many_numbers_get_a_scale_and_few_a_place_each() -> None:
    lines = [line([number, number % 3], 1.0 + number) for number in range(20)]
    figure = parallel_coordinates(lines, axes=[("many", ""), ("few", "")], unit=UNIT)
    assert figure is not None
    (ticks,) = (
        layer["data"]["values"]
        for layer in figure["layer"]
        if layer["mark"]["type"] == "text" and layer["mark"].get("dx") == -5 and "style" not in layer["mark"]
    )
    assert [tick["text"] for tick in ticks if tick["axis"] == 0] == ["0", "4.75", "9.5", "14.25", "19"]
    assert [tick["text"] for tick in ticks if tick["axis"] == 1] == ["0", "1", "2"]


def strip(config: str, values: list[str]) -> dict[str, Any]:
    return {"config": config, "values": values, "rate": "3 tokens/s"}


@pytest.mark.parametrize("count", [4, 64, 200])
def test_neighbouring_layers_of_one_value_are_one_run(count: int) -> None:
    half = count // 2
    rows = [strip("your own", ["A"] * count), strip("the best", ["A"] * half + ["B"] * (count - half))]
    figure = layer_strips(rows, name="sharding", levels=["A", "B"], entry="layer")
    svg = drawn(figure)
    assert svg.count('aria-roledescription="rect mark"') == 3
    assert f"your own; layers 1 to {count}: A" in svg
    assert f"the best; layers {half + 1} to {count}: B" in svg
    assert figure is not None
    covered = [run["end"] - run["first"] for run in figure["layer"][0]["data"]["values"]]
    assert sum(covered) == 2 * count


def test_more_values_than_colours_share_the_last_one() -> None:
    levels = [f"value {number}" for number in range(20)]
    figure = layer_strips([strip("the best", levels)], name="dim", levels=levels, entry="table")
    assert figure is not None
    kinds = [run["level"] for run in figure["layer"][0]["data"]["values"]]
    assert kinds.count(OTHERS) == 20 - (len(KINDS) - 1)
    assert "the best; table 20: value 19" in drawn(figure)


def test_the_colours_of_values_differ_on_dark_pages_too() -> None:
    assert len({ON_DARK.get(colour, colour) for colour in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    "figure",
    [
        parameter_worth([worth(HOSTILE, 1.1, change=HOSTILE)]),
        memory_boundary([cell(HOSTILE, HOSTILE, 0.5)], x=[HOSTILE], y=[HOSTILE], names=(HOSTILE, HOSTILE)),
        response_curves([panel(HOSTILE, [1.0, 2.0], detail=HOSTILE)], unit=UNIT),
        parallel_coordinates([line([HOSTILE], 1.0), line([HOSTILE], 2.0)], axes=[(HOSTILE, HOSTILE)], unit=UNIT),
        layer_strips([strip("the best", [HOSTILE])], name=HOSTILE, levels=[HOSTILE], entry="layer"),
    ],
    ids=["worth", "memory", "responses", "lines", "strips"],
)
def test_hostile_words_are_drawn_as_words(figure: dict[str, Any]) -> None:
    svg = drawn(figure)
    assert "<b>" not in svg
    assert "&lt;b&gt;" in svg


def test_without_rows_there_is_no_figure() -> None:
    assert parameter_worth([]) is None
    assert memory_boundary([], x=[], y=[], names=("", "")) is None
    assert response_curves([], unit=UNIT) is None
    assert response_map([], x=[], y=[], names=("", "")) is None
    assert parallel_coordinates([line([1], 1.0)], axes=[("a", "")], unit=UNIT) is None
    assert layer_strips([], name="a", levels=[], entry="layer") is None


def test_long_names_and_values_widen_no_figure() -> None:
    long = "W" * 300
    cells = [cell(str(place), "a", 0.9) for place in range(5)]
    lines = [line([long, f"{number}{long}"] * 4, 1.0 + number) for number in range(3)]
    levels = [f"{number}{long}" for number in range(8)]
    for figure in (
        memory_boundary(cells, x=[str(place) for place in range(5)], y=["a"], names=("batch", long)),
        parallel_coordinates(lines, axes=[(long, long)] * 8, unit=UNIT),
        layer_strips([strip("the best", levels)], name="sharding", levels=levels, entry="layer"),
        parameter_worth([worth(long, 1.1, change=long)]),
    ):
        width = re.search(r'<svg[^>]* width="(\d+)', drawn(figure))
        assert width is not None
        assert int(width[1]) < 1000
