"""Page of figures alone: a chapter for each heading, in the style of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.report.document import Chapter, document
from torchx_cubicml.report.sections.figures import Colours, figures_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.report.renderer import Specification


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Figures under one heading.

    Args:
        heading: plain text.
        figures: Vega-Lite specifications.
        note: plain text below the heading; in a picture each line stands for itself.
    """

    heading: str
    figures: tuple[Specification, ...]
    note: str = ""


def figures_page(sections: Sequence[Section], *, title: str) -> str:
    """Return the page; it loads nothing, and its figures need no script.

    Args:
        sections: at least one, with at least one figure each.
        title: plain text.
    """
    colours = Colours()
    chapters = [
        Chapter(
            heading=section.heading,
            note=section.note,
            summary="",
            body=figures_html(section.figures, colours=colours, name=f"figure-{number}"),
        )
        for number, section in enumerate(sections, start=1)
    ]
    return document(chapters, title=title, css=colours.css())
