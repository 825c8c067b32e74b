"""Report as one HTML page that needs no network."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.cli.report_sections import SECTIONS, sections_of, short_result
from torchx_cubicml.cli.report_sections.across_workloads import across_workloads
from torchx_cubicml.plots.round_figures import facts_text, heading
from torchx_cubicml.report.document import Chapter, document
from torchx_cubicml.report.markup import Html, joined

if TYPE_CHECKING:
    from torchx_cubicml.cli.report_formats.store_report import StoreReport
    from torchx_cubicml.cli.report_sections.view import WorkloadView


def content(report: StoreReport, *, kind: str) -> bytes:
    """Return the page."""
    del kind
    chapters = [_chapter(view, report) for view in report.views[: report.chapters]]
    has_many = len(report.views) > 1
    top = across_workloads(report.views, chapters=report.chapters, predictor=report.predictor) if has_many else Html("")
    text = document(
        chapters,
        title=report.title,
        about=report.about,
        notes=[note for note in (*report.notes, report.missing) if note],
        top=top,
        css=report.colours.css(),
    )
    return text.encode("utf-8", errors="backslashreplace")


def _chapter(view: WorkloadView, report: StoreReport) -> Chapter:
    """Return the sections of one workload."""
    trial = view.trials[0]
    return Chapter(
        heading=heading(trial),
        note=facts_text(trial, view.objective),
        summary=short_result(view),
        body=joined(*sections_of(view, report=partial(_report_section, view, report))),
    )


def _report_section(view: WorkloadView, report: StoreReport, number: int) -> None:
    report.report((view.place - 1) * len(SECTIONS) + number, report.chapters * len(SECTIONS))
