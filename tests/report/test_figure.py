"""Figures outside the report: what a notebook gets of them, and the files that they are saved as."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import vl_convert

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.report import renderer
from torchx_cubicml.report.drawn_points import MOST_DRAWN
from torchx_cubicml.report.figure import VEGA_LITE, Figure
from torchx_cubicml.report.figures.cell_grid import BEST
from torchx_cubicml.report.figures.frontier import frontier
from torchx_cubicml.report.figures.memory_boundary import memory_boundary
from torchx_cubicml.report.figures.parameter_worth import OVER_OWN, parameter_worth
from torchx_cubicml.report.figures.predicted_measured import predicted_measured
from torchx_cubicml.report.figures.rank_correlation import rank_correlation
from torchx_cubicml.report.style import notebook_theme

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHES = [{"throughput": 9.0, "outcome": "completed", "round": 1, "config": "</script><b>x</b>"}] * 3
WORTH = {"parameter": "batch", "kind": OVER_OWN, "change": "4 → 8", "gain": 1.2, "low": 1.1, "high": 1.3}
CELL = {"x": "1", "y": "a", "fits": 0.3, "ran": 1, "failed": 0, "like_best": True, "peak": 9.0, "mark": BEST}
FIGURES = {
    "frontier": frontier(LAUNCHES, unit="tokens per second"),
    "predicted": predicted_measured(
        [{"predicted": 8.0, "measured": 9.0, "round": number, "config": ""} for number in (1, 2)],
        unit="tokens per second",
        taus={1: 0.5, 2: None},
    ),
    "correlation": rank_correlation([{"round": 1, "tau": 0.5, "launches": 9}, {"round": 2, "tau": 0.4, "launches": 9}]),
    "worth": parameter_worth([{**WORTH, "measured": each, "launches": 1} for each in (None, 1.25)]),
    "memory": memory_boundary([CELL], x=["1"], y=["a"], names=("batch", "mode")),
}


@pytest.fixture(params=FIGURES)
def figure(request: pytest.FixtureRequest) -> Figure:
    return Figure(FIGURES[request.param])


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2)."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_a_notebook_gets_vega_lite_a_picture_and_a_text(figure: Figure) -> None:
    bundle = figure._repr_mimebundle_()
    assert bundle.keys() == {VEGA_LITE, "image/svg+xml", "text/plain"}
    assert ET.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")
    assert bundle["text/plain"] == repr(figure) == f"<Figure: {figure.specification['description']}>"
    json.dumps(bundle, allow_nan=False)


@pytest.mark.parametrize("version", ["5.8", "5.21"])
def test_a_notebook_draws_it_by_vega_lite_5(figure: Figure, version: str) -> None:
    shown = figure._repr_mimebundle_()[VEGA_LITE]
    assert shown["$schema"].endswith("/v5.json")
    drawn = vl_convert.vegalite_to_svg(shown, vl_version=version, allowed_base_urls=[])
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_texts_are_readable_on_light_and_dark_notebooks() -> None:
    config = notebook_theme()
    assert config["background"] == "transparent"
    colours = {config["title"]["color"], config["axis"]["labelColor"], config["text"]["color"]}
    assert min(contrast(each, page) for each in colours for page in ("#ffffff", "#111111")) >= 4.0


@pytest.mark.parametrize("kind", [".html", ".svg", ".png", ".json", ".PNG"])
def test_it_is_saved_as_a_file(figure: Figure, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"figure{kind}"
    figure.save(path)
    starts = {".html": b"<!DOCTYPE html>", ".svg": b"<svg", ".png": b"\x89PNG", ".json": b"{"}
    assert path.read_bytes().startswith(starts[kind.lower()])
    figure.save(str(path))
    if kind == ".json":
        assert json.loads(path.read_text()) == figure.to_dict()


def test_another_ending_and_an_unwritable_place_are_one_sentence(tmp_path: Path) -> None:
    figure = Figure(FIGURES["frontier"])
    with pytest.raises(
        LaunchError, match=r"^a figure is saved as \.html, \.svg, \.png or \.json, got '.*figure\.pdf'$"
    ):
        figure.save(tmp_path / "figure.pdf")
    with pytest.raises(LaunchError, match=r"^cannot write .*: No such file or directory$"):
        figure.save(tmp_path / "missing" / "figure.json")


def test_without_the_renderer_the_notebook_still_draws_vega_lite(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(renderer, "import_module", missing)
    bundle = Figure(FIGURES["frontier"])._repr_mimebundle_()
    assert bundle.keys() == {VEGA_LITE, "text/plain"}
    assert "pip install 'torchx-cubicml[report]'" in bundle["text/plain"]


def test_a_notebook_keeps_a_sample_of_many_points_and_says_so() -> None:
    figure = Figure(frontier(LAUNCHES * MOST_DRAWN, unit="tokens per second"))
    shown = figure._repr_mimebundle_()[VEGA_LITE]
    assert max(len(layer.get("data", {}).get("values", ())) for layer in shown["layer"]) == MOST_DRAWN
    assert f"{MOST_DRAWN:,} of {3 * MOST_DRAWN:,} points are drawn" in shown["title"]["subtitle"]


def test_a_notebook_shows_the_label_of_each_mark_beside_the_pointer(figure: Figure) -> None:
    def parts(part: dict[str, Any]) -> list[dict[str, Any]]:
        inner = [*part.get("layer", ()), *([part["spec"]] if "spec" in part else [])]
        return [part, *(each for one in inner for each in parts(one))]

    encodings = [each["encoding"] for each in parts(figure._repr_mimebundle_()[VEGA_LITE]) if "encoding" in each]
    labelled = [each for each in encodings if "description" in each]
    assert all("tooltip" in each for each in labelled)
    assert any("tooltip" in each for each in encodings)


def test_a_copy_may_be_changed(figure: Figure) -> None:
    before = json.dumps(figure.to_dict())
    copy: dict[str, Any] = figure.to_dict()
    copy["title"]["text"] = "mine"
    assert json.dumps(figure.to_dict()) == before
