"""Files of figures: formats, and pages that load nothing and show the texts of a store as text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.report.figures.frontier import frontier
from torchx_cubicml.report.rendering import check_format, render
from torchx_cubicml.report.sections.figures_page import Section

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 ' \" & https://example.org/x"


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the text in each script."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_script = self._is_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] += data
        else:
            self.texts.append(data)


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    row: dict[str, Any] = {"throughput": 5.0, "outcome": HOSTILE, "round": None, "config": HOSTILE}
    figure = frontier([row, {**row, "throughput": None}], unit="tokens per second")
    return [Section(heading=HOSTILE, note=HOSTILE, figures=(figure, figure))]


def test_a_page_shows_hostile_texts_as_text(sections: list[Section], tmp_path: Path) -> None:
    render([*sections, *sections], tmp_path / "page.html", title=HOSTILE)
    page = Elements()
    page.feed((tmp_path / "page.html").read_text())
    assert [tag for tag, _ in page.found].count("script") == 1  # that of the page
    assert "img" not in [tag for tag, _ in page.found]
    assert page.texts.count(HOSTILE) >= 2 + 2 * 2  # the title twice, and each heading and note
    labels = [str(each["data-label"]) for _, each in page.found if "data-label" in each]
    assert len(labels) == 2 * 2 * 2  # two points of each of two figures of two chapters
    assert all("alert(2)" in label for label in labels)
    assert [tag for tag, _ in page.found].count("figure") == 4


def test_a_page_may_load_nothing(sections: list[Section], tmp_path: Path) -> None:
    render(sections, tmp_path / "page.html", title="launches")
    page = Elements()
    page.feed((tmp_path / "page.html").read_text())
    (policy,) = (
        attributes["content"]
        for _, attributes in page.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert not [attributes for _, attributes in page.found if "src" in attributes]
    assert {str(attributes["href"])[0] for _, attributes in page.found if "href" in attributes} <= {"#"}  # own parts


def test_a_picture_is_of_its_format(sections: list[Section], tmp_path: Path) -> None:
    for name in ("a.svg", "a.PNG"):
        render(sections, tmp_path / name, title="launches")
    svg = ET.fromstring((tmp_path / "a.svg").read_text())
    assert svg.tag.endswith("svg")
    assert not [each for each in svg.iter() if each.tag.endswith("script")]
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("name", ["a.pdf", "a", "html"])
def test_another_format_is_refused_with_the_legal_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"ends in \.html, \.svg, \.png, got '.*" + name):
        check_format(tmp_path / name)


def test_a_missing_renderer_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(LaunchError, match=r"pip install 'torchx-cubicml\[report\]'"):
        check_format(tmp_path / "a.html")


def test_a_file_that_cannot_be_written_is_named(sections: list[Section], tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot write .*nowhere/a\.svg"):
        render(sections, tmp_path / "nowhere" / "a.svg", title="launches")
