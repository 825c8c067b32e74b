"""The report as a page: it loads nothing, shows hostile texts as text, and holds its trials as data."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from torchx_cubicml.report.document import Chapter, document
from torchx_cubicml.report.drawn_points import MOST_DRAWN
from torchx_cubicml.report.figures.frontier import frontier
from torchx_cubicml.report.markup import joined
from torchx_cubicml.report.sections.all_trials import trials_html
from torchx_cubicml.report.sections.figures import Colours, figures_html
from torchx_cubicml.report.sections.headline import Headline, headline_html
from torchx_cubicml.report.table_columns import Column, to_json

HOSTILE = (
    "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 ' \" & {{x}} https://example.org/x"
)


class Page(HTMLParser):
    """Elements, texts and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] == ["script"]:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        else:
            self.texts.append(data)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def page(*, hostile: str = "plain", chapters: int = 1) -> Page:
    colours = Colours()
    row: dict[str, Any] = {"throughput": 5.0, "outcome": hostile, "round": None, "config": hostile}
    figure = frontier([row, {**row, "throughput": None}], unit="tokens per second")
    headline = Headline(
        figure=hostile,
        meaning=hostile,
        sentence=hostile,
        interval=(1.2, 1.1, 1.3),
        facts=[(hostile, hostile, hostile)],
        changes=[(hostile, hostile, hostile)],
        command=hostile.replace(" ", "-"),
        notes=[hostile],
    )
    columns = [Column(name=hostile, values=[hostile, None], is_shown=True), Column(name="b", values=[1, 2.5])]
    made = [
        Chapter(
            heading=hostile,
            note=hostile,
            summary=hostile,
            body=joined(
                headline_html(headline),
                figures_html([figure], colours=colours, name=f"figure-{number}"),
                trials_html(columns, name=f"trials-{number}"),
            ),
        )
        for number in range(chapters)
    ]
    return Page(document(made, title=hostile, about=hostile, notes=[hostile], css=colours.css()))


def test_hostile_texts_change_no_element() -> None:
    plain, hostile = page(), page(hostile=HOSTILE)
    assert hostile.tags == plain.tags
    assert hostile.texts.count(HOSTILE) == plain.texts.count("plain") - 1 > 10  # but for the command
    assert HOSTILE.replace(" ", "-") in hostile.texts
    (data,) = (json.loads(text) for attributes, text in hostile.scripts if attributes.get("type"))
    assert data["columns"][0]["values"] == [HOSTILE, None]


def test_the_page_runs_its_own_script_alone_and_loads_nothing() -> None:
    found = page(hostile=HOSTILE)
    (policy,) = (
        each["content"] for tag, each in found.elements if tag == "meta" and "content" in each and "http-equiv" in each
    )
    (script,) = (text for attributes, text in found.scripts if not attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert b64encode(sha256(script.encode()).digest()).decode() in policy
    assert not [each for _, each in found.elements if {"src", "srcset"} & each.keys()]
    assert not [each for _, each in found.elements if any(name.startswith("on") for name in each)]


def test_ids_are_unique_and_links_lead_to_them() -> None:
    found = page(chapters=3)
    ids = [each["id"] for _, each in found.elements if "id" in each]
    assert len(set(ids)) == len(ids)
    links = [str(each["href"]) for tag, each in found.elements if tag == "a"]
    assert links == ["#main", "#workload-1", "#workload-2", "#workload-3"]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    labels = {name for tag, each in found.elements if tag == "section" for name in str(each["aria-labelledby"]).split()}
    assert labels <= set(ids)


def test_a_single_workload_has_no_index() -> None:
    assert "nav" not in page().tags


def test_colours_of_a_figure_are_variables_with_a_light_and_a_dark_value() -> None:
    colours = Colours()
    html = figures_html([frontier([], unit="x")], colours=colours, name="f")
    assert 'fill="#' not in html
    assert 'stroke="#' not in html
    assert "rgb(" not in html
    light, dark = colours.css().split("@media screen and (prefers-color-scheme:dark)")
    assert light.count("--figure-") == dark.count("--figure-") == len(colours.names) > 1


def test_each_word_of_a_command_stays_in_one_piece_and_the_text_is_the_command() -> None:
    command = "torchx run  cubicml '--a b' --micro-batch_size=4"
    found = re.findall(r"<code>(.*?)</code>", headline_html(Headline(command=command)))[0]
    assert re.sub(r"<[^>]*>", "", unescape(found)) == command
    assert re.findall(r'<span class="word">([^<]*)</span>', found)[-1] == "--micro-batch_size=4"


def test_names_of_objects_can_be_drawn() -> None:
    words = ["constructor", "__proto__", "toString", "plain"]
    sorts = {"field": "x", "type": "nominal", "sort": words}
    values = [{"x": word, "class": word, "y": place} for place, word in enumerate(words, start=1)]
    colour = {"field": "class", "type": "nominal", "scale": {"domain": words}}
    encoding = {"x": sorts, "y": {"field": "y", "type": "quantitative"}, "color": colour}
    figure = {"data": {"values": values}, "mark": "bar", "encoding": encoding, "title": "x"}
    html = figures_html([figure], colours=Colours(), name="f")
    assert "could not be drawn" not in html
    assert [word for word in words if f">{word}" not in html] == []
    assert html.count("data-label=") == len(words)


def test_a_figure_is_one_picture_with_its_description() -> None:
    row: dict[str, Any] = {"throughput": 5.0, "outcome": "completed", "round": None, "config": 'a="b"<c>'}
    html = figures_html([frontier([row], unit="x")], colours=Colours(), name="f")
    root = re.search(r"<svg [^>]*>", html)
    assert root is not None
    assert 'role="img" aria-label="Throughput of launches' in root[0]
    assert re.findall(r"\b(?:role|aria-[a-z]+)=", html.split(root[0])[1]) == []
    assert "&lt;c&gt;" in re.findall(r'data-label="([^"]*)"', html)[0]
    assert re.search(r'<figure class="figure" aria-label="Throughput of each launch', html)


def test_a_gain_that_is_not_claimed_is_muted() -> None:
    assert 'class="gain muted"' in headline_html(Headline(figure="1.10x"))
    assert 'class="gain"' in headline_html(Headline(figure="1.10x", is_claimed=True))


@pytest.mark.parametrize("interval", [(1.0, 1.0, 1.0), (0.5, 0.4, 0.6), (30.0, 20.0, 45.0)])
def test_the_marks_of_an_interval_lie_on_its_axis(interval: tuple[float, float, float]) -> None:
    found = Page(headline_html(Headline(interval=interval)))
    marks = {each.get("class"): each for tag, each in found.elements if tag in {"line", "circle"}}
    places = [marks["own"]["x1"], marks["span"]["x1"], marks["dot"]["cx"], marks["span"]["x2"]]
    shares = [float(str(place).rstrip("%")) for place in places]
    assert all(0 <= share <= 100 for share in shares)
    assert shares[1] <= shares[2] <= shares[3]


@pytest.mark.parametrize(
    "values",
    [
        ["x", "x", "x"],
        ["x", "y", "x", "x", None],
        [1, 2, 3],
        [3, 2, 1],
        [1, None],
        [],
        ["x"],
        [None, None, 3.0, 3.0],
        ["2026-01-01T00:00", "2026-01-01T00:01", "2026-01-01T00:01 \U0001f642", "2026-01-01T00:01 \U0001f642b", ""],
    ],
    ids=repr,
)
def test_a_column_is_restored_from_its_json(values: list[str | float | None]) -> None:
    found: dict[str, Any] = json.loads(json.dumps(Column(name="a", values=values).to_json()))
    assert restored(found, len(values)) == values


def restored(column: dict[str, Any], rows: int) -> list[str | float | None]:
    if "all" in column:
        return [column["all"]] * rows
    if "first" in column:
        return [*range(column["first"], column["first"] + rows)]
    if "index" in column:
        return [column["levels"][place] for place in column["index"]]
    if "rest" in column:
        found = [""]
        for shared, rest in zip(column["shared"], column["rest"], strict=True):
            found.append(found[-1][:shared] + rest)
        return [*found[1:]]
    return [*column["values"]]


def test_a_column_like_an_earlier_one_names_it() -> None:
    columns = [Column(name=name, values=[2.5, 1.5, None]) for name in ("a", "b")]
    first, second = to_json(columns)
    assert first["values"] == [2.5, 1.5, None]
    assert second["same"] == 0
    assert second["number"] is True


def test_many_points_are_sampled_and_the_subtitle_says_so() -> None:
    rows = [
        {"throughput": float(number), "outcome": "completed", "round": None, "config": ""} for number in range(9000)
    ]
    html = figures_html([frontier(rows, unit="x")], colours=Colours(), name="f")
    assert html.count("data-label=") == MOST_DRAWN
    assert "2,000 of 9,000 points are drawn" in html
    assert 'data-label="launch 9,000; 8,999 x; completed"' in html


def test_a_figure_that_cannot_be_drawn_is_left_out_with_its_cause() -> None:
    html = figures_html([{"mark": 3}, frontier([], unit="x")], colours=Colours(), name="f")
    assert html.count("<figure") == 1
    assert "A figure is left out, as it could not be drawn: " in html
