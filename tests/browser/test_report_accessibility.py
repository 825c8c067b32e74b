"""Accessibility of the report: the rules of axe-core, and everything by keyboard alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.stores import CASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.browser.chromium import Browser

AXE = Path(__file__).resolve().parents[2] / ".venv-axe" / "package" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = f"""axe.run(document, {{runOnly: {RULES}, resultTypes: ["violations"]}})
  .then(found => found.violations.map(each => [each.id, each.help,
    ...each.nodes.slice(0, 3).map(node => node.html.slice(0, 300) + node.failureSummary)]))"""
FOCUSED = """(() => {
  const at = document.activeElement, box = at.getBoundingClientRect(), style = getComputedStyle(at);
  return {tag: at.tagName, place: [...document.querySelectorAll("*")].indexOf(at), outline: style.outlineStyle,
    width: style.outlineWidth, seen: box.bottom > 0 && box.top < innerHeight && box.width > 0,
    within: at.closest(".sections") ? "bar" : document.elementFromPoint(
      Math.min(Math.max(box.x + box.width / 2, 1), innerWidth - 1), Math.min(Math.max(box.y + box.height / 2, 1),
      innerHeight - 1))?.closest(".sections") ? "under the bar" : "page"};
})()"""
CONTROLS = """[...document.querySelectorAll("a[href], button:not([disabled]), input, select, summary, [tabindex='0']")]
  .filter(each => each.checkVisibility() || each.matches(".skip"))"""


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not here: make test-report fetches it")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390], ids=["desktop", "phone"])
@pytest.mark.parametrize("case", CASES)
def test_no_rule_of_axe_is_broken(
    browser: Browser, page_of: Callable[[str], Path], case: str, *, width: int, dark: bool
) -> None:
    browser.open(page_of(case), width=width, dark=dark)
    browser.run("document.querySelector('.trials .open').click()")
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    browser.run(f"{AXE.read_text()}; 0")
    found: list[Any] = browser.run(RUN)
    assert found == []


@pytest.mark.parametrize("width", [1100, 390], ids=["desktop", "phone"])
@pytest.mark.parametrize("case", ["tuned", "failures", "imported"])
def test_tab_reaches_every_control_and_shows_where_it_is(
    browser: Browser, page_of: Callable[[str], Path], case: str, width: int
) -> None:
    browser.open(page_of(case), width=width)
    wanted = set(browser.run(f"{CONTROLS}.map(each => [...document.querySelectorAll('*')].indexOf(each))"))
    reached: dict[int, dict[str, Any]] = {}
    for _ in range(len(wanted) + 5):
        browser.press("Tab", code=9)
        focused = browser.run(FOCUSED)
        if focused["tag"] == "BODY" or focused["place"] in reached:  # behind the last control, or again at the first
            break
        reached[focused["place"]] = focused
    assert wanted <= set(reached)
    assert [each for each in reached.values() if each["outline"] == "none" or each["width"] == "0px"] == []
    assert [each for each in reached.values() if not each["seen"] or each["within"] == "under the bar"] == []


def test_the_first_control_leads_past_the_links(browser: Browser, page_of: Callable[[str], Path]) -> None:
    browser.open(page_of("imported"))
    browser.press("Tab", code=9)
    assert browser.run("document.activeElement.textContent") == "Skip to the result"
    assert browser.run("document.activeElement.getBoundingClientRect().left") > 0
    browser.press("Enter", code=13, text="\r")
    assert browser.run("location.hash") == "#main"
    browser.press("Tab", code=9)
    assert browser.run("document.activeElement.closest('main') !== null")


@pytest.mark.parametrize(("key", "code", "text"), [("Enter", 13, "\r"), (" ", 32, " ")], ids=["Enter", "space"])
def test_enter_and_space_sort_and_open(
    browser: Browser, page_of: Callable[[str], Path], key: str, code: int, text: str
) -> None:
    browser.open(page_of("failures"))
    browser.run("document.querySelectorAll('.trials thead button')[1].focus()")
    browser.press(key, code=code, text=text)
    assert browser.run("document.querySelector('[aria-sort]').textContent") == "outcome"
    browser.run("document.querySelector('.trials .open').focus()")
    browser.press(key, code=code, text=text)
    assert browser.run("document.querySelectorAll('.details').length") == 1


@pytest.mark.parametrize("case", CASES)
def test_headings_and_tables_have_their_order(browser: Browser, page_of: Callable[[str], Path], case: str) -> None:
    browser.open(page_of(case))
    levels = browser.run("[...document.querySelectorAll('h1, h2, h3, h4, h5')].map(each => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(second <= first + 1 for first, second in pairwise(levels))
    assert browser.run("document.querySelectorAll('th:not([scope])').length") == 0
    assert browser.run("[...document.querySelectorAll('table')].every(each => each.querySelector('thead th'))")


def test_nothing_moves_for_a_reader_who_asks_for_that(browser: Browser, page_of: Callable[[str], Path]) -> None:
    browser.open(page_of("tuned"))
    moving = "getComputedStyle(document.querySelector('.open'), '::before').transitionDuration"
    assert browser.run(moving) != "0s"
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.call("Emulation.setEmulatedMedia", media="", features=still)
    assert browser.run(moving) == "0s"
    assert browser.run("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
