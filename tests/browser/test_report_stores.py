"""The report of stores of many kinds in a real browser: complete, readable at any width, and silent."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from unicodedata import combining

import pytest

from tests.browser.stores import CASES
from torchx_cubicml.report.drawn_points import MOST_DRAWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.browser.chromium import Browser

PHONE, DESKTOP = 390, 1100
LEAST_LETTERS = 9.0  # pixels of the font
LEAST_CONTRAST = 4.5  # of text, by the Web Content Accessibility Guidelines, level AA
LARGEST = 10 * 2**20
DATA = re.compile(r'<script type="application/json" id="trials-1-data">(.*?)</script>', re.DOTALL)
TABLE = "document.querySelector('.trials')"
ROWS = f"[...{TABLE}.querySelectorAll('tbody tr:not(.details)')]"
TEXTS = """(() => {
  // The marks that a text stands on, with their opacity: the last one covers the others.
  const behind = (text, svg) => {
    const box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    return [...svg.querySelectorAll("[data-label]")].filter(mark => {
      const at = mark.getBoundingClientRect();
      return at.left <= x && x <= at.right && at.top <= y && y <= at.bottom;
    }).map(mark => [getComputedStyle(mark).fill, Number(mark.getAttribute("opacity") ?? 1)])
      .filter(([fill]) => fill.startsWith("rgb"));
  };
  return [...document.querySelectorAll(".figure svg")].flatMap((svg, figure) => [...svg.querySelectorAll("text")]
  .filter(text => text.textContent.trim() && text.getAttribute("opacity") !== "0")
  .map(text => {
    const box = text.getBoundingClientRect(), all = svg.getBoundingClientRect(), scale = text.getScreenCTM();
    const style = getComputedStyle(text), size = parseFloat(style.fontSize) * Math.hypot(scale.a, scale.b);
    return {figure, size, text: text.textContent, fill: style.fill, turned: Math.abs(scale.b) > 1e-6,
      left: box.left - all.left, right: all.right - box.right, top: box.top - all.top, bottom: all.bottom - box.bottom,
      behind: behind(text, svg), x: box.x, y: box.y, width: box.width, height: box.height};
  }));
})()"""
RISES = """(text, place, all) => place === 0 || text === ""
  || new Intl.Collator("en", {numeric: true}).compare(all[place - 1], text) <= 0"""
WIDEST = """(() => {
  const inside = each => each.closest(".figure, .scroll, .sections, .skip, svg");
  return [...document.body.querySelectorAll("*:not(.skip):not(.tip)")]
    .filter(each => !inside(each.parentElement))
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(each => each.outerHTML.slice(0, 200));
})()"""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def texts(browser: Browser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.run(TEXTS)
    return found


def columns(page: Path) -> dict[str, dict[str, Any]]:
    """Return the columns of the first table, by name; a column that repeats another has its values."""
    match = DATA.search(page.read_text())
    assert match is not None
    found = json.loads(match[1])["columns"]
    return {each["name"]: {**found[each["same"]], **each} if "same" in each else each for each in found}


def values(column: dict[str, Any], rows: int) -> list[Any]:
    """Return the values of a column, in each of the forms of ``Column.to_json``."""
    if "all" in column:
        return [column["all"]] * rows
    if "first" in column:
        return [*range(column["first"], column["first"] + rows)]
    if "levels" in column:
        return [column["levels"][place] for place in column["index"]]
    if "rest" in column:
        texts = [""]
        for shared, rest in zip(column["shared"], column["rest"], strict=True):
            texts.append(texts[-1][:shared] + rest)
        return texts[1:]
    return list(column["values"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_is_silent_and_fits(
    browser: Browser, page_of: Callable[[str], Path], case: str, *, width: int, dark: bool
) -> None:
    page = page_of(case)
    browser.open(page, width=width, dark=dark)
    assert browser.problems() == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(WIDEST) == []
    assert page.stat().st_size < LARGEST
    said = browser.run("document.body.innerText")
    assert "making it failed" not in said
    assert "could not be drawn" not in said


def test_the_table_holds_all_trials_and_its_workloads_have_chapters(
    browser: Browser, page_of: Callable[[str], Path], case: str
) -> None:
    browser.open(page_of(case))
    total = CASES[case].trials
    assert browser.run(f"{TABLE}.querySelector('.count').textContent") == f"{total:,} trial{'s' if total > 1 else ''}"
    assert browser.run("document.querySelectorAll('main > section').length") == CASES[case].workloads
    assert browser.run(f"{ROWS}.length") == min(total, 50)


def test_every_column_sorts(browser: Browser, page_of: Callable[[str], Path], case: str) -> None:
    page = page_of(case)
    browser.open(page)
    shown = [each for each in columns(page).values() if each["shown"]]
    assert len(shown) == browser.run(f"{TABLE}.querySelectorAll('thead th').length")
    for place, column in enumerate(shown):
        known = [each for each in values(column, CASES[case].trials) if each is not None]
        browser.run(f"{TABLE}.querySelectorAll('thead button')[{place}].click()")
        found = browser.run(f"{ROWS}.map(row => row.cells[{place}].innerText)")
        if column["number"]:
            ordered = sorted(known, reverse=True)[: len(found)]
            numbers = [float(text.replace(",", "")) for text in found if text]
            assert numbers == pytest.approx(ordered, rel=0.01), column["name"]
        else:
            assert browser.run(f"{json.dumps(found)}.every({RISES})"), column["name"]
            assert sum(map(bool, found)) == min(len(known), len(found)), column["name"]


def test_a_filter_leaves_what_holds_its_words(browser: Browser, page_of: Callable[[str], Path], case: str) -> None:
    page = page_of(case)
    browser.open(page)
    outcomes = values(columns(page)["outcome"], CASES[case].trials)
    for outcome in set(outcomes):
        box = f"{TABLE}.querySelector('.controls input')"
        browser.run(f"{box}.value = {outcome!r}; {box}.dispatchEvent(new Event('input'))")
        counted = browser.run(f"{TABLE}.querySelector('.count').textContent")
        number = int(counted.split()[0].replace(",", ""))
        assert number >= outcomes.count(outcome)
        assert browser.run(f"{ROWS}.every(row => row.textContent.includes({outcome!r}))")


def test_every_figure_has_a_mark_for_each_launch(browser: Browser, page_of: Callable[[str], Path], case: str) -> None:
    page = page_of(case)
    browser.open(page)
    marks = browser.run(
        "[...document.querySelectorAll('.figure svg')].map(each => each.querySelectorAll('path, rect').length)"
    )
    assert marks
    assert min(marks) > 2
    found = columns(page)
    rates = values(found["tokens/s"], CASES[case].trials)
    ended = [outcome not in {"planned", "running"} for outcome in values(found["outcome"], CASES[case].trials)]
    measured = sum(rate is not None for rate in rates)
    failed = sum(rate is None and over for rate, over in zip(rates, ended, strict=True))
    drawn = browser.run("document.querySelector('main > section .figure svg').querySelectorAll('[data-label]').length")
    assert drawn == min(measured, MOST_DRAWN) + min(failed, MOST_DRAWN)


@pytest.mark.parametrize("width", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_letters_of_figures_are_large_enough_and_whole(
    browser: Browser, page_of: Callable[[str], Path], case: str, width: int
) -> None:
    browser.open(page_of(case), width=width)
    found = texts(browser)
    assert found
    assert [(each["text"], each["size"]) for each in found if each["size"] < LEAST_LETTERS] == []
    sides = ("left", "right", "top", "bottom")
    cut = [each["text"] for each in found if min(each[side] for side in sides) < -1.0]
    assert [text for text in cut if not any(map(combining, text))] == []  # no font measures heaps of accents


def test_letters_of_figures_do_not_cover_one_another(
    browser: Browser, page_of: Callable[[str], Path], case: str
) -> None:
    if case == "hostile":
        pytest.skip("its words have no place beside one another")
    browser.open(page_of(case))
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    found = [each for each in texts(browser) if not each["turned"] and each["fill"] != background]
    covered = []
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            wide = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
            high = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
            if one["figure"] == other["figure"] and wide > 2.0 and high > 4.0:
                covered.append((one["text"], other["text"]))
    assert covered == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_letters_of_figures_stand_out(
    browser: Browser, page_of: Callable[[str], Path], case: str, *, dark: bool
) -> None:
    browser.open(page_of(case), dark=dark)
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    written = [each for each in texts(browser) if each["fill"] != background]  # a letter of that colour is a halo
    pale = [
        (each["text"], each["fill"], each["behind"])
        for each in written
        if contrast(each["fill"], _covered(background, each["behind"])) < LEAST_CONTRAST
    ]
    assert pale == []


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21.

    >>> round(contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)"))
    21
    """
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _covered(background: str, marks: list[tuple[str, float]]) -> str:
    """Return the colour of marks that lie on a background, one upon the other."""
    colour = _parts(background)
    for fill, opacity in marks:
        colour = [opacity * over + (1 - opacity) * under for over, under in zip(_parts(fill), colour, strict=True)]
    return f"rgb({', '.join(str(round(part)) for part in colour)})"


def _parts(colour: str) -> list[float]:
    return [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]


def _luminance(colour: str) -> float:
    parts = [part / 255 for part in _parts(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
