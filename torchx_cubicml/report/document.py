"""Report as one self-contained HTML page: its style and script are in it, and it may load nothing."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.style import CATEGORIES, FONT, page_colours

if TYPE_CHECKING:
    from collections.abc import Sequence

_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One workload of the report.

    Args:
        heading: plain text.
        note: facts of the workload, plain text.
        summary: of the result, in few words, for the index.
        body: the sections.
    """

    heading: str
    note: str
    summary: str
    body: Html


def document(
    chapters: Sequence[Chapter],
    *,
    title: str,
    about: str = "",
    notes: Sequence[str] = (),
    top: Html | None = None,
    css: str = "",
) -> str:
    """Return the page.

    Args:
        chapters: in their order.
        title: plain text.
        about: line below the title, plain text.
        notes: sentences below it.
        top: markup before the chapters; by default an index, where there are several.
        css: further rules, of this package's own making.
    """
    script = (_ASSETS / "report.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    sources = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    head = joined(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Html(f"{_variables()}{(_ASSETS / 'report.css').read_text(encoding='utf-8')}{css}")),
    )
    first = [element("h1", title), *([element("p", about, class_="about")] if about else [])]
    first += [element("p", note, class_="note") for note in notes]
    if top is None:
        top = _index(chapters) if len(chapters) > 1 else Html("")
    body = joined(
        element("a", "Skip to the result", href="#main", class_="skip"),
        element("header", *first),
        element("div", top, role="region", aria_label="All workloads") if top else Html(""),
        element("main", *(_section(chapter, number) for number, chapter in enumerate(chapters, start=1)), id="main"),
        element("script", Html(script)),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{element("head", head)}\n{element("body", body)}\n</html>\n'


def _index(chapters: Sequence[Chapter]) -> Html:
    items = [
        element(
            "li",
            element("a", chapter.heading, href=f"#workload-{number}"),
            element("span", chapter.summary, class_="summary"),
            element("small", chapter.note),
        )
        for number, chapter in enumerate(chapters, start=1)
    ]
    return element("nav", element("ol", *items), aria_label="Workloads")


def _section(chapter: Chapter, number: int) -> Html:
    heading = element("h2", chapter.heading, id=f"heading-{number}")
    note = element("p", chapter.note, class_="note facts-line", id=f"facts-{number}")
    name = f"workload-{number}"
    return element("section", heading, note, chapter.body, id=name, aria_labelledby=f"heading-{number} facts-{number}")


def _variables() -> str:
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in page_colours(dark=each).items()) for each in (False, True)
    )
    kinds = "".join(f"--category-{number}:{colour};" for number, colour in enumerate(CATEGORIES))
    return (
        f":root{{color-scheme:light dark;--font:{FONT};{light}{kinds}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
