"""Index of workloads: one row each, with the course of its best throughput, its gain, and its launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ROWS = 500
"""Rows of the index; more workloads are counted."""
_WIDTH, _HEIGHT = 96, 22  # pixels of a course
_CLASSES = {"best so far": "aside", **dict.fromkeys(("best", "gain", "launches", "failures"), "number")}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One workload, in plain texts.

    Args:
        name: of the program.
        facts: of the workload.
        best: highest throughput with its unit; empty where none was measured.
        gain: over the user's own config; empty where nothing is compared.
        is_claimed: whether the gain is claimed; else it is muted.
        launches: number of trials.
        failures: number of those that failed.
        course: place in the order of launches, 0 to 1, and share of the best throughput, 0 to 1, of each new best.
    """

    name: str
    facts: str
    best: str
    gain: str
    is_claimed: bool
    launches: int
    failures: int
    course: Sequence[tuple[float, float]]


def index_html(rows: Sequence[IndexRow], *, chapters: int) -> Html:
    """Return the index.

    Args:
        rows: in the order of the chapters.
        chapters: number of rows that have a chapter on the page, the first.
    """
    shown = rows[:MOST_ROWS]
    first, others = shown[:chapters], shown[chapters:]
    parts = [_table(first, linked=True)]
    if others:
        plural = "s" if len(others) > 1 else ""
        count = f"{len(others):,} more workload{plural} of as many launches or fewer, without a chapter"
        parts.append(element("details", element("summary", count), _table(others, linked=False), class_="numbers"))
    if len(rows) > len(shown):
        parts.append(element("p", f"{len(rows) - len(shown):,} workloads are not listed.", class_="note"))
    return element("nav", *parts, aria_label="Workloads")


def _table(rows: Sequence[IndexRow], *, linked: bool) -> Html:
    names = ["workload", "best so far", "best"]
    names += ["gain"] if any(row.gain for row in rows) else []
    names += ["launches"]
    names += ["failures"] if any(row.failures for row in rows) else []
    head = element("tr", *(element("th", name, scope="col", class_=_CLASSES.get(name)) for name in names))
    body = [_row(row, number if linked else None, names) for number, row in enumerate(rows, start=1)]
    table = element("table", element("thead", head), element("tbody", *body), class_="index")
    return element("div", table, class_="scroll", tabindex="0", role="group", aria_label="Index of workloads")


def _row(row: IndexRow, number: int | None, names: Sequence[str]) -> Html:
    name = element("a", row.name, href=f"#workload-{number}") if number is not None else element("span", row.name)
    gain = element("span", row.gain, class_="claimed" if row.is_claimed else "muted")
    cells = {
        "best so far": _course(row),
        "best": row.best,
        "gain": gain if row.gain else "",
        "launches": f"{row.launches:,}",
        "failures": f"{row.failures:,}" if row.failures else "",
    }
    return element(
        "tr",
        element("th", name, element("small", row.facts, title=row.facts), scope="row"),
        *(element("td", cells[each], class_=_CLASSES[each]) for each in names[1:]),
    )


def _course(row: IndexRow) -> Html:
    """Return the staircase of the best so far, from the first launch to the last."""
    if not row.course:
        return Html("")
    tall = _HEIGHT - 6
    points: list[str] = []
    before = 0.0
    for place, share in row.course:
        x, y = 3 + place * (_WIDTH - 6), 3 + (1.0 - share) * tall
        points += [f"{x:.1f},{before:.1f}"] if points else []
        points.append(f"{x:.1f},{y:.1f}")
        before = y
    end = f"{_WIDTH - 3},{before:.1f}"
    start = row.course[0][1]
    label = f"{len(row.course)} new bests in {row.launches:,} launches; the first had {start:.0%} of the best"
    line = f'<polyline points="{" ".join([*points, end])}"/><circle cx="{_WIDTH - 3}" cy="{before:.1f}" r="2.5"/>'
    svg = f'<svg class="course" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">{line}</svg>'
    return joined(Html(svg))
