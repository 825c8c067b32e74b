"""The report on paper: printed to PDF by a real browser, and read back."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from tests.browser.stores import CASES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.browser.chromium import Browser

pypdf = pytest.importorskip("pypdf")
MARGIN, INCH = 0.4, 96  # inches, the browser's own; pixels
PAPERS = {"A4": (8.27, 11.69), "Letter": (8.5, 11.0)}  # inches
BEYOND = """(() => {
  const width = document.documentElement.clientWidth, hidden = each => !each.checkVisibility();
  return [...document.body.querySelectorAll("*")].filter(each => !hidden(each) && !each.closest(".skip, .tip"))
    .filter(each => each.getBoundingClientRect().right > width + 1)
    .map(each => `${each.tagName} ${each.className.baseVal ?? each.className} ${each.textContent.slice(0, 60)}`);
})()"""


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("case", CASES)
def test_the_paper_holds_everything(browser: Browser, page_of: Callable[[str], Path], case: str, paper: str) -> None:
    browser.open(page_of(case), dark=True)
    heading = browser.run("document.querySelector('h2').textContent")
    width, height = PAPERS[paper]
    printed = browser.call("Page.printToPDF", paperWidth=width, paperHeight=height, printBackground=True)
    pages = pypdf.PdfReader(BytesIO(base64.b64decode(printed["data"]))).pages
    assert len(pages) > 0
    text = " ".join(" ".join(page.extract_text() for page in pages).split())
    assert "All trials" in text
    assert "Filter trials" not in text
    assert "Skip to" not in text
    if case != "hostile":
        assert heading in text
        assert "completed" in text
    blank = [number for number, page in enumerate(pages, start=1) if not page.extract_text().strip()]
    assert blank == []


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_wider_than_the_paper(browser: Browser, page_of: Callable[[str], Path], case: str) -> None:
    width = round((PAPERS["A4"][0] - 2 * MARGIN) * INCH)
    browser.open(page_of(case), width=width)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(BEYOND) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
