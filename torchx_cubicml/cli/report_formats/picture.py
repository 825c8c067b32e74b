"""Report as one PNG picture, for a chat: the result and the figures of the launches of the largest workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.report_sections.result import headline_of, summary_of
from torchx_cubicml.plots.round_figures import section
from torchx_cubicml.report.rendering import rendered
from torchx_cubicml.report.sections.figures_page import Section

if TYPE_CHECKING:
    from torchx_cubicml.cli.report_formats.store_report import StoreReport


def content(report: StoreReport, *, kind: str) -> bytes:
    """Return the picture.

    Raises:
        LaunchError: the renderer is not installed, or cannot draw the figures.
    """
    view = report.views[0]
    drawn = section(view.rounds)
    headline = headline_of(view)
    others = len(report.views) - 1
    many = (
        f"{others:,} other workload{'s' if others > 1 else ''} of as many launches or fewer left out" if others else ""
    )
    first = Section(
        heading=f"{drawn.heading}: {summary_of(headline)}",
        note="\n".join(filter(None, (headline.sentence, drawn.note, many))),
        figures=drawn.figures,
    )
    return rendered([first], kind=f".{kind}", title=report.title)
