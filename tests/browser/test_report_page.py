"""The report in a real browser (``make test-report``): it sorts, filters, opens rows by keyboard, and loads nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from torchx.cli.main import main

from torchx_cubicml import State, Trial, TrialStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.chromium import Browser

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> ' \" &"
N_TRIALS = 120
ROWS = "[...document.querySelectorAll('.trials tbody tr:not(.details)')]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    store = TrialStore(str(folder / "store"))
    workload = {"program": HOSTILE, "world_size": 8}
    for number in range(1, N_TRIALS + 1):
        config = {"micro_batch_size": number % 7, HOSTILE: HOSTILE}
        trial = Trial.completed(workload=workload, config=config, tokens_per_second=1000.0 + number * 37 % 101)
        trial = replace(trial, started_at=f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00Z")
        if number % 10 == 0:
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason=f"{HOSTILE} no memory")
        store.add(trial)
    main(["cubicml", "report", "--store", str(folder / "store"), "--out", str(folder / "report.html")])
    return folder / "report.html"


def column(browser: Browser, name: str) -> list[str]:
    """Return the cells of a column on the page that the table shows."""
    heads: list[str] = browser.run("[...document.querySelectorAll('.trials thead th')].map(each => each.innerText)")
    place = heads.index(name)
    found: list[str] = browser.run(f"{ROWS}.map(row => row.cells[{place}].textContent)")
    return found


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector({selector!r}).click()")


def give(browser: Browser, tag: str, value: str) -> None:
    """Type or choose a value in a control above the table."""
    box = f"document.querySelector('.controls {tag}')"
    event = "change" if tag == "select" else "input"
    browser.run(f"{box}.value = {value!r}; {box}.dispatchEvent(new Event({event!r}))")


def head(name: str) -> str:
    return f"[...document.querySelectorAll('.trials thead th')].find(each => each.innerText === {name!r})"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390], ids=["desktop", "phone"])
def test_the_page_fits_and_loads_nothing(browser: Browser, page: Path, *, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.problems() == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelectorAll('img, script[src], link, iframe').length") == 0
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_a_column_is_sorted_and_says_so(browser: Browser, page: Path) -> None:
    browser.open(page)
    for order, reverse in (("descending", True), ("ascending", False)):
        browser.run(f"{head('tokens/s')}.querySelector('button').click()")
        assert browser.run(f"{head('tokens/s')}.getAttribute('aria-sort')") == order
        rates = [int(each.replace(",", "")) for each in column(browser, "tokens/s")]
        assert len(rates) == 50
        assert rates == sorted(rates, reverse=reverse)
    assert browser.run("document.querySelectorAll('[aria-sort]').length") == 1


def test_trials_are_filtered_by_text_and_by_outcome(browser: Browser, page: Path) -> None:
    browser.open(page)
    give(browser, "input", "no memory")
    assert browser.run("document.querySelector('.controls .count').textContent") == "12 of 120 trials"
    assert set(column(browser, "outcome")) == {"out of memory"}
    give(browser, "input", "")
    give(browser, "select", "1")
    assert set(column(browser, "outcome")) == {"completed"}
    assert browser.run("document.querySelector('.controls .count').textContent") == "108 of 120 trials"


def test_pages_hold_every_trial_once(browser: Browser, page: Path) -> None:
    browser.open(page)
    seen = column(browser, "launch")
    while not browser.run("document.querySelector('.pages button:nth-of-type(2)').disabled"):
        click(browser, ".pages button:nth-of-type(2)")
        seen += column(browser, "launch")
    assert [int(each) for each in seen] == list(range(1, N_TRIALS + 1))


def test_a_trial_opens_by_the_keyboard_to_all_that_was_recorded(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelectorAll('.open')[9].focus()")
    browser.press("Enter", code=13, text="\r")
    facts: dict[str, Any] = browser.run(
        "Object.fromEntries([...document.querySelectorAll('.details dt')].map(each => [each.textContent, "
        "each.nextSibling.textContent]))"
    )
    assert facts["outcome"] == "out of memory"
    assert facts["reason"] == f"{HOSTILE} no memory"
    assert facts[HOSTILE] == HOSTILE
    assert facts["workload.world_size"] == "8"
    name = browser.run("document.activeElement.getAttribute('aria-controls')")
    assert browser.run(f"document.getElementById({name!r}).className") == "details"
    assert browser.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    browser.press("Enter", code=13, text="\r")
    assert browser.run("document.querySelectorAll('.details').length") == 0


def test_every_control_has_a_name(browser: Browser, page: Path) -> None:
    browser.open(page)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "searchbox", "combobox", "link"}
    controls = [each for each in tree if each.get("role", {}).get("value") in roles]
    assert len(controls) > 50
    assert [each for each in controls if not each.get("name", {}).get("value")] == []


def test_a_point_shows_its_launch(browser: Browser, page: Path) -> None:
    browser.open(page)
    point = "document.querySelector('.figure [data-label]')"
    browser.run(f"{point}.dispatchEvent(new PointerEvent('pointermove', {{bubbles: true}}))")
    shown = browser.run("document.querySelector('.tip:not([hidden])').innerText")
    assert shown.splitlines()[:3] == ["launch 1", "1,037 tokens per second of the whole job", "completed"]
    assert HOSTILE in shown


def test_paper_is_light_and_holds_all_rows(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert len(column(browser, "launch")) == N_TRIALS
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert len(column(browser, "launch")) == 50
